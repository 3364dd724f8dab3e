"""Python numbers beside tensors: a compiled program promotes types by them as eager PyTorch does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import bringup
import bringup.jit
from tests.graph.comparing import Compile
from tests.graph.number_programs import DTYPES, FEW, MORE, NUMBERS, expressions, inputs, program, scriptable, scripted

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # TorchScript is deprecated as a whole
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),  # torch.export copies its own trees
]

FORMS: dict[str, Any] = {
    "truth times a float": lambda b, i, x: b * 0.5,
    "truth plus an integer": lambda b, i, x: b + 1,
    "an integer tensor times a float": lambda b, i, x: i * 0.5,
    "a number divided by a tensor": lambda b, i, x: 2.5 // x,
    "a mask of large negative numbers": lambda b, i, x: (x + (~b) * -1e9).softmax(-1),
    "truth plus a size": lambda b, i, x: b + x.shape[0],
    "a fraction of a size": lambda b, i, x: i * (1 / x.shape[0]) + x * math.sqrt(x.shape[0]),
    "a number that its type does not have": lambda b, i, x: i.to(torch.uint8) + 300,
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_python_numbers_promote(compiled: Compile, numbers: Any, dynamic: bool) -> None:
    """A number in the place of a tensor counts as PyTorch's wrapped numbers do: (x > 0) * 0.5 is a float."""

    def everything(b: torch.Tensor, i: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        return [function(b, i, x) for function in FORMS.values()]

    run = compiled(everything, dynamic=dynamic)
    for length in (6, 9):
        x = numbers(length)
        given = x > 0, (x * 10).int(), x
        for name, ours, theirs in zip(FORMS, run(*given), everything(*given)):
            assert ours.dtype == theirs.dtype, name
            torch.testing.assert_close(
                ours, theirs, rtol=2e-6, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_a_float_has_the_default_dtype(how: str, compiled: Compile, device: str) -> None:
    """Whole numbers times 0.3 are computed in the default dtype: in float32 they would differ in the eighth digit."""

    def everything(i: torch.Tensor) -> list[torch.Tensor]:
        return [i * 0.3, i + 0.3, 0.3 - i, (i > 2) * 0.3, i.clamp(0.3), i**0.3, i % 0.3, torch.where(i > 2, i, 0.3)]

    i = torch.arange(6)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            run = everything if how == "eager" else compiled(everything)
            found, expected = run(i.to(device)), everything(i)
        finally:
            torch.set_default_dtype(torch.float32)
        for ours, theirs in zip(found, expected):
            torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("how", ["eager", "compiled"])
@pytest.mark.parametrize("number", [300, -200])
def test_a_number_that_its_type_does_not_have(how: str, number: int, compiled: Compile, device: str) -> None:
    """An operand that is a Scalar wraps around as a tensor does; a value to fill with is refused, as on the CPU."""

    def everything(x: torch.Tensor) -> list[torch.Tensor]:
        comparisons = x == number, x != number, x < number, x <= number, x > number, x >= number
        modes = [torch.ops.aten.div.Scalar_mode(x, number, rounding_mode=mode) for mode in ("trunc", "floor")]
        return [*comparisons, *modes, x & number, x | number, x.fmod(number), x % number, x.clone().lt_(number)]

    for dtype in (torch.uint8, torch.int8):
        x = torch.tensor([0, 1, 44, 56, 100, 127]).to(dtype)
        run = everything if how == "eager" else compiled(everything)
        for ours, theirs in zip(run(x.to(device)), everything(x)):
            torch.testing.assert_close(ours.cpu(), theirs)
    for where in ("cpu", device):
        with pytest.raises(RuntimeError, match="without overflow"):
            torch.zeros(2, dtype=torch.int8, device=where).fill_(number)


def test_numbers_of_other_types_one_after_another(compiled: Compile, numbers: Any) -> None:
    """A graph for integers is not taken for True."""
    x = numbers(6)
    for function in (lambda x, s: (x > 0) * s + s, lambda x, s: (x * (s / 2)).clamp(max=s), lambda x, s: x * s):
        run = compiled(function)
        for number in (1.5, 2.5, 3, 7, True, False, 0.0, 4):
            ours, theirs = run(x, number), function(x, number)
            assert ours.dtype == theirs.dtype, number
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


# ---- the table: ops × dtypes × numbers, and every way to run a program ----


class _Module(torch.nn.Module):
    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.run(*tensors)


def _results(how: str, run: Any, given: Sequence[torch.Tensor], folder: Path) -> Sequence[torch.Tensor]:
    on_device = [tensor.to("sim") for tensor in given]
    if how == "riscv":
        backend = bringup.Backend(target="riscv")
        found = torch.compile(run, backend=backend, dynamic=False)(*given)
        assert len(backend.reports()) == 1, "it ran somewhere else"
    elif how == "exported":
        out = bringup.export(_Module(run), tuple(given), out=folder / "numbers.bup", target="host")
        found = bringup.load(out)(*on_device)
    elif how == "scripted":
        bringup.jit.enable(driver="sim")
        try:
            found = [run(*on_device) for _ in range(3)][-1]
            assert any(group.compiled for group in bringup.jit.report(run).groups)
        finally:
            bringup.jit.disable()
    elif how == "eager":
        found = run(*on_device)
    else:
        found = torch.compile(run, backend="bringup", dynamic=how == "dynamic")(*on_device)
    return [tensor.cpu() for tensor in found]


def _agrees(how: str, dtype: str, numbers: Sequence[str], forms: Sequence[str], folder: Path) -> None:
    names = expressions(dtype, numbers, forms, kernels=how in ("exported", "riscv"))
    given = list(inputs(dtype).values())
    names = scriptable(names, given) if how == "scripted" else names
    assert len(names) > 5
    run = program(names)
    used = scripted(names) if how == "scripted" else run
    for name, ours, theirs in zip(names, _results(how, used, given, folder), run(*given), strict=True):
        rough = theirs.dtype in (torch.float16, torch.bfloat16)
        torch.testing.assert_close(
            ours,
            theirs,
            equal_nan=True,
            rtol=1e-2 if rough else 1e-5,
            atol=1e-2 if rough else 1e-6,  # the CPU rounds a 0-dim operand to a half first
            msg=lambda text, name=name: f"{name} of {dtype}, {how}: {text}",
        )


@pytest.mark.parametrize("dtype", ["bool", "int32", "float16"])
@pytest.mark.parametrize("how", ["static", "dynamic", "exported", "scripted", "riscv"])
def test_ops_of_a_tensor_and_a_number(how: str, dtype: str, tmp_path: Path) -> None:
    _agrees(how, dtype, ["True", "3", "0.5"], FEW, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["eager", "static", "dynamic", "exported", "scripted", "riscv"])
def test_all_ops_of_a_tensor_and_a_number(how: str, dtype: str, number: str, tmp_path: Path) -> None:
    _agrees(how, dtype, [number], [*FEW, *MORE], tmp_path)
