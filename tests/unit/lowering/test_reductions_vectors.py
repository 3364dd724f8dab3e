"""Distances, renorm, weight norm, cross products and histc against PyTorch's CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.unit.lowering.interpreted import check

POWERS: list[Any] = [0.0, 1.0, 2.0, 1.5, 3.0, math.inf]
FLOATS = (torch.float32, torch.float64)


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape).to(dtype)


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_distances(p: float, dtype: torch.dtype) -> None:
    a, b = sample(2, 5, 7, dtype=dtype), sample(2, 4, 7, dtype=dtype)
    b[0, 0] = a[0, 0]  # a distance of 0
    b[0, 1, 0] = a[0, 0, 0]
    for x, y in ((a, b), (a[0], b[0]), (a.transpose(1, 2).contiguous().transpose(1, 2), b), (a[:, :0], b)):
        check("aten::_cdist_forward", x, y, p, 2)
        distances = torch.ops.aten._cdist_forward(x, y, p, 2)
        if x.is_contiguous() and x.numel():
            check("aten::_cdist_backward", distances * 0 + 2, x, y, p, distances, factor=8)
    check("aten::_pdist_forward", a[0], p)
    check("aten::_pdist_forward", a[0, :1], p)
    distances = torch.ops.aten._pdist_forward(a[0], p)
    check("aten::_pdist_backward", distances * 0 + 2, a[0], p, distances, factor=8)


def test_euclidean_distance_of_a_broadcast_batch() -> None:
    check("aten::_euclidean_dist", sample(5, 7), sample(4, 7))
    check("aten::_cdist_forward", sample(3, 1, 5, 7), sample(2, 4, 7), 2.0, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_renorm_and_weight_norm(dtype: torch.dtype) -> None:
    x = sample(4, 5, 6, dtype=dtype)
    for dim in (0, 1, -1):
        for p in (1, 2, 2.5, math.inf):
            check("aten::renorm", x, p, dim, 3.0)
    check("aten::renorm", x.transpose(0, 1), 2, 0, 2)
    for dim in (0, 2):
        g = sample(*(extent if d == dim else 1 for d, extent in enumerate(x.shape)), dtype=dtype)
        check("aten::_weight_norm_interface", x, g, dim)
        _, norms = torch.ops.aten._weight_norm_interface(x, g, dim)
        check("aten::_weight_norm_interface_backward", x.flip(0), x, g, norms, dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_cross(dtype: torch.dtype) -> None:
    a, b = sample(4, 3, dtype=dtype), sample(3, 4, dtype=dtype)
    check("aten::linalg_cross", a, b.t())
    check("aten::linalg_cross", b, b.flip(1), 0)
    check("aten::linalg_cross", a, a[:1])
    check("aten::linalg_cross", sample(0, 3, dtype=dtype), sample(0, 3, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histc(dtype: torch.dtype) -> None:
    x = sample(20, 11, dtype=dtype)
    for view in (x, x.t(), x[::2, 1:], x[:0], x[0, 0]):
        check("aten::histc", view, 7, -1, 1.5)
        if view.numel():
            check("aten::histc", view, 5)
    check("aten::histc", torch.tensor([math.nan, 1.0, 2.0, 3.0], dtype=dtype), 3, 1, 3)
    check("aten::histc", torch.ones(5, dtype=dtype), 3)
