"""Naive code (riscv_naive.py) compiled and run in the machine that also counts our own.

outputs, instructions, lane_beats = run_naive(code, (x,), vector=0, family="gcc", flags=("-O3",))
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from benchmarks.riscv_naive import NaiveCode
from bringup.riscv import MachineSpec, open_machine, runtime
from bringup.riscv.toolchain import build, find_toolchain

#: FLAGS of our own builds hold back what makes results differ between compilers: naive code is free of that.
FREE = ("-ffp-contract=fast", "-fno-wrapv", "-fstrict-aliasing")
_HARNESS = """
void naive_run(void);
unsigned long naive_instructions;
static inline unsigned long retired(void) {
  unsigned long count;
  __asm__ volatile("csrr %0, minstret" : "=r"(count));
  return count;
}
int main(void) {
  for (;;) {
    __asm__ volatile("wfi" ::: "memory");
    const unsigned long before = retired();
    naive_run();
    naive_instructions = retired() - before;
  }
}
"""


def run_naive(
    code: NaiveCode, inputs: Sequence[torch.Tensor], vector: int, family: str, flags: Sequence[str]
) -> tuple[list[torch.Tensor], int, int | None]:
    """Compiles it, runs it in the interpreter; gives the outputs, the instructions and the lane-beats."""
    isa = "rv64gcv" if vector else "rv64gc"
    spec = MachineSpec(isa, vlen=vector)
    constants = "".join(
        f'__asm__(".section .rodata\\n.balign 64\\n.globl {name}\\n{name}:\\n.incbin \\"{name}.bin\\"\\n.previous");\n'
        for name in code.constants
    )
    files: dict[str, str | bytes] = {
        "naive.c": code.source,
        "main.c": _HARNESS,
        "data.c": constants + "typedef int data;\n",
    }
    files.update({f"{name}.bin": content for name, content in code.constants.items()})
    files.update(runtime.sources(spec))
    elf = build(files, isa, runtime.LINK, find_toolchain(family), [*FREE, *flags])
    with open_machine("interpreter", elf, spec) as machine:
        symbols = {symbol.name: symbol.address for symbol in machine.program.symbols}
        machine.run()
        for value, tensor in zip(code.inputs, inputs, strict=True):
            machine.write(symbols[value.array], tensor.contiguous().numpy().tobytes())
        machine.reset_counts()
        machine.run()
        outputs = []
        for value in code.outputs:
            data = bytearray(machine.read(symbols[value.array], 4 * math.prod(value.shape)))
            outputs.append(torch.frombuffer(data, dtype=torch.float32).as_strided(value.shape, value.strides))
        retired = int.from_bytes(machine.read(symbols["naive_instructions"], 8), "little")
        return outputs, retired, machine.counts.lane_beats
