"""Softmax and log_softmax, forward and backward, against PyTorch's CPU."""

from __future__ import annotations

import math

import pytest
import torch

from bringup.lowering.ops import folding
from tests.unit.lowering.interpreted import check

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FORWARD = ("_softmax", "_log_softmax")


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape).to(dtype)


def both_ways(x: torch.Tensor, dim: int) -> None:
    for forward in FORWARD:
        check(f"aten::{forward}", x, dim, False)
        y = getattr(torch.ops.aten, forward)(x, dim, False)
        grad = sample(*x.shape, dtype=x.dtype).flip(0) if x.ndim else torch.ones_like(x)
        check(f"aten::{forward}_backward_data", grad, y, dim, x.dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_types_and_layouts(dtype: torch.dtype) -> None:
    x = sample(3, 37, 5, dtype=dtype)
    for view in (x, x.permute(2, 0, 1), x[:, ::2, 1:], x[:1].expand(3, 37, 5)):
        for dim in range(3):
            both_ways(view, dim)
    both_ways(sample(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last), 1)
    both_ways(torch.tensor(2.0, dtype=dtype), -1)
    both_ways(x[:, :0], 1)
    both_ways(x * 300 if dtype is not torch.float16 else x * 100, -2)


def test_long_lines_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("LONG", 256), ("PIECE", 64), ("LONG_ACROSS", 128), ("PIECE_ACROSS", 32)):
        monkeypatch.setattr(folding, name, number)
    both_ways(sample(700), 0)
    both_ways(sample(2, 512), 1)
    both_ways(sample(300, 3), 0)
    masked = sample(700)
    masked[:400] = -math.inf
    check("aten::_softmax", masked, 0, False)
    check("aten::_safe_softmax", masked * math.inf, 0)


def test_infinities() -> None:
    inf, nan = math.inf, math.nan
    for values in ([1.0, -inf, 2.0], [-inf, -inf], [inf, 1.0], [nan, 1.0], [1e30, -1e30]):
        x = torch.tensor([values])
        for forward in FORWARD:
            check(f"aten::{forward}", x, 1, False)
        check("aten::_safe_softmax", x, 1)
    check("aten::_safe_softmax", sample(3, 5), 0, torch.float64)
