"""A hundred random programs, compiled against eager on the device: the same bits, or as close to float64."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.graph import random_programs
from tests.sweeps import swept_unless

pytestmark = pytest.mark.filterwarnings("ignore:Tensor.mT is deprecated", "ignore:(var|std).*degrees of freedom")

PROGRAMS = 100
#: Of these `make test` runs the first; each is a compilation by Dynamo and gcc.
KEPT = 25


def compiler_of(backend: Any) -> Callable[[Any], Any]:
    def compiler(function: Any) -> Any:
        torch._dynamo.reset()
        return torch.compile(function, backend=backend, fullgraph=True, dynamic=False)

    return compiler


@pytest.mark.parametrize("seed", swept_unless(range(KEPT), range(PROGRAMS)))
def test_compiled_is_eager(seed: int, device: str, backend: str) -> None:
    program = random_programs.make(seed)
    if wrong := random_programs.report(program, device, compiler_of(backend)):
        pytest.fail(wrong, pytrace=False)


def test_programs_are_varied() -> None:
    """Every kind of statement occurs, and no program is trivial."""
    programs = [random_programs.make(seed) for seed in range(PROGRAMS)]
    assert all(len(program.statements) >= 8 for program in programs)
    text = "\n".join(program.source() for program in programs)
    for word in ("sum(", "mean(", "@", "torch.where(", "torch.cat(", "[i]", "_(", "f16", ".t()", "x3[1:]", "expand("):
        assert word in text, word
    assert any(0 in shape for program in programs for shape in program.shapes)
    assert any(shape == () for program in programs for shape in program.shapes)
    statements = [line for program in programs for line in program.statements]
    assert any(re.match(r"x\d.*_\(", line) for line in statements), "an input is changed in place"
    assert any(re.match(r"t\d.*(_\(|\] ?=)", line) for line in statements), "a variable is changed in place"


def test_a_wrong_backend_is_caught_and_made_small(device: str) -> None:
    """A backend that computes sin for cos: the report is one or two statements long and names them."""

    def wrong(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        for node in module.graph.nodes:
            if node.op == "call_method" and node.target == "cos":
                node.target = "sin"
        module.recompile()
        return module

    seed = next(n for n in range(PROGRAMS) if ".cos()" in random_programs.make(n).source())
    said = random_programs.report(random_programs.make(seed), device, compiler_of(wrong))
    assert ".cos()" in said
    body = said.split("def program")[1].split("    return")[0].splitlines()[1:]
    assert len(body) <= 3, said
