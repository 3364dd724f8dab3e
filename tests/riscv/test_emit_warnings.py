"""Generated C is C11 that compilers have nothing to say about, for every core."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bringup.riscv.toolchain import run_compiler
from tests.riscv import test_emit_contractions as contractions
from tests.riscv import test_emit_loops as loops
from tests.riscv import test_emit_strips as strips
from tests.riscv.emitting import FAMILIES, program_of, target_of, tools_of

STRICT = ["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror"]
#: Random kernels compare a value with itself, and unsigned numbers with 0: the C says what the kernel says.
ODD = ["-Wno-type-limits", "-Wno-tautological-compare"]


@pytest.mark.parametrize("isa", ["rv64gc", "rv64gc_zfh", "rv64gcv", "rv32imc", "rv32imfc"])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_warnings(family: str, isa: str, tmp_path: Path) -> None:
    tools = tools_of(family)
    rng = random.Random("warnings")
    makers = [contractions.matrix_trial, contractions.convolution_trial, strips.strip_trial, strips.window_trial]
    trials = [make(rng) for make in makers for _ in range(3)] + loops.trials()[::2]
    program = program_of(trials, target_of(isa, tools), isa.endswith("v"))
    for name, text in program.sources().items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    run_compiler([*tools.command, *tools.flags(isa), *STRICT, *ODD, "-O1", "-c", "kernels.c"], tmp_path)
