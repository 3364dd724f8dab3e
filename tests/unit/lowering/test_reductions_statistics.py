"""Variances, norms, distances and logsumexp against PyTorch's CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.unit.lowering.interpreted import check

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape).to(dtype)


@pytest.mark.parametrize("overload", ["var", "std", "var_mean", "std_mean"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_variance(overload: str, dtype: torch.dtype) -> None:
    op = f"aten::{overload}.correction"
    x = sample(6, 35, 4, dtype=dtype) + 3
    for dims in ([0], [1], [-1], [0, 2], None):
        for correction in (None, 0, 1, 2.5):
            check(op, x, dims, correction, dims == [1])
    check(op, x.transpose(0, 1), [0, 1], 1, False)
    check(op, x[:, ::2], None, 0, False)
    check(op, x[:1], [0], None, False)  # one element, correction 1
    check(op, x[:1], [0], 3, False)
    check(op, x[:0], [0], None, False)
    check(op, torch.tensor(2.0, dtype=dtype), None, 0, False)
    check(op, torch.tensor([1.0, math.nan, math.inf], dtype=dtype), None, 1, False)


@pytest.mark.parametrize("shape", [(200_001,), (70_000, 3), (3, 70_000)])
def test_variance_of_long_rows(shape: tuple[int, ...]) -> None:
    x = sample(*shape) + 100  # the mean is large: sums of squares would lose everything
    check("aten::var_mean.correction", x, None, 1, False)
    check("aten::std.correction", x, [0], 1, False)
    check("aten::logsumexp", x, [0])
    check("aten::linalg_vector_norm", x, 3, [0])


POWERS: list[Any] = [0, 1, 2, 2.0, 3, 2.5, -1, math.inf, -math.inf]


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_norms(p: Any, dtype: torch.dtype) -> None:
    x = sample(5, 36, dtype=dtype)
    x[0, 0] = 0
    check("aten::linalg_vector_norm", x, p)
    check("aten::linalg_vector_norm", x.t(), p, [0], True)
    check("aten::linalg_vector_norm", x, p, [0, 1])
    check("aten::norm.Scalar", x, p)
    check("aten::norm.ScalarOpt_dim", x, p, [1], False)
    check("aten::dist", x, x.flip(0), p)
    check("aten::dist", x, x[:1], p)
    check("aten::linalg_vector_norm", torch.tensor([1.0, math.nan, -math.inf], dtype=dtype), p)
    if dtype is torch.float16:
        check("aten::linalg_vector_norm", x, p, None, False, torch.float32)
        check("aten::norm.ScalarOpt_dtype", x, p, torch.float32)
        check("aten::norm.ScalarOpt_dim_dtype", x, p, [1], True, torch.float32)


def test_norm_of_nothing() -> None:
    for p in (0, 1, 2, 3):
        check("aten::linalg_vector_norm", torch.zeros(0), p)
    check("aten::norm.ScalarOpt_dim", sample(3, 4), None, [1], False)


@pytest.mark.parametrize("dtype", FLOATS)
def test_logsumexp(dtype: torch.dtype) -> None:
    x = sample(5, 36, 3, dtype=dtype) * 10
    for dims in ([0], [1], [-1], [0, 2], [0, 1, 2]):
        check("aten::logsumexp", x, dims)
        check("aten::logsumexp", x.transpose(0, 2), dims, True)
    inf, nan = math.inf, math.nan
    for values in ([inf, 1.0], [-inf, 1.0], [-inf, -inf], [inf, -inf], [nan, 1.0], [1e4, 1e4], []):
        check("aten::logsumexp", torch.tensor(values, dtype=dtype), [0])
    check("aten::logsumexp", torch.arange(12).view(3, 4), [1])
