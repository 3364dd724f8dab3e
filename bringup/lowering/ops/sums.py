"""Sums, means and products along any dimensions; how many elements are not zero; the trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bringup.ir.dtypes import boolean, int64
from bringup.ir.expr import Cast, Expr, IndexValue, Where, const, unary
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, Tensor
from bringup.lowering.ops.folding import Elements, Reduction, fold
from bringup.lowering.reduction import normalized_dims
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import product


def folding(
    call: Call, x: Tensor, dims: Any, keepdim: bool, value: Callable[[Expr], Expr], op: str = "add", mean: bool = False
) -> None:
    """Combines ``value(element)`` over some dimensions with one op; the mean divides by how many there are."""
    over = normalized_dims(dims, x.ndim)
    count = product(x.shape[d] for d in over)

    def part(piece: Elements) -> tuple[Expr, ...]:
        return (piece.reduce(lambda *j: value(piece(*j)), op),)

    def divided(k: KernelBuilder, states: tuple[Expr, ...]) -> tuple[Expr, ...]:
        (total,) = states
        return (total / Cast(IndexValue(k.size(count)), total.dtype),)

    fold(call, [x], over, keepdim, Reduction(part, op, finish=divided) if mean else Reduction(part, op))


def sum_of(call: Call, x: Tensor, dims: Any, keepdim: bool, op: str = "add", mean: bool = False) -> None:
    """A sum or product of the elements along some dimensions, or their mean."""
    # Integers add up in the type of the result, halves in float32.
    wide = opmath(call.outs[0].dtype)
    folding(call, x, dims, keepdim, lambda value: convert(value, wide), op, mean)


def _register(name: str, some: str, op: str, mean: bool = False) -> None:
    def over_some(call: Call, self: Tensor, dim: Any, keepdim: bool, dtype: int | None) -> None:
        sum_of(call, self, dim, keepdim, op, mean)

    def over_all(call: Call, self: Tensor, dtype: int | None) -> None:
        sum_of(call, self, None, False, op, mean)

    lowering(f"aten::{name}.{some}")(over_some)
    lowering(f"aten::{name}")(over_all)


_register("sum", "dim_IntList", "add")
_register("mean", "dim", "add", mean=True)
_register("prod", "dim_int", "mul")


@lowering("aten::nansum")
def nansum(call: Call, self: Tensor, dim: Any, keepdim: bool, dtype: int | None) -> None:
    """Sum of what is not NaN."""
    wide = opmath(call.outs[0].dtype)

    def value(x: Expr) -> Expr:
        given = convert(x, wide)
        return Where(unary("isnan", given), const(0, wide), given) if wide.is_float else given

    folding(call, self, dim, keepdim, value)


def truth(value: Expr) -> Expr:
    """True where a value is not 0; NaN is true."""
    return convert(value, boolean)


@lowering("aten::count_nonzero", "aten::count_nonzero.dim_IntList")
def count_nonzero(call: Call, self: Tensor, dim: int | Sequence[int] | None) -> None:
    """How many elements are not 0."""
    folding(call, self, dim, False, lambda value: convert(truth(value), int64))


@lowering("aten::trace")
def trace(call: Call, self: Tensor) -> None:
    """Sum of the diagonal."""
    rows, columns = self.shape
    length = rows if rows <= columns else columns
    diagonal = self.view([length], [self.strides[0] + self.strides[1]])
    sum_of(call, diagonal, None, False)
