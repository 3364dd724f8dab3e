"""Sorting: a stable merge sort in passes, each of which finds every output's source by binary search.

A pass merges pairs of runs of w elements. Output position d of a merged pair takes i elements from the left run and
d - i from the right one; i is where the two runs' order says so, found in log2(w) steps. Every position is its own
grid point, so passes are parallel, nothing is stored twice, and equal elements keep their order. NaN is the largest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from bringup.ir.dtypes import int64
from bringup.ir.expr import AsIndex, Binary, Expr, IndexValue, Load, Unary, Where, binary, const
from bringup.ir.guards import within
from bringup.ir.index import AxisVar
from bringup.ir.kernel import Buffer
from bringup.lowering.call import Call, Tensor, dense_strides
from bringup.lowering.ops.indexing import at_least_1d
from bringup.lowering.ops.movement import copy, dense
from bringup.lowering.registry import lowering
from bringup.lowering.symbolic import IntLike, hint_of, product

Less: TypeAlias = Callable[[Expr, Expr], Expr]


def ascending(a: Expr, b: Expr) -> Expr:
    """True if a comes before b: smaller, or b alone is NaN."""
    if not a.dtype.is_float:
        return a < b
    return (a < b) | (Unary("isnan", b) & ~Unary("isnan", a))


def descending(a: Expr, b: Expr) -> Expr:
    """True if a comes before b: larger, or a alone is NaN."""
    if not a.dtype.is_float:
        return a > b
    return (a > b) | (Unary("isnan", a) & ~Unary("isnan", b))


def sorted_lines(call: Call, x: Tensor, dim: int, less: Less) -> tuple[Tensor, Tensor]:
    """Values and their positions, sorted along one dimension, as temporaries of shape (lines, extent)."""
    order = [*(d for d in range(x.ndim) if d != dim), dim]
    turned = x.permute(order)
    lines, extent = product(turned.shape[:-1]), turned.shape[-1]
    values = call.temporary(x.dtype, (lines, extent))
    copy(call, values.view(turned.shape, dense_strides(turned.shape)), turned)
    places = call.temporary(int64, (lines, extent))
    k = call.kernel("positions")
    i, j = k.grid(lines), k.grid(extent)
    k.store(k.write(places), (i, j), IndexValue(j))
    k.launch()

    passes = max(hint_of(extent) - 1, 0).bit_length()
    # The structure holds for every extent of as many passes.
    assert extent <= 1 << passes
    assert passes == 0 or extent > 1 << (passes - 1)
    spare = (call.temporary(x.dtype, (lines, extent)), call.temporary(int64, (lines, extent))) if passes else None
    for number in range(passes):
        assert spare is not None
        _merge(call, (values, places), spare, 1 << number, passes, less)
        (values, places), spare = spare, (values, places)
    return values, places


def _merge(
    call: Call, source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor], width: int, steps: int, less: Less
) -> None:
    k = call.kernel("merge")
    lines, extent = source[0].shape
    values, places = k.read(source[0]), k.read(source[1])
    row, position = k.grid(lines), k.grid(extent)
    w = k.constant(width, int64)
    zero, one, n = const(0, int64), const(1, int64), IndexValue(k.size(extent))
    p = IndexValue(position)
    pair = k.let(binary("floordiv", p, w + w) * (w + w))  # where the two runs begin
    d = k.let(p - pair)
    left = k.let(binary("min", w, n - pair))
    right = k.let(binary("max", binary("min", w, n - pair - w), zero))

    def element(buffer: Buffer, run: Expr, at: Expr) -> Load:
        return buffer[row, AsIndex(run + at, k.size(extent), "skip")]

    second = k.let(pair + w)

    def halve(_: AxisVar, state: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        low, high = state
        middle = k.let(binary("shr", low + high, one))
        later = k.let(less(element(values, second, d - one - middle), element(values, pair, middle)))
        searching = low < high
        return (
            Where(searching & ~later, middle + one, low),
            Where(searching & later, middle, high),
        )

    start = (binary("max", d - right, zero), binary("min", d, left))
    taken, _ = k.sequential(steps, start, halve)
    rest = k.let(d - taken)
    first_left = (taken < left) & (
        Binary("ge", rest, right) | ~less(element(values, second, rest), element(values, pair, taken))
    )
    for buffer, to in ((values, target[0]), (places, target[1])):
        value = Where(first_left, element(buffer, pair, taken), element(buffer, second, rest))
        k.store(k.write(to), (row, position), value)
    k.launch()


def deliver(call: Call, out: Tensor, dim: int, lines: Tensor, start: IntLike = 0) -> None:
    """Copies a piece of sorted lines into a result, along its dimension."""
    shape = [out.shape[d] for d in range(out.ndim) if d != dim]
    extent = lines.shape[1]
    steps = [stride * extent for stride in dense_strides(tuple(shape))]
    shape.insert(dim, out.shape[dim])
    steps.insert(dim, 1)
    copy(call, out, lines.view(shape, steps, start))


def _first(call: Call, self: Tensor, dim: int, less: Less) -> None:
    """As many sorted values and positions as the outputs have room for."""
    x = at_least_1d(self)
    for out, lines in zip(call.outs, sorted_lines(call, x, dim % x.ndim, less)):
        deliver(call, at_least_1d(out), dim % x.ndim, lines)


@lowering("aten::sort.stable")
def sort(call: Call, self: Tensor, stable: bool | None, dim: int, descending_order: bool) -> None:
    """Values and where they were."""
    _first(call, self, dim, descending if descending_order else ascending)


@lowering("aten::topk")
def topk(call: Call, self: Tensor, k: int, dim: int, largest: bool, sorted: bool) -> None:
    """The first of the sorted."""
    _first(call, self, dim, descending if largest else ascending)


@lowering("aten::kthvalue")
def kthvalue(call: Call, self: Tensor, k: int, dim: int, keepdim: bool) -> None:
    """The k-th smallest along a dimension."""
    x = at_least_1d(self)
    dim %= x.ndim
    found = sorted_lines(call, x, dim, ascending)
    for out, lines in zip(call.outs, found):
        deliver(call, _with_dim(out, x, dim, keepdim), dim, lines, k - 1)


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
    values, places = sorted_lines(call, x, dim, ascending)
    lines, extent = values.shape
    result = call.temporary(x.dtype, (lines, 1)), call.temporary(int64, (lines, 1))
    k = call.kernel("median")
    i = k.grid(lines)
    v, p = k.read(values), k.read(places)
    count = k.size(extent, low=1)
    middle: Expr = IndexValue((count - 1) // 2)
    if x.dtype.is_float:
        numbers = k.reduce(extent, lambda j: _counted(~Unary("isnan", v[i, j])))
        if ignore_nan:
            middle = binary("shr", binary("max", numbers, const(1, int64)) - 1, const(1, int64))
        else:
            middle = Where(Binary("lt", numbers, IndexValue(count)), numbers, middle)
    at = AsIndex(k.let(middle), count, "check")
    k.store(k.write(result[0]), (i, 0), v[i, at])
    k.store(k.write(result[1]), (i, 0), p[i, at])
    k.launch()
    return result


@lowering("aten::mode")
def mode(call: Call, self: Tensor, dim: int, keepdim: bool) -> None:
    """The most frequent value along a dimension, the smallest of several, and where it is last."""
    x = at_least_1d(self)
    dim %= x.ndim
    values, places = sorted_lines(call, x, dim, ascending)
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
