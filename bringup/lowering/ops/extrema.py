"""Largest and smallest elements and where they are: NaN wins, and of equal elements the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bringup.ir.dtypes import int64
from bringup.ir.expr import Binary, Cast, Expr, Where, const, unary
from bringup.ir.index import AxisVar
from bringup.lowering.builder import KernelBuilder, identity
from bringup.lowering.call import Call, Tensor
from bringup.lowering.ops.folding import Elements, Reduction, fold
from bringup.lowering.ops.sums import folding
from bringup.lowering.reduction import normalized_dims
from bringup.lowering.registry import Lowering, lowering

States = tuple[Expr, ...]


def same(a: Expr, b: Expr) -> Expr:
    """True where two elements rank alike: equal, or both NaN."""
    equal = Binary("eq", a, b)
    return equal | (unary("isnan", a) & unary("isnan", b)) if a.dtype.is_float else equal


def _first_of(op: str, signed: bool) -> Callable[[Elements], States]:
    """The extreme element of a piece and its first position: two passes, both of which are plain vector folds.

    ``signed``: the position is doubled, and its last bit is the sign of the element there. Zeros of both signs rank
    alike, and the value must be the one that stands at the position.
    """

    def part(piece: Elements) -> States:
        peak = piece.reduce(lambda *j: piece(*j), op)
        nowhere = const(int64.high, int64)

        def position(*j: AxisVar) -> Expr:
            at = piece.position(*j)
            return at * 2 + Cast(unary("signbit", piece(*j)), int64) if signed else at

        where = piece.reduce(lambda *j: Where(same(piece(*j), peak), position(*j), nowhere), "min")
        return peak, where

    return part


def _merge(op: str) -> Callable[[States, States], States]:
    def merge(left: States, right: States) -> States:
        (a, at_a), (b, at_b) = left, right
        better: Expr = Binary("gt" if op == "max" else "lt", b, a)
        if a.dtype.is_float:
            better = better | (unary("isnan", b) & ~unary("isnan", a))
        take = better | (same(a, b) & (at_b < at_a))
        return Where(take, b, a), Where(take, at_b, at_a)

    return merge


def _located(call: Call, x: Tensor, dims: Any, keepdim: bool, op: str, outs: list[int]) -> None:
    """Launches the fold to (value, position); ``outs`` says which of the two the op returns."""
    inits = (identity(op, x.dtype), int64.high)
    signed = x.dtype.is_float and 0 in outs

    def finish(k: KernelBuilder, states: States) -> States:
        peak, where = states
        if signed:
            where = k.let(where)
            zero = Where(Binary("eq", where & 1, const(1, int64)), const(-0.0, x.dtype), const(0.0, x.dtype))
            peak, where = (
                Where(Binary("eq", peak, const(0.0, x.dtype)), zero, peak),
                Binary("shr", where, const(1, int64)),
            )
        return tuple((peak, where)[n] for n in outs)

    choose = Reduction(_first_of(op, signed), _merge(op), inits, finish, positions=True)
    fold(call, [x], normalized_dims(dims, x.ndim), keepdim, choose)


def _along(op: str) -> Lowering:
    def lower(call: Call, self: Tensor, dim: int, keepdim: bool) -> None:
        _located(call, self, dim, keepdim, op, [0, 1])

    return lower


def _position(op: str) -> Lowering:
    def lower(call: Call, self: Tensor, dim: int | None, keepdim: bool) -> None:
        _located(call, self, dim, keepdim, op, [1])

    return lower


def _extreme(op: str) -> Lowering:
    def lower(call: Call, self: Tensor, dim: Any = None, keepdim: bool = False) -> None:
        if dim is None and self.numel == 0:  # PyTorch's meta kernel lets max() and min() pass
            raise RuntimeError(
                f"{op}(): Expected reduction dim to be specified for input.numel() == 0. "
                "Specify the reduction dim with the 'dim' argument."
            )
        folding(call, self, dim, keepdim, lambda value: value, op)

    return lower


lowering("aten::max.dim")(_along("max"))
lowering("aten::min.dim")(_along("min"))
lowering("aten::argmax")(_position("max"))
lowering("aten::argmin")(_position("min"))
lowering("aten::amax", "aten::max")(_extreme("max"))
lowering("aten::amin", "aten::min")(_extreme("min"))


@lowering("aten::aminmax")
def aminmax(call: Call, self: Tensor, dim: int | None, keepdim: bool) -> None:
    """The smallest and the largest element, in one pass."""

    def part(piece: Elements) -> States:
        return piece.k.reduce_many(piece.extents, lambda *j: (piece(*j),) * 2, merge, inits, piece.lanes)

    def merge(left: States, right: States) -> States:
        return Binary("min", left[0], right[0]), Binary("max", left[1], right[1])

    inits = (identity("min", self.dtype), identity("max", self.dtype))
    fold(call, [self], normalized_dims(dim, self.ndim), keepdim, Reduction(part, merge, inits))
