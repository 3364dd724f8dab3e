"""Sort, topk, kthvalue and median: stable, NaN last, any dimension and length."""

from __future__ import annotations

import math

import pytest
import torch

from tests.unit.lowering.interpreted import check


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
