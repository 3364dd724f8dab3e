"""Distances between rows (cdist, pdist), forward and backward: a p-norm of differences for every pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bringup.ir.dtypes import DType, float64, int64
from bringup.ir.expr import AsIndex, Binary, Cast, Expr, IndexValue, Load, Where, binary, const, unary
from bringup.ir.index import AxisVar
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, Number, Tensor
from bringup.lowering.ops.statistics import norm_parts
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike


def _norm(k: KernelBuilder, extent: IntLike, p: Number | None, difference: Any) -> Expr:
    of, op, root = norm_parts(p)
    total = k.reduce(extent, lambda m: of(k, unary("abs", difference(m))), op, 0.0 if op == "max" else None)
    return root(k, total)


def _slope(k: KernelBuilder, p: Number, difference: Expr, distance: Expr) -> Expr:
    """The derivative of a distance by a difference."""
    wide = difference.dtype
    none, size, sign = const(0, wide), unary("abs", difference), unary("sign", difference)
    if p.equals(0):
        return none
    if p.equals(1):
        return sign
    if p.equals(float("inf")):
        return Where(Binary("eq", size, distance), sign, none)
    if p.equals(2):
        return Where(Binary("eq", distance, none), none, difference / distance)
    power = k.number(p, wide) - const(1, wide)
    ratio = sign * binary("pow", size, power) / binary("pow", distance, power)
    return Where(Binary("eq", distance, none) | Binary("eq", difference, none), none, ratio)


def _batched(tensor: Tensor, batch: Sequence[IntLike]) -> Tensor:
    return tensor.expand([*batch, *tensor.shape[-2:]])


def _pairs(call: Call, x1: Tensor, x2: Tensor, p: Number | None) -> None:
    (out,) = call.outs
    batch, wide = out.shape[:-2], opmath(out.dtype)
    rows, columns, width = x1.shape[-2], x2.shape[-2], x1.shape[-1]
    k = call.kernel()
    b = [k.grid(extent) for extent in batch]
    i, j = k.grid(rows), k.grid(columns)
    left = k.read(_batched(x1, batch), [*batch, rows, width])
    right = k.read(_batched(x2, batch), [*batch, columns, width])

    def difference(m: AxisVar) -> Expr:
        return convert(left.at(*b, i, m), wide) - convert(right.at(*b, j, m), wide)

    k.store(k.write(out, [*batch, rows, columns]), (*b, i, j), _norm(k, width, p, difference))
    k.launch()


@lowering("aten::_cdist_forward")
def cdist(call: Call, x1: Tensor, x2: Tensor, p: Number, compute_mode: int | None) -> None:
    """The distance of every row of x1 to every row of x2; always from the differences, as mode 2 of PyTorch."""
    _pairs(call, x1, x2, p)


@lowering("aten::_euclidean_dist")
def euclidean_dist(call: Call, x1: Tensor, x2: Tensor) -> None:
    """The distance for p = 2."""
    _pairs(call, x1, x2, None)


@lowering("aten::_cdist_backward")
def cdist_backward(call: Call, grad: Tensor, x1: Tensor, x2: Tensor, p: Number, cdist: Tensor) -> None:
    """The gradient of x1: a sum over the rows of x2, and over the batches that x1 is repeated for."""
    (out,) = call.outs
    batch, wide = grad.shape[:-2], opmath(out.dtype)
    rows, columns, width = out.shape[-2], x2.shape[-2], out.shape[-1]
    ahead = len(batch) + 2 - out.ndim
    summed = [d for d, extent in enumerate(batch) if d < ahead or out.shape[d - ahead] != extent]
    k = call.kernel()
    b: list[AxisVar | None] = [None if d in summed else k.grid(extent) for d, extent in enumerate(batch)]
    i, m = k.grid(rows), k.grid(width)
    left, right = (
        k.read(_batched(x1, batch), [*batch, rows, width]),
        k.read(_batched(x2, batch), [*batch, columns, width]),
    )
    shares, distances = (k.read(_batched(t, batch), [*batch, rows, columns]) for t in (grad, cdist))

    def share(*folded: AxisVar) -> Expr:
        *over, j = folded
        rest = iter(over)
        at = [next(rest) if axis is None else axis for axis in b]
        difference = convert(left.at(*at, i, m), wide) - convert(right.at(*at, j, m), wide)
        slope = _slope(k, p, difference, convert(distances.at(*at, i, j), wide))
        return convert(shares.at(*at, i, j), wide) * slope

    total = k.reduce([*(batch[d] for d in summed), columns], share, lanes=8)
    y = k.write(out, [*(1 if axis is None else batch[d] for d, axis in enumerate(b) if d >= ahead), rows, width])
    k.store(y, (*(0 if axis is None else axis for axis in b[ahead:]), i, m), total)
    k.launch()


@lowering("aten::_pdist_forward")
def pdist(call: Call, self: Tensor, p: Number) -> None:
    """The distances of rows i < j, in the order (0, 1), (0, 2), …"""
    (out,) = call.outs
    n, width = self.shape
    wide = opmath(out.dtype)
    k = call.kernel()
    at = k.grid(out.shape[0])
    x = k.read(self)
    count, position = IndexValue(k.size(n)), IndexValue(at)
    # Where row i of the triangle starts is quadratic in i; float64 is exact enough for 2^26 rows.
    middle = Cast(count, float64) - 0.5
    i = k.let(Cast(middle - unary("sqrt", middle * middle - 2.0 * Cast(position, float64) - 1.0), int64))
    j = k.let(position - _row_start(i, count) + i + const(1, int64))
    first, second = (AsIndex(row, k.size(n), "check") for row in (i, j))

    def difference(m: AxisVar) -> Expr:
        return convert(x[first, m], wide) - convert(x[second, m], wide)

    k.store(k.write(out), (at,), _norm(k, width, p, difference))
    k.launch()


def _row_start(i: Expr, count: Expr) -> Expr:
    """The position of the pair (i, i + 1)."""
    return binary("shr", i * (count + count - i - const(1, int64)), 1)


@lowering("aten::_pdist_backward")
def pdist_backward(call: Call, grad: Tensor, self: Tensor, p: Number, pdist: Tensor) -> None:
    """A sum over the other rows."""
    (out,) = call.outs
    n, width = self.shape
    wide: DType = opmath(out.dtype)
    k = call.kernel()
    i, m = k.grid(n), k.grid(width)
    x = k.read(self)
    pairs = pdist.shape[0]
    shares, distances = k.read(grad, [pairs]), k.read(pdist, [pairs])
    own, count = k.let(convert(x[i, m], wide)), IndexValue(k.size(n))

    def share(j: AxisVar) -> Expr:
        low, high = binary("min", IndexValue(i), IndexValue(j)), binary("max", IndexValue(i), IndexValue(j))
        other = Binary("ne", low, high)
        place = AsIndex(_row_start(low, count) + high - low - const(1, int64), k.size(pairs), "check")
        distance = convert(Load(distances.name, (place,), distances.dtype, other), wide)
        slope = _slope(k, p, own - convert(x[j, m], wide), distance)
        g = convert(Load(shares.name, (place,), shares.dtype, other), wide)
        return Where(other, g * slope, const(0, wide))

    k.store(k.write(out, [n, width]), (i, m), k.reduce(n, share, lanes=8))
    k.launch()
