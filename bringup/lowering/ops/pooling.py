"""Pooling: a fold over each window, of fixed size (max, average) or stretched over the input (adaptive)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bringup.ir.dtypes import DType, boolean, int64
from bringup.ir.expr import AsIndex, Binary, Cast, Expr, IndexValue, Where, binary, const, unary
from bringup.ir.guards import within
from bringup.ir.index import AxisVar, Index, Int, floor_divide, maximum, minimum
from bringup.lowering.builder import KernelBuilder, convert, identity
from bringup.lowering.call import Call, NoKernel, Tensor
from bringup.lowering.ops.image_loops import each, element, every, grid_by_memory, position
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike, hint_of


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


@dataclass(frozen=True)
class Span:
    """One dimension of a stretched window, found once for each output: where it begins, and how many taps it has."""

    extent: Index
    most: Index
    first: Expr
    count: Expr


def stretched_spans(
    k: KernelBuilder, sources: Sequence[IntLike], results: Sequence[IntLike], u: Sequence[Index]
) -> list[Span]:
    """The window of an output. Its bounds take divisions by a size: as guards of every tap they took ten times as long
    as the sums (17 × 17 to 2 × 2: 0.51 ms, and 0.03 so)."""
    spans = []
    for source, result, at in zip(sources, results, u):
        inputs, outputs = k.size(source), k.size(result, low=1)
        first = k.let(IndexValue(floor_divide(at * inputs, outputs)))
        end = IndexValue(floor_divide((at + 1) * inputs - 1, outputs) + 1)
        most = k.size((source + result - 1) // result + 1)
        spans.append(Span(inputs, most, first, k.let(end - first)))
    return spans


def over_spans(
    k: KernelBuilder,
    spans: Sequence[Span],
    state: tuple[Expr, ...],
    step: Callable[[list[Expr], tuple[Expr, ...]], Sequence[Expr]],
) -> tuple[Expr, ...]:
    """Runs ``step(place, state)`` for each tap in turn; the last state."""

    def nest(place: list[Expr], state: tuple[Expr, ...]) -> Sequence[Expr]:
        if len(place) == len(spans):
            return step(place, state)
        span = spans[len(place)]
        return k.sequential(
            span.most, state, lambda j, s: nest([*place, k.let(span.first + IndexValue(j))], s), count=span.count
        )

    return tuple(nest([], state))


def at_span(spans: Sequence[Span], place: Sequence[Expr]) -> list[Index]:
    """The indices of a tap."""
    return [AsIndex(at, span.extent, "skip") for at, span in zip(place, spans)]


def side_by_side(out: Tensor) -> bool:
    """True if neighbours in memory are neighbours in the plane, whose windows have bounds of their own."""
    return hint_of(out.strides[-1]) == 1


def first_best(
    k: KernelBuilder, dtype: DType, extents: Sequence[Index], body: Callable[..., tuple[Expr, Expr]]
) -> tuple[Expr, Expr]:
    """The largest of some (value, position ≥ 0 or -1 for none): the first of equal ones, the last NaN, as PyTorch."""
    value, at = k.reduce_many(list(extents), body, better, [identity("max", dtype), -1], lanes=1)
    return value, at


def better(left: tuple[Expr, ...], right: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The larger of two (value, position): of equal ones the left, and the right if it is NaN."""
    take = (right[0] > left[0]) | ((left[1] < 0) & (right[1] >= 0))
    if right[0].dtype.is_float:
        take = take | unary("isnan", right[0])
    return Where(take, right[0], left[0]), Where(take, right[1], left[1])


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
    sources, results = self.shape[-dims:], call.outs[0].shape[-dims:]
    if self.dtype is boolean or not side_by_side(call.outs[0]):
        found = [stretched_window(k, *pair) for pair in zip(sources, results)]
        max_windows(call, self, [extent for extent, _ in found], [window for _, window in found], k)
        return
    values, indices = call.outs
    lead = self.ndim - dims
    axes = grid_by_memory(k, values)
    outer, spans = axes[:lead], stretched_spans(k, sources, results, axes[lead:])
    source = k.read(self, (*values.shape[:lead], *sources))

    def step(place: list[Expr], state: tuple[Expr, ...]) -> Sequence[Expr]:
        flat: Expr = place[0]
        for at, span in zip(place[1:], spans[1:]):
            flat = flat * IndexValue(span.extent) + at
        return better(state, (k.let(source.at(*outer, *at_span(spans, place))), k.let(flat)))

    start = (const(identity("max", self.dtype), self.dtype), const(-1, int64))
    for out, state in zip((values, indices), over_spans(k, spans, start, step)):
        k.store(k.write(out, values.shape), axes, state)
    k.launch()


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


def span_size(spans: Sequence[Span]) -> Expr:
    """How many taps a stretched window has; at least 1."""
    size: Expr = const(1, int64)
    for span in spans:
        size = size * binary("max", span.count, const(1, int64))
    return size


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
    (out,) = call.outs
    sources, results = self.shape[-dims:], out.shape[-dims:]
    if not side_by_side(out):
        found = [stretched_window(k, *pair) for pair in zip(sources, results)]
        mean_windows(call, self, [extent for extent, _ in found], [window for _, window in found], k, None)
        return
    lead, wide = self.ndim - dims, opmath(self.dtype)
    axes = grid_by_memory(k, out)
    outer, spans = axes[:lead], stretched_spans(k, sources, results, axes[lead:])
    source, y = k.read(self, (*out.shape[:lead], *sources)), k.write(out)

    def step(place: list[Expr], state: tuple[Expr, ...]) -> Sequence[Expr]:
        return (state[0] + convert(source.at(*outer, *at_span(spans, place)), wide),)

    (total,) = over_spans(k, spans, (const(0, wide),), step)
    k.store(y, axes, over(total, span_size(spans)))
    k.launch()
