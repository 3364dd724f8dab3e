"""Pooling: a fold over each window, of fixed size (max, average) or stretched over the input (adaptive)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bringup.ir.dtypes import DType, boolean, int64
from bringup.ir.expr import Binary, Cast, Expr, IndexValue, Where, const, unary
from bringup.ir.guards import within
from bringup.ir.index import AxisVar, Index, Int, floor_divide, maximum, minimum
from bringup.lowering.builder import KernelBuilder, convert, identity
from bringup.lowering.call import Call, NoKernel, Tensor
from bringup.lowering.ops.image_loops import each, element, every, grid_by_memory, position
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike


@dataclass(frozen=True)
class Window:
    """One dimension of a window: where tap r of output u reads, under which guards; how many taps count in a mean."""

    taps: Index
    place: Callable[[Index, Index], tuple[Index, list[Expr]]]
    count: Callable[[Index], Index]


def fixed_window(extent: Index, kernel: int, stride: int, padding: int, dilation: int, count_padding: bool) -> Window:
    """A window of ``kernel`` taps that moves by ``stride``; a mean counts padding if asked (but not beyond it)."""

    def place(u: Index, r: Index) -> tuple[Index, list[Expr]]:
        at = stride * u + dilation * r - padding
        return at, [within(at, extent)]

    def count(u: Index) -> Index:
        start = stride * u - padding
        end = minimum(start + kernel, extent + padding)
        return end - start if count_padding else minimum(end, extent) - maximum(start, 0)

    return Window(Int(kernel), place, count)


def stretched_window(k: KernelBuilder, source: IntLike, result: IntLike) -> tuple[Index, Window]:
    """The source's extent and a window from floor(u·source / result) to ceil((u + 1)·source / result)."""
    outputs = k.size(result, low=1)
    if source % result == 0:
        width = k.size(source // result)
        return width * outputs, Window(width, lambda u, r: (u * width + r, []), lambda u: width)
    inputs = k.size(source)

    def bounds(u: Index) -> tuple[Index, Index]:
        return floor_divide(u * inputs, outputs), floor_divide((u + 1) * inputs - 1, outputs) + 1

    def place(u: Index, r: Index) -> tuple[Index, list[Expr]]:
        start, end = bounds(u)
        return start + r, [within(start + r, inputs), IndexValue(start + r) < IndexValue(end)]

    most = k.size((source + result - 1) // result + 1)
    return inputs, Window(most, place, lambda u: bounds(u)[1] - bounds(u)[0])


def first_best(
    k: KernelBuilder, dtype: DType, extents: Sequence[Index], body: Callable[..., tuple[Expr, Expr]]
) -> tuple[Expr, Expr]:
    """The largest of some (value, position ≥ 0 or -1 for none): the first of equal ones, the last NaN, as PyTorch."""

    def combine(left: tuple[Expr, ...], right: tuple[Expr, ...]) -> tuple[Expr, ...]:
        take = (right[0] > left[0]) | ((left[1] < 0) & (right[1] >= 0))
        if dtype.is_float:
            take = take | unary("isnan", right[0])
        return Where(take, right[0], left[0]), Where(take, right[1], left[1])

    value, at = k.reduce_many(list(extents), body, combine, [identity("max", dtype), -1], lanes=1)
    return value, at


def max_windows(call: Call, x: Tensor, shape: Sequence[Index], windows: Sequence[Window], k: KernelBuilder) -> None:
    """Stores the largest element of each window and its position in the plane."""
    if x.dtype is boolean:
        raise NoKernel(f"{call.op} has no kernel for bool")
    values, indices = call.outs
    lead = x.ndim - len(windows)
    axes = grid_by_memory(k, values)
    outer, u = axes[:lead], axes[lead:]
    source = k.read(x, (*values.shape[:lead], *shape))
    y, z = k.write(values), k.write(indices, values.shape)
    low = const(identity("max", x.dtype), x.dtype)

    def body(*r: AxisVar) -> tuple[Expr, Expr]:
        found = [window.place(at, tap) for window, at, tap in zip(windows, u, r)]
        place, guards = [at for at, _ in found], [guard for _, many in found for guard in many]
        flat: Expr = IndexValue(position(place, shape))
        inside = every(guards)
        return element(source, (*outer, *place), guards, low), (
            flat if inside is None else Where(inside, flat, const(-1, int64))
        )

    value, at = first_best(k, x.dtype, [window.taps for window in windows], body)
    k.store(y, axes, value)
    k.store(z, axes, at)
    k.launch()


@lowering("aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices")
def max_pool(
    call: Call,
    self: Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> None:
    """The largest element of each window, and where it is."""
    dims = 2 if "2d" in call.op else 3
    k = call.kernel()
    shape = [k.size(extent) for extent in self.shape[-dims:]]
    numbers = zip(shape, *(each(n, dims) for n in (kernel_size, stride or kernel_size, padding, dilation)))
    windows = [fixed_window(extent, taps, step, pad, gap, False) for extent, taps, step, pad, gap in numbers]
    max_windows(call, self, shape, windows, k)


@lowering("aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(call: Call, self: Tensor, output_size: list[int]) -> None:
    """The largest element of each stretched window, and where it is."""
    dims = len(output_size)
    k = call.kernel()
    found = [stretched_window(k, *pair) for pair in zip(self.shape[-dims:], call.outs[0].shape[-dims:])]
    max_windows(call, self, [extent for extent, _ in found], [window for _, window in found], k)


def mean_windows(
    call: Call, x: Tensor, shape: Sequence[Index], windows: Sequence[Window], k: KernelBuilder, divisor: int | None
) -> None:
    """Stores the mean of each window, or its sum over a given divisor."""
    (out,) = call.outs
    lead, wide = x.ndim - len(windows), opmath(x.dtype)
    axes = grid_by_memory(k, out)
    outer, u = axes[:lead], axes[lead:]
    source, y = k.read(x, (*out.shape[:lead], *shape)), k.write(out)

    def body(*r: AxisVar) -> Expr:
        found = [window.place(at, tap) for window, at, tap in zip(windows, u, r)]
        guards = [guard for _, many in found for guard in many]
        return convert(element(source, (*outer, *(at for at, _ in found)), guards), wide)

    total = k.reduce([window.taps for window in windows], body, lanes=1)
    k.store(y, axes, over(total, window_size(windows, u, divisor)))
    k.launch()


def window_size(windows: Sequence[Window], u: Sequence[Index], divisor: int | None) -> Expr:
    """What a window's sum is divided by; at least 1, as a window of padding only sums up to 0."""
    if divisor is not None:
        return const(divisor, int64)
    return IndexValue(math.prod((maximum(window.count(at), 1) for window, at in zip(windows, u)), start=Int(1)))


def over(total: Expr, count: Expr) -> Expr:
    """A sum divided by a count; integers round towards 0."""
    return Binary("div" if total.dtype.is_float else "truncdiv", total, Cast(count, total.dtype))


def average_windows(
    k: KernelBuilder, extents: Sequence[IntLike], kernel: list[int], stride: list[int], padding: list[int], count: bool
) -> tuple[list[Index], list[Window]]:
    """The extents and windows of avg_pool."""
    shape = [k.size(extent) for extent in extents]
    numbers = zip(shape, *(each(n, len(shape)) for n in (kernel, stride or kernel, padding)))
    return shape, [fixed_window(extent, taps, step, pad, 1, count) for extent, taps, step, pad in numbers]


@lowering("aten::avg_pool2d", "aten::avg_pool3d")
def avg_pool(
    call: Call,
    self: Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> None:
    """The mean of each window."""
    k = call.kernel()
    extents = self.shape[-2 if "2d" in call.op else -3 :]
    shape, windows = average_windows(k, extents, kernel_size, stride, padding, count_include_pad)
    mean_windows(call, self, shape, windows, k, divisor_override)


@lowering("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d")
def adaptive_avg_pool(call: Call, self: Tensor, output_size: list[int]) -> None:
    """The mean of each stretched window."""
    dims = len(output_size)
    k = call.kernel()
    found = [stretched_window(k, *pair) for pair in zip(self.shape[-dims:], call.outs[0].shape[-dims:])]
    mean_windows(call, self, [extent for extent, _ in found], [window for _, window in found], k, None)
