"""Kernels as C, for host and bare-metal compilers."""
