"""Running sums, products, extrema and logsumexp against PyTorch's CPU."""

from __future__ import annotations

import math

import pytest
import torch

from bringup.lowering.ops import scans
from tests.unit.lowering.interpreted import check

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
SUMS = ("cumsum", "cumprod")
EXTREMA = ("cummax", "cummin")


def sample(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0 if dtype in (torch.uint8, torch.bool) else -3, 4, shape).to(dtype)


TYPES = [(overload, dtype) for overload in (*SUMS, *EXTREMA) for dtype in FLOATS + INTEGERS]
TYPES += [("logcumsumexp", dtype) for dtype in FLOATS]


@pytest.mark.parametrize(("overload", "dtype"), TYPES)
def test_types_and_layouts(overload: str, dtype: torch.dtype) -> None:
    x = sample((3, 9, 5), dtype)
    if overload == "logcumsumexp":
        x = x + 3  # away from 0, where a logarithm has no relative accuracy
    for view in (x, x.permute(2, 0, 1), x[::2, :, 1:], x[:1].expand(3, 9, 5)):
        for dim in range(3):
            check(f"aten::{overload}", view, dim)
    check(f"aten::{overload}", x[0, 0, 0], 0)
    check(f"aten::{overload}", x[:, :0], 1)
    check(f"aten::{overload}", x[:, :0], 0)


@pytest.mark.parametrize("overload", SUMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32])
def test_dtype_argument(overload: str, dtype: torch.dtype) -> None:
    for given in (torch.int32, torch.float32, torch.bool):
        check(f"aten::{overload}", sample((3, 9), given), 1, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_inf_and_ties(dtype: torch.dtype) -> None:
    inf, nan = math.inf, math.nan
    for values in ([1, 2, 2, 1, 3], [1, nan, 2, nan, 5], [-inf, -inf, inf, inf, 0], [inf, -inf, 1], [nan], [-inf, nan]):
        for overload in (*SUMS, *EXTREMA, "logcumsumexp"):
            check(f"aten::{overload}", torch.tensor(values, dtype=dtype), 0)


@pytest.mark.parametrize("overload", [*SUMS, *EXTREMA, "logcumsumexp"])
def test_long_lines_are_cut(overload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "LONG", 64)
    monkeypatch.setattr(scans, "PIECE", 16)
    nan = sample((100,)).round()
    nan[[40, 60]] = math.nan
    for x, dim in ((sample((77,)), 0), (sample((2, 64)), 1), (sample((69, 3)), 0), (nan, 0), (nan.int(), 0)):
        if overload != "logcumsumexp" or x.is_floating_point():
            check(f"aten::{overload}", x, dim)


def test_really_long() -> None:
    check("aten::cumsum", sample((66_000,)), 0)
