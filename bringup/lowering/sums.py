"""Sums and means along any dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bringup.ir.expr import Cast, IndexValue
from bringup.lowering.builder import convert
from bringup.lowering.call import Call, Tensor
from bringup.lowering.reduction import normalized_dims, rows
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath


def _sum(call: Call, x: Tensor, dims: Sequence[int], keepdim: bool, mean: bool) -> None:
    k = call.kernel()
    row, (y,) = rows(k, x, dims, call.outs, keepdim)
    # Integers add up in the type of the result, halves in float32.
    total = k.reduce(row.folded, lambda *j: convert(row(*j), opmath(y.dtype)))
    count = Cast(IndexValue(k.size(row.count)), total.dtype)
    k.store(y, row.kept, total / count if mean else total)
    k.launch()


@lowering("aten::sum.dim_IntList")
def sum_dims(call: Call, self: Tensor, dim: Any, keepdim: bool, dtype: int | None) -> None:
    """Sum over some dimensions."""
    _sum(call, self, normalized_dims(dim, self.ndim), keepdim, mean=False)


@lowering("aten::mean.dim")
def mean_dims(call: Call, self: Tensor, dim: Any, keepdim: bool, dtype: int | None) -> None:
    """Mean over some dimensions."""
    _sum(call, self, normalized_dims(dim, self.ndim), keepdim, mean=True)


@lowering("aten::sum")
def sum_all(call: Call, self: Tensor, dtype: int | None) -> None:
    """Sum of everything."""
    _sum(call, self, range(self.ndim), False, mean=False)
