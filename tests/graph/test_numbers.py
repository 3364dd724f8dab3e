"""Python numbers beside tensors: a compiled program promotes types by them as eager PyTorch does."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.graph.comparing import Compile

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


def test_numbers_of_other_types_one_after_another(compiled: Compile, numbers: Any) -> None:
    """A graph for integers is not taken for True."""
    x = numbers(6)
    for function in (lambda x, s: (x > 0) * s + s, lambda x, s: (x * (s / 2)).clamp(max=s), lambda x, s: x * s):
        run = compiled(function)
        for number in (1.5, 2.5, 3, 7, True, False, 0.0, 4):
            ours, theirs = run(x, number), function(x, number)
            assert ours.dtype == theirs.dtype, number
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
