"""Of the forms of a kernel the program gets the one with the fewest instructions, so vectors never cost any."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import bringup
from benchmarks.riscv_layers import counted
from bringup.graph.bare_metal import choosing
from bringup.graph.bare_metal.choosing import Form
from bringup.graph.bare_metal.passes import arranged
from bringup.graph.bare_metal.static_program import StaticProgram
from bringup.riscv.toolchain import Toolchain, ToolchainMissing, find_toolchain
from bringup.targets.riscv.target import RiscvTarget
from tests.riscv.static_models import program_of_model

#: Of benchmarks/riscv_layers.py those where vectors once cost more than none, and some of each kind.
SAMPLE = (
    "depthwise 5 × 5, mish",
    "attention, causal",
    "gelu",
    "softmax, short rows",
    "layer norm",
    "max pool 3, stride 2",
    "average pool 3, padded",
    "adaptive average pool",
    "upsample, bilinear",
    "pixel shuffle",
    "pad, reflection",
    "gather",
    "topk",
    "median",
    "linear, float16",
    "conv, int8",
)
TARGET = RiscvTarget(vector_bytes=64, isa="rv64gcv", assembly=True)
BUILD = "bringup.graph.bare_metal.build.chosen_forms"


@pytest.mark.parametrize("layer", SAMPLE)
def test_no_layer_is_slower_with_vectors(layer: str) -> None:
    counts = counted(layer)
    assert not counts.slower, counts


def model() -> tuple[nn.Module, torch.Tensor]:
    """Steps that want vectors of either length, and none."""
    torch.manual_seed(0)
    return nn.Sequential(nn.GELU(), nn.AdaptiveAvgPool1d(7), nn.Softmax(-1), nn.PixelShuffle(2)), torch.randn(4, 8, 24)


def instructions() -> int:
    torch._dynamo.reset()
    (net, x), backend = model(), bringup.Backend(target="riscv", vector=128)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(net, backend=backend)(x), net(x))
    return backend.reports()[0].instructions


def program() -> StaticProgram:
    net, x = model()
    return arranged(program_of_model(net, x), True)


def fixed(number: int) -> Callable[[StaticProgram, RiscvTarget, str], list[Form]]:
    """A choice of the same form for every step that has several."""

    def forms(program: StaticProgram, target: RiscvTarget, family: str) -> list[Form]:
        several = [
            choosing._forms(step, first, find_toolchain(family or None))
            for step, first in zip(program.steps, choosing.first_forms(program, target))
        ]
        return [one[min(number, len(one) - 1)] for one in several]

    return forms


def test_the_choice_is_no_slower_than_one_form_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = choosing.chosen_forms(program(), TARGET, "")
    assert len({form.target.vector_bytes for form in chosen}) > 1
    free, of_one = instructions(), []
    for number in range(3):
        monkeypatch.setattr(BUILD, fixed(number))
        of_one.append(instructions())
    assert free < min(of_one)


def test_first_forms_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(family: str | None) -> Toolchain:
        raise ToolchainMissing("none")

    monkeypatch.setattr(choosing, "find_toolchain", missing)
    assert choosing.chosen_forms(program(), TARGET, "") == choosing.first_forms(program(), TARGET)


def test_first_forms_with_a_broken_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Toolchain(("false",), "clang")
    monkeypatch.setattr(choosing, "find_toolchain", lambda family: broken)
    assert choosing.chosen_forms(program(), TARGET, "") == choosing.first_forms(program(), TARGET)


def test_scalar_cores_have_nothing_to_choose() -> None:
    scalar = RiscvTarget(vector_bytes=0, isa="rv64gc")
    assert choosing.chosen_forms(program(), scalar, "") == choosing.first_forms(program(), scalar)


def test_a_form_that_runs_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every form is over the limit the first stays, and the trials after it are counted all the same."""
    monkeypatch.setattr(choosing, "_MOST", 300)
    monkeypatch.setattr(choosing, "kept", lambda key, count: count())
    chosen = choosing.chosen_forms(program(), TARGET, "")
    assert len(chosen) == len(program().steps)
    assert instructions() > 0


def test_a_matrix_engine_is_not_compared_with_code() -> None:
    """Trials have no engine: its products are taken as they are, and what follows them is chosen all the same."""
    torch._dynamo.reset()
    net, x = nn.Sequential(nn.Linear(32, 24), nn.GELU()), torch.randn(16, 32)
    backend = bringup.Backend(target="riscv", vector=128, accelerator="gemm@0x10320000")
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(net, backend=backend)(x), net(x))
    assert [layer.how for layer in backend.reports()[0].layers] == ["matrix engine", "loops in vectors"]
