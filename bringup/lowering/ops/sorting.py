"""Sorting and what follows from an order: topk, kthvalue, medians, mode. Stable; NaN is the largest (radix.py)."""

from __future__ import annotations

from bringup.ir.dtypes import int64
from bringup.ir.expr import AsIndex, Binary, Expr, IndexValue, Load, Unary, Where, binary, const
from bringup.ir.guards import within
from bringup.ir.index import AxisVar
from bringup.ir.kernel import Buffer
from bringup.lowering.builder import KernelBuilder
from bringup.lowering.call import Call, Tensor, dense_strides
from bringup.lowering.ops.indexing import at_least_1d
from bringup.lowering.ops.movement import copy, dense
from bringup.lowering.ops.radix import ordered
from bringup.lowering.registry import lowering
from bringup.lowering.symbolic import IntLike, product


def as_lines(call: Call, x: Tensor, dim: int) -> Tensor:
    """The tensor with a dimension last, as (lines, extent): itself where it lies so, else a copy."""
    order = [*(d for d in range(x.ndim) if d != dim), dim]
    transposed = x if dim == x.ndim - 1 else x.permute(order)
    shape = (product(transposed.shape[:-1]), transposed.shape[-1])
    if transposed.contiguous:
        return transposed.view(shape, dense_strides(shape))
    lines = call.temporary(x.dtype, shape)
    copy(call, lines.view(transposed.shape, dense_strides(transposed.shape)), transposed)
    return lines


def sorted_lines(call: Call, x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    """Values and their positions, sorted along one dimension, as temporaries of shape (lines, extent)."""
    lines = as_lines(call, x, dim)
    return ordered(call, lines, descending, lines.shape[1])


def deliver(call: Call, out: Tensor, dim: int, lines: Tensor, start: IntLike = 0) -> None:
    """Copies a piece of sorted lines into a result, along its dimension."""
    shape = [out.shape[d] for d in range(out.ndim) if d != dim]
    extent = lines.shape[1]
    steps = [stride * extent for stride in dense_strides(tuple(shape))]
    shape.insert(dim, out.shape[dim])
    steps.insert(dim, 1)
    copy(call, out, lines.view(shape, steps, start))


@lowering("aten::sort.stable")
def sort(call: Call, self: Tensor, stable: bool | None, dim: int, descending: bool) -> None:
    """Values and where they were."""
    x = at_least_1d(self)
    for out, lines in zip(call.outs, sorted_lines(call, x, dim % x.ndim, descending)):
        deliver(call, at_least_1d(out), dim % x.ndim, lines)


@lowering("aten::topk")
def topk(call: Call, self: Tensor, k: int, dim: int, largest: bool, sorted: bool) -> None:
    """The first of the sorted, of equal ones those further left."""
    x = at_least_1d(self)
    dim %= x.ndim
    kept = at_least_1d(call.outs[0]).shape[dim]
    for out, lines in zip(call.outs, ordered(call, as_lines(call, x, dim), largest, kept)):
        deliver(call, at_least_1d(out), dim, lines)


@lowering("aten::kthvalue")
def kthvalue(call: Call, self: Tensor, k: int, dim: int, keepdim: bool) -> None:
    """The k-th smallest along a dimension."""
    x = at_least_1d(self)
    dim %= x.ndim
    found = ordered(call, as_lines(call, x, dim), False, 1, lambda b, i, e: b.constant(k - 1, int64))
    for out, lines in zip(call.outs, found):
        deliver(call, _with_dim(out, x, dim, keepdim), dim, lines)


def _register_median(name: str, ignore_nan: bool) -> None:
    def along(call: Call, self: Tensor, dim: int, keepdim: bool) -> None:
        x = at_least_1d(self)
        dim %= x.ndim
        for out, lines in zip(call.outs, _medians(call, x, dim, ignore_nan)):
            deliver(call, _with_dim(out, x, dim, keepdim), dim, lines)

    def of_all(call: Call, self: Tensor) -> None:
        flat = dense(call, self).view((self.numel,), (1,))
        lines, _ = _medians(call, flat, 0, ignore_nan)
        copy(call, call.outs[0], lines.view((), ()))

    lowering(f"aten::{name}.dim")(along)
    lowering(f"aten::{name}")(of_all)


_register_median("median", ignore_nan=False)
_register_median("nanmedian", ignore_nan=True)


def _medians(call: Call, x: Tensor, dim: int, ignore_nan: bool) -> tuple[Tensor, Tensor]:
    """(lines, 1): the lower median of each line, or its first NaN unless those are ignored, with its position."""

    def middle(k: KernelBuilder, i: AxisVar, elements: Buffer) -> Expr:
        count = IndexValue(k.size(x.shape[dim], low=1))
        half = binary("shr", count - 1, const(1, int64))
        if not x.dtype.is_float:
            return half
        numbers = k.reduce(x.shape[dim], lambda j: _counted(~Unary("isnan", elements[i, j])))
        if ignore_nan:
            return binary("shr", binary("max", numbers, const(1, int64)) - 1, const(1, int64))
        return Where(Binary("lt", numbers, count), numbers, half)

    return ordered(call, as_lines(call, x, dim), False, 1, middle)


@lowering("aten::mode")
def mode(call: Call, self: Tensor, dim: int, keepdim: bool) -> None:
    """The most frequent value along a dimension, the smallest of several, and where it is last."""
    x = at_least_1d(self)
    dim %= x.ndim
    values, places = sorted_lines(call, x, dim, False)
    lines, extent = values.shape
    result = call.temporary(x.dtype, (lines, 1)), call.temporary(int64, (lines, 1))
    k = call.kernel("mode")
    i = k.grid(lines)
    v, p = k.read(values), k.read(places)
    count = k.size(extent, low=1)
    zero = const(0, int64)

    def step(j: AxisVar, state: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """State: how long this run is, how long the longest was, and where that one ended."""
        before, most, last = state
        run = k.let(before + 1)
        following = Load(v.name, (i, j + 1), v.dtype, within(j + 1, count), const(0, v.dtype))
        ends = k.let(Binary("ge", IndexValue(j + 1), IndexValue(count)) | Binary("ne", v[i, j], following))
        better = k.let(ends & (run > most))
        return Where(ends, zero, run), Where(better, run, most), Where(better, IndexValue(j), last)

    _, _, last = k.sequential(extent, (zero, zero, zero), step)
    at = AsIndex(last, count, "check")
    k.store(k.write(result[0]), (i, 0), v[i, at])
    k.store(k.write(result[1]), (i, 0), p[i, at])
    k.launch()
    for out, found in zip(call.outs, result):
        deliver(call, _with_dim(out, x, dim, keepdim), dim, found)


def _counted(truth: Expr) -> Expr:
    return Where(truth, const(1, int64), const(0, int64))


def _with_dim(out: Tensor, x: Tensor, dim: int, keepdim: bool) -> Tensor:
    """A reduced result with the reduced dimension back in its place, of extent 1."""
    if keepdim and out.ndim == x.ndim:
        return out
    if out.ndim == 0:
        return out.view((1,), (1,))
    shape, strides = list(out.shape), list(out.strides)
    shape.insert(dim, 1)
    strides.insert(dim, 1)
    return out.view(shape, strides)
