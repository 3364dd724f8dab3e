"""Cores of 32 bits, with and without floating point: the same C, with arithmetic from the compiler's library."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bringup.ir.dtypes import float32, float64
from bringup.riscv import MachineSpec, open_machine, runtime, toolchain
from tests.riscv import test_emit_contractions as contractions
from tests.riscv import test_emit_loops as loops
from tests.riscv.emitting import FAMILIES, numbers, run_trials, text_trial, tools_of

isas = pytest.mark.parametrize("isa", ["rv32imc", "rv32imfc"])
families = pytest.mark.parametrize("family", FAMILIES)

DOUBLES = """kernel doubles in a: float64[5, 9] strides [9, 1] in b: float64[9, 6] strides [6, 1]
  out y: float64[5, 6] strides [6, 1] grid i < 5, j < 6
  { contract acc over k < 9 lanes 1 = a[i, k] by b[k, j] store y[i, j] = (sqrt(abs(acc)) / float64(3.0)) }"""


@isas
@families
def test_kernels(isa: str, family: str) -> None:
    rng = random.Random("small")
    trials = [contractions.matrix_trial(rng) for _ in range(6)] + [
        contractions.convolution_trial(rng) for _ in range(6)
    ]
    trials += [text_trial(DOUBLES, "b"), *loops.trials()[:: 4 if family == "zig" else 9]]
    program = run_trials(trials, isa, family, machines=["interpreter"])
    assert sum("sums in registers" in one.how for one in program.kernels.rendered) >= 8


_ROOTS = """#include <stdint.h>
extern const float few[]; extern const double many[];
float sqrtf(float); double sqrt(double);
float few_roots[COUNT]; double many_roots[COUNT];
int main(void) {
  for (int i = 0; i < COUNT; i++) {
    few_roots[i] = sqrtf(few[i]);
    many_roots[i] = sqrt(many[i]);
  }
  return 0;
}
__asm__(".section .rodata\\n.balign 8\\n.globl few\\nfew: .incbin \\"few.bin\\"\\n"
        ".balign 8\\n.globl many\\nmany: .incbin \\"many.bin\\"\\n.previous\\n");
"""


def test_square_roots() -> None:
    """runtime/square_root.c, where the core has no such instruction, rounds as NumPy does."""
    rng = random.Random("roots")
    count = 4000
    with np.errstate(over="ignore"):
        few = np.ldexp(np.abs(numbers(rng, count, float32, 0.1)), rng.choices(range(-140, 120), k=count))
    many = np.ldexp(np.abs(numbers(rng, count, float64, 0.1)), rng.choices(range(-1060, 1000), k=count))
    many[:3] = few[:3] = -1.0, -np.inf, -0.0
    spec = MachineSpec("rv32imc", ram_bytes=1 << 20)
    files: dict[str, str | bytes] = {
        "main.c": _ROOTS,
        "few.bin": few.tobytes(),
        "many.bin": many.tobytes(),
        **runtime.sources(spec),
    }
    elf = toolchain.build(files, spec.isa, runtime.LINK, tools_of("zig"), [f"-DCOUNT={count}"])
    with open_machine("interpreter", elf, spec) as machine, np.errstate(invalid="ignore"):
        assert machine.run().code == 0
        for name, values in (("few_roots", few), ("many_roots", many)):
            address = machine.program.symbol(name).address
            found = np.frombuffer(machine.read(address, values.nbytes), values.dtype)
            np.testing.assert_array_equal(found, np.sqrt(values))
