"""Histograms over edges: each element's bin by bisection, then what the elements of a bin weigh."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bringup.lowering.composed import into, only
from bringup.lowering.registry import composed


def _outer_edges(self: Tensor, given: Sequence[float] | None) -> tuple[float, float]:
    """The first and the last edge: as given, or the smallest and the largest element; never the same."""
    low, high = 0.0, 1.0
    if given is not None:
        low, high = given
    elif self.numel():
        low, high = torch.stack(torch.aminmax(self)).tolist()
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"torch.histogram(): the range [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError(f"torch.histogram(): min should not exceed max, but got min {low} max {high}")
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _histogram(self: Tensor, edges: Tensor, weight: Tensor | None, density: bool) -> Tensor:
    only(self, (torch.float32, torch.float64, torch.bfloat16, torch.float16), "histogram")
    if edges.dtype != self.dtype or (weight is not None and weight.dtype != self.dtype):
        raise RuntimeError("torch.histogram: input tensor, bins and weight should have the same dtype")
    if weight is not None and weight.shape != self.shape:
        raise RuntimeError("torch.histogram: if weight tensor is provided it should have the same shape as the input")
    flat = self.reshape(-1)
    inside = (flat >= edges[0]) & (flat <= edges[-1])
    bins = edges.shape[0] - 1
    position = (torch.searchsorted(edges, flat, right=True) - 1).clamp_(0, max(bins - 1, 0))
    added = torch.ones_like(flat) if weight is None else weight.reshape(-1)
    wide = torch.promote_types(self.dtype, torch.float32)
    result = torch.zeros(bins, dtype=wide, device=self.device)
    result.scatter_add_(0, position, torch.where(inside, added, 0).to(wide))
    return (result / result.sum() / (edges[1:] - edges[:-1]) if density else result).to(self.dtype)


@composed("aten::histogram.bin_ct")
def histogram(
    self: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """Bins of the same width."""
    if bins <= 0:
        raise RuntimeError(f"torch.histogram(): bins must be > 0, but got {bins}")
    if range is None and self.numel():
        only(self, (torch.float32, torch.float64), "histogram")
    low, high = _outer_edges(self, range)
    edges = torch.linspace(low, high, bins + 1, dtype=self.dtype, device=self.device)
    return _histogram(self, edges, weight, density), edges


@composed("aten::histogram.bins_tensor")
def histogram_of_edges(
    self: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    """Bins between given edges."""
    if bins.ndim != 1 or bins.numel() == 0:
        raise RuntimeError("torch.histogram(): bins tensor should be 1-d with at least one element")
    return _histogram(self, bins, weight, density), bins.clone()


@composed("aten::histogram.bin_ct_out")
def histogram_out(
    self: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
    hist: Tensor,
    bin_edges: Tensor,
) -> tuple[Tensor, Tensor]:
    """The same into tensors."""
    found = histogram(self, bins, range=range, weight=weight, density=density)
    return into(hist, found[0]), into(bin_edges, found[1])


@composed("aten::histogram.bins_tensor_out")
def histogram_of_edges_out(
    self: Tensor,
    bins: Tensor,
    *,
    weight: Tensor | None = None,
    density: bool = False,
    hist: Tensor,
    bin_edges: Tensor,
) -> tuple[Tensor, Tensor]:
    """The same into tensors."""
    found = histogram_of_edges(self, bins, weight=weight, density=density)
    return into(hist, found[0]), into(bin_edges, found[1])
