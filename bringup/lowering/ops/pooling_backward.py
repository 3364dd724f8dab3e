"""Gradients of pooling. Those of means are gathered: each input element visits the windows that may hold it, and no two
steps ever meet. Those of maxima are scattered, plane by plane, as an index says where each one belongs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from bringup.ir.dtypes import int64
from bringup.ir.expr import AsIndex, Expr, IndexValue, const
from bringup.ir.guards import within
from bringup.ir.index import AxisVar, Index, Int, floor_divide
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, Tensor
from bringup.lowering.ops.convolution import is_channels_last, strides_in_format
from bringup.lowering.ops.image_loops import (
    each,
    element,
    grid_by_memory,
    place_of,
    scatter_gradients,
    scatter_planes,
)
from bringup.lowering.ops.pooling import (
    Window,
    at_span,
    average_windows,
    over,
    side_by_side,
    span_size,
    stretched_spans,
    stretched_window,
    window_size,
)
from bringup.lowering.registry import lowering, new_output
from bringup.lowering.scalar_types import BY_CODE, opmath
from bringup.lowering.symbolic import IntLike

#: Windows of up to so many taps are written out tap by tap.
_FEW_TAPS = 16


@dataclass(frozen=True)
class Visits:
    """One dimension: the windows that may hold input h are ``place(h, t)`` for t below ``count``, under guards."""

    count: Index
    place: Callable[[Index, Index], tuple[Index, list[Expr]]]


def fixed_visits(outputs: Index, reach: int, stride: int, padding: int) -> Visits:
    """Windows of ``reach`` elements from first to last tap, every ``stride``."""

    def place(h: Index, t: Index) -> tuple[Index, list[Expr]]:
        u = floor_divide(h + padding, Int(stride)) - t
        return u, [within(u, outputs), IndexValue(h + padding - stride * u) < const(reach, int64)]

    return Visits(Int(-(-reach // stride)), place)


def stretched_visits(k: KernelBuilder, source: IntLike, result: IntLike) -> Visits:
    """Adaptive windows."""
    inputs, outputs = k.size(source, low=1), k.size(result)

    def place(h: Index, t: Index) -> tuple[Index, list[Expr]]:
        u = floor_divide(h * outputs, inputs) + t
        end = floor_divide((h + 1) * outputs - 1, inputs) + 1
        return u, [within(u, outputs), IndexValue(u) < IndexValue(end)]

    return Visits(k.size((result + source - 1) // source + 1), place)


def gather_windows(
    call: Call,
    k: KernelBuilder,
    grad: Tensor,
    visits: Sequence[Visits],
    term: Callable[[Expr, Sequence[Index], Sequence[Index], Sequence[Index], list[Expr]], Expr],
) -> None:
    """Stores in each input element the sum of ``term(gradient, outer axes, input place, window, guards)``."""
    (out,) = call.outs
    lead, wide = out.ndim - len(visits), opmath(out.dtype)
    axes = grid_by_memory(k, out)
    outer, h = axes[:lead], axes[lead:]
    source, y = k.read(grad, (*out.shape[:lead], *grad.shape[lead:])), k.write(out)

    def body(*t: AxisVar) -> Expr:
        found = [visit.place(at, step) for visit, at, step in zip(visits, h, t)]
        u, guards = [at for at, _ in found], [guard for _, many in found for guard in many]
        return term(convert(element(source, (*outer, *u), guards), wide), outer, h, u, guards)

    k.store(y, axes, k.reduce([visit.count for visit in visits], body, lanes=1))
    k.launch()


def _like_input(grad: Any, x: Any, *rest: Any) -> list[Any]:
    return [new_output(x[2], x[3])]


@lowering("aten::fractional_max_pool2d_backward", "aten::fractional_max_pool3d_backward", outputs=_like_input)
@lowering(
    "aten::max_pool2d_with_indices_backward",
    "aten::max_pool3d_with_indices_backward",
    "aten::adaptive_max_pool2d_backward",
    "aten::adaptive_max_pool3d_backward",
)
def max_pool_backward(call: Call, grad_output: Tensor, *windows_and_indices: Any) -> None:
    """Each gradient goes to the element that was the largest of its window."""
    scatter_gradients(call, grad_output, windows_and_indices[-1], 2 if "2d" in call.op else 3)


def _of_means(
    call: Call, k: KernelBuilder, grad: Tensor, windows: Sequence[Window], visits: Sequence[Visits], divisor: int | None
) -> None:
    def term(value: Expr, outer: Sequence[Index], h: Sequence[Index], u: Sequence[Index], guards: list[Expr]) -> Expr:
        return over(value, window_size(windows, u, divisor))

    gather_windows(call, k, grad, visits, term)


@lowering("aten::avg_pool2d_backward", "aten::avg_pool3d_backward")
def avg_pool_backward(
    call: Call,
    grad_output: Tensor,
    self: Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> None:
    """Each gradient is shared out over its window."""
    dims = 2 if "2d" in call.op else 3
    (out,) = call.outs
    taps = each(kernel_size, dims)
    steps = each(stride or kernel_size, dims)
    apart = all(n <= step for n, step in zip(taps, steps))
    if apart and math.prod(taps) <= _FEW_TAPS and not any(padding) and not ceil_mode and side_by_side(out):
        _share_out_apart(call, grad_output, taps, steps, divisor_override or math.prod(taps))
        return
    k = call.kernel()
    extents = out.shape[-dims:]
    _, windows = average_windows(k, extents, kernel_size, stride, padding, count_include_pad)
    numbers = zip(grad_output.shape[-dims:], *(each(n, dims) for n in (kernel_size, stride or kernel_size, padding)))
    visits = [fixed_visits(k.size(n), taps, step, pad) for n, taps, step, pad in numbers]
    _of_means(call, k, grad_output, windows, visits, divisor_override)


def _share_out_apart(call: Call, grad: Tensor, taps: Sequence[int], steps: Sequence[int], count: int) -> None:
    """Windows that do not meet, all inside: each writes its elements, which asks nothing of the others."""
    (out,) = call.outs
    lead = out.ndim - len(taps)

    def terms(k: KernelBuilder, plane: Sequence[AxisVar], u: Sequence[AxisVar]) -> Iterator[tuple[list[Index], Expr]]:
        given = convert(k.read(grad, (*out.shape[:lead], *grad.shape[lead:])).at(*plane, *u), opmath(out.dtype))
        share = k.let(over(given, const(count, int64)))
        extents = k.extents(out.shape[lead:])
        for tap in itertools.product(*map(range, taps)):
            place = [IndexValue(step * at + r) for step, at, r in zip(steps, u, tap)]
            yield [AsIndex(at, extent, "skip") for at, extent in zip(place, extents)], share

    scatter_planes(call, out, len(taps), grad.shape[lead:], terms)


def _share_out(call: Call, grad: Tensor, dims: int) -> None:
    (out,) = call.outs
    lead = out.ndim - dims
    sources, results = out.shape[lead:], grad.shape[lead:]

    def terms(k: KernelBuilder, plane: Sequence[AxisVar], u: Sequence[AxisVar]) -> Iterator[tuple[list[Index], Expr]]:
        given = convert(k.read(grad, (*out.shape[:lead], *results)).at(*plane, *u), opmath(out.dtype))
        spans = stretched_spans(k, sources, results, u)
        share = k.let(over(given, span_size(spans)))
        with ExitStack() as loops:
            taps = [loops.enter_context(k.loop(span.most, "sequential", count=span.count)) for span in spans]
            yield at_span(spans, [k.let(span.first + IndexValue(tap)) for span, tap in zip(spans, taps)]), share

    scatter_planes(call, out, dims, results, terms)


@lowering("aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(call: Call, grad_output: Tensor, self: Tensor) -> None:
    """Each gradient is shared out over its stretched window: scattered where neighbours in memory have windows of their
    own (a gather would divide by sizes for every element), gathered where they are channels of one."""
    dims = 2 if "2d" in call.op else 3
    (out,) = call.outs
    if side_by_side(out):
        _share_out(call, grad_output, dims)
        return
    k = call.kernel()
    pairs = list(zip(call.outs[0].shape[-dims:], grad_output.shape[-dims:]))
    windows = [stretched_window(k, *pair)[1] for pair in pairs]
    _of_means(call, k, grad_output, windows, [stretched_visits(k, *pair) for pair in pairs], None)


def unpool(call: Call, source: Tensor, indices: Tensor, dims: int) -> None:
    """Fills the output with 0, then puts each element of the source where its index says in the output's plane."""
    (out,) = call.outs
    lead = out.ndim - dims
    fill = call.kernel()
    fill.store(fill.write(out), grid_by_memory(fill, out), 0)
    fill.launch()
    k = call.kernel()
    outer = tuple(k.grid(extent) for extent in out.shape[:lead])
    u = tuple(k.grid(extent) for extent in source.shape[lead:])
    shape = (*out.shape[:lead], *source.shape[lead:])
    x, places, y = k.read(source, shape), k.read(indices, shape), k.write(out)
    extents = [k.size(extent, low=1) for extent in out.shape[lead:]]
    k.store(y, (*outer, *place_of(places.at(*outer, *u), extents)), x.at(*outer, *u), "ordered")
    k.launch()


def _unpool_outputs(x: Any, indices: Any, output_size: Sequence[int]) -> list[Any]:
    """As the CPU, in the format of the input; PyTorch's meta kernel is Python and says contiguous. Its checks."""
    _, _, code, sizes, strides, _ = x
    if BY_CODE.get(indices[2]) is not int64:
        found = BY_CODE[indices[2]].name if indices[2] in BY_CODE else f"scalar type {indices[2]}"
        raise RuntimeError(f"elements in indices should be type int64 but got: {found}")
    if len(output_size) != 2:
        raise RuntimeError(
            f"There should be exactly two elements (height, width) in output_size, but got {len(output_size)} elements."
        )
    if len(sizes) not in (3, 4):
        raise RuntimeError(
            f"Input to max_unpooling2d should be a 3d or 4d Tensor, but got a tensor with {len(sizes)} dimensions."
        )
    if tuple(sizes) != tuple(indices[3]):
        raise RuntimeError(
            f"Expected shape of indices to be same as that of the input tensor ({list(sizes)}) "
            f"but got indices tensor with shape: {list(indices[3])}"
        )
    for d, size in enumerate(sizes[1:], 1):
        if size == 0:
            raise RuntimeError(
                "max_unpooling2d(): Expected input to have non-zero size for non-batch dimensions, "
                f"but got {list(sizes)} with dimension {d} being empty."
            )
    shape = (*sizes[:-2], *output_size)
    return [("new", code, shape, strides_in_format(shape, is_channels_last(sizes, strides)))]


@lowering("aten::max_unpool2d", outputs=_unpool_outputs)
@lowering("aten::max_unpool3d")
def max_unpool(call: Call, self: Tensor, indices: Tensor, *_: Any) -> None:
    """The inverse of max_pool: elements back to where they came from, 0 elsewhere."""
    unpool(call, self, indices, 2 if "2d" in call.op else 3)
