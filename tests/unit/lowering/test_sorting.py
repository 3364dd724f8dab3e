"""Sort, topk, kthvalue and median: stable, NaN last, any dimension and length."""

from __future__ import annotations

import math

import pytest
import torch

from tests.unit.lowering.interpreted import check, interpret


@pytest.mark.parametrize("shape", [(7,), (1, 5), (4, 33), (3, 5, 2), (0,), (3, 0), ()])
@pytest.mark.parametrize("descending", [False, True])
def test_sort(shape: tuple[int, ...], descending: bool) -> None:
    x = torch.randint(-3, 4, shape)
    for dim in range(-1, max(len(shape) - 1, 0)):
        check("aten::sort.stable", x, True, dim, descending)  # equal elements keep their order
        check("aten::sort.stable", x.float(), True, dim, descending)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.randint(0, 3, (5, 6)).to(dtype)
    check("aten::sort.stable", x.t(), True, 0, False)


def test_nan_is_the_largest() -> None:
    x = torch.tensor([[1.0, math.nan, -math.inf, math.inf, math.nan, -0.0, 0.0]])
    for descending in (False, True):
        check("aten::sort.stable", x, True, 1, descending)


@pytest.mark.parametrize("largest", [False, True])
def test_topk(largest: bool) -> None:
    x = torch.randperm(60).float().reshape(4, 15)
    check("aten::topk", x, 4, 1, largest, True)
    check("aten::topk", x.t(), 3, 0, largest, True)
    check("aten::topk", x, 0, 1, largest, True)


def test_kthvalue_and_median() -> None:
    x = torch.randperm(60).float().reshape(4, 15)
    for keepdim in (False, True):
        check("aten::kthvalue", x, 3, 1, keepdim)
        check("aten::median.dim", x, 0, keepdim)
        check("aten::median.dim", x, 1, keepdim)
    check("aten::median", x)
    x[2, 3] = math.nan
    check("aten::median.dim", x, 1, False)
    check("aten::median", x)


def _line(dtype: torch.dtype, extent: int, kind: str) -> torch.Tensor:
    """Two lines of a kind: many equal elements, all there is of a type, or one number."""
    if kind == "one":
        return torch.full((2, extent), 3).to(dtype)
    if kind == "few":
        return torch.randint(0, 5, (2, extent)).to(dtype)
    if not dtype.is_floating_point:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        return torch.randint(low, high, (2, extent), dtype=dtype)
    x = torch.randn(2, extent).to(dtype)
    x[0, :6] = torch.tensor([math.nan, -math.inf, math.inf, -0.0, 0.0, math.nan])
    return x


LONG = [torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", LONG)
@pytest.mark.parametrize("extent", [16, 33, 64, 65])
@pytest.mark.parametrize("kind", ["one", "few", "wide"])
def test_lines_by_counting_and_by_digits(dtype: torch.dtype, extent: int, kind: str) -> None:
    x = _line(dtype, extent, kind)
    for descending in (False, True):
        check("aten::sort.stable", x, True, 1, descending)


def test_long_lines_have_wider_digits() -> None:
    check("aten::sort.stable", _line(torch.int64, 2048, "few")[:1], True, 1, False)


@pytest.mark.parametrize("dtype", LONG)
@pytest.mark.parametrize("kind", ["one", "few", "wide"])
def test_the_first_are_those_of_the_stable_order(dtype: torch.dtype, kind: str) -> None:
    for extent in (40, 70):
        x = _line(dtype, extent, kind)
        for largest in (False, True):
            values, places = x.sort(dim=1, descending=largest, stable=True)
            for kept in (1, extent // 2):
                found = interpret("aten::topk", x, kept, 1, largest, True)
                assert torch.equal(found[1], places[:, :kept])
                assert torch.equal(found[0].nan_to_num(7), values[:, :kept].nan_to_num(7))


@pytest.mark.parametrize("dtype", LONG)
@pytest.mark.parametrize("kind", ["one", "few", "wide"])
def test_the_one_of_a_rank_in_long_lines(dtype: torch.dtype, kind: str) -> None:
    x = _line(dtype, 70, kind)
    values, places = x.sort(dim=1, stable=True)
    for k in (1, 70):
        found = interpret("aten::kthvalue", x, k, 1, False)
        assert torch.equal(found[1], places[:, k - 1])
        assert torch.equal(found[0].nan_to_num(7), values[:, k - 1].nan_to_num(7))
    for name in ("median", "nanmedian"):
        expected = getattr(x, name)(1).values
        assert torch.equal(interpret(f"aten::{name}.dim", x, 1, False)[0].nan_to_num(7), expected.nan_to_num(7))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["one", "wide"])
def test_a_few_of_a_long_line_leave_groups_out(dtype: torch.dtype, kind: str) -> None:
    x = _line(dtype, 515, kind)  # the last group has 3 elements
    x[1, 514], x[1, 0] = x[1].max(), x[1].min()
    for largest in (False, True):
        values, places = x.sort(dim=1, descending=largest, stable=True)
        found = interpret("aten::topk", x, 3, 1, largest, True)
        assert torch.equal(found[1], places[:, :3])
        assert torch.equal(found[0].nan_to_num(7), values[:, :3].nan_to_num(7))
