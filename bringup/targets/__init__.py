"""Targets turn kernels into source text: C for host and bare-metal compilers (c/), bare-metal RISC-V (riscv/)."""
