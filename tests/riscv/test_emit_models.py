"""The steps of whole models after the passes, each on the memory that it finds in the model: guests give the same bits.

These are the kernels that passes make: windows with their pooling, long rows, padded copies, joined axes.
"""

from __future__ import annotations

import pytest

from bringup.graph.bare_metal.passes import arranged
from tests.riscv.emitting import FAMILIES, run_program, run_trials
from tests.riscv.static_models import flat, together


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("isa", ["rv64gc", "rv64gcv"])
def test_steps_of_models(isa: str, family: str) -> None:
    _, arguments, program = together()
    trials = run_program(arranged(program, isa == "rv64gcv"), [flat(argument) for argument in arguments]).trials
    how = [one.how for one in run_trials(trials, isa, family).kernels.rendered]
    if isa == "rv64gcv":
        assert sum("vectors" in one for one in how) > len(how) / 2, how
    else:
        assert sum("pooled" in one for one in how) >= 4, how
