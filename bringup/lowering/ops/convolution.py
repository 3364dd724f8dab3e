"""Convolutions as contractions that gather their patches: no patch matrix is ever made.

Two loops serve all of them, forward and backward: ``correlate`` reads s·u + d·r - p, ``spread`` is its transpose.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bringup.ir.dtypes import boolean
from bringup.ir.expr import Binary, Expr, IndexValue
from bringup.ir.guards import within
from bringup.ir.index import AxisVar, Index, Int, floor_divide, modulo
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, NoKernel, Tensor, dense_strides
from bringup.lowering.ops.image_loops import each, element
from bringup.lowering.ops.matmul import is_unit
from bringup.lowering.registry import lowering
from bringup.lowering.symbolic import IntLike, hint_of


@dataclass(frozen=True)
class Geometry:
    """Stride, padding and dilation per dimension of space, and the groups: all part of the kernel's structure."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def geometry(
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, dims: int
) -> Geometry:
    """The geometry for tensors of some dimensions; one number stands for all.

    >>> geometry([2], [1, 0], [1], 1, 2).stride
    (2, 2)
    """
    if any(step <= 0 for step in dilation):
        raise RuntimeError(f"dilation should be greater than zero, but got {list(each(dilation, dims))}")
    return Geometry(each(stride, dims), each(padding, dims), each(dilation, dims), int(groups))


@dataclass(frozen=True)
class Image:
    """A tensor [n, c, space…] whose channels are split into groups, in the order in which it lies in memory.

    The first dimension is what ``n`` says: the batch of an image, the channels of one side of a weight.
    """

    tensor: Tensor
    last: bool  # channels last
    dims: int  # of space

    def place(self, n: Sequence[Index], c: Sequence[Index], space: Sequence[Index]) -> tuple[Index, ...]:
        """The indices of an element."""
        return (*n, *space, *c) if self.last else (*n, *c, *space)

    def shape(self, n: Sequence[Any], c: Sequence[Any], space: Sequence[Any]) -> tuple[Any, ...]:
        """Extents in the same order."""
        return self.place(n, c, space)


def image(tensor: Tensor, dim: int, groups: Sequence[IntLike], inner: IntLike) -> Image:
    """A tensor with dimension 0 or 1 split into groups, if there are any; dense ones stay visibly dense."""
    dims = tensor.ndim - 2
    order = (0, *range(2, tensor.ndim), 1)
    transposed = tensor.permute(order)
    last = not tensor.contiguous and all(
        stride == dense or extent == 1
        for stride, dense, extent in zip(transposed.strides, dense_strides(transposed.shape), transposed.shape)
    )
    held = replace(transposed, contiguous=True) if last else tensor
    if not last and not tensor.contiguous and tensor.shape[1] != 1 and is_unit(tensor.strides[1]):
        held, last = transposed, True  # a part of one: the phases of a strided transpose
    if not groups:
        return Image(held, last, dims)
    at = 0 if dim == 0 else (held.ndim - 1 if last else 1)
    shape = (*held.shape[:at], *groups, inner, *held.shape[at + 1 :])
    strides = (*held.strides[:at], held.strides[at] * inner, held.strides[at], *held.strides[at + 1 :])
    return Image(replace(held.view(shape, strides), contiguous=held.contiguous), last, dims)


@dataclass(frozen=True)
class Taps:
    """How one dimension of space is read: element ``scale·u + step·r + shift`` of the input for tap r of output u."""

    scale: int
    step: int
    shift: int
    count: IntLike
    divisor: int = 1  # the element is this sum over the divisor, where that leaves no rest

    @property
    def single(self) -> bool:
        """True if there is one tap: no axis then. A guard."""
        return self.count == 1

    def straight(self, single: bool, source: IntLike, result: IntLike) -> bool:
        """True if outputs end where the input does, so that no access needs a guard. A guard of the call instead."""
        plain = self.scale == self.divisor == 1 and self.shift == 0 and (single or self.step > 0)
        return plain and result == source - (self.count - 1) * self.step


@dataclass(frozen=True)
class Variation:
    """What another kind of numbers changes in the loops: see quantized.py."""

    #: The input beyond its edge.
    edge: Expr
    #: An element of the input as a factor.
    factor: Callable[[Expr], Expr]
    #: (kernel, sum, extents of the output's channels, their indices) → what is stored.
    finish: Callable[[KernelBuilder, Expr, Sequence[Any], Sequence[Index]], Expr]


def channels_of(weight: Tensor, groups: int) -> tuple[IntLike, IntLike]:
    """The extents of a weight's first two dimensions within a group; a 1 among groups (depthwise) is the number."""
    inner, outer = weight.shape[0] // groups, weight.shape[1]
    if groups == 1:
        return inner, outer
    return 1 if inner == 1 else inner, 1 if outer == 1 else outer


def grid_of(
    k: KernelBuilder, last: bool, groups: Sequence[IntLike], c: IntLike, n: IntLike, space: Sequence[Any]
) -> tuple[tuple[AxisVar, ...], Index, Index, list[AxisVar]]:
    """Grid axes of groups, channels, batch and space, innermost what is innermost in the output's memory.

    A depthwise 1 is not an axis: vectors would run along it.
    """

    def axis(extent: IntLike) -> Index:
        return Int(0) if isinstance(extent, int) and extent == 1 else k.grid(extent)

    if last:
        b, u = axis(n), [k.grid(extent) for extent in space]
        return tuple(k.grid(extent) for extent in groups), axis(c), b, u
    g = tuple(k.grid(extent) for extent in groups)
    b, o = axis(n), axis(c)
    return g, o, b, [k.grid(extent) for extent in space]


#: Depthwise filters of up to so many taps are written out, so that a tile of outputs stays in registers.
_TAPS_IN_TEXT = 49


def gather(
    call: Call,
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    groups: int,
    taps: Sequence[Taps],
    transposed: bool,
    how: Variation | None = None,
) -> None:
    """Launches ``out[b, o, u] = bias[o] + sum over c, r of x[b, c, place(u, r)] × weight``.

    The weight is [o, c, r…], or [c, o, r…] if transposed; within a group, o and c count that group's channels.
    """
    inner, outer = channels_of(weight, groups)
    filters, channels = (outer, inner) if transposed else (inner, outer)
    k = call.kernel()
    # As a size, not as a number: layers of other widths are then the same kernel.
    many = [x.shape[1] // channels] if groups > 1 else []
    y_image, x_image = image(out, 1, many, filters), image(x, 1, many, channels)
    f_image = image(weight, 0, many, inner)
    single = [tap.single for tap in taps]
    straight = [tap.straight(one, m, n) for tap, one, m, n in zip(taps, single, x.shape[2:], out.shape[2:])]
    inputs = [k.size(extent) for extent in x.shape[2:]]
    alone = groups > 1 and isinstance(channels, int) and channels == 1
    if alone and math.prod(hint_of(tap.count) for tap in taps) <= _TAPS_IN_TEXT:
        taps = [replace(tap, count=int(tap.count)) for tap in taps]
    counts = [Int(1) if one else k.size(tap.count) for tap, one in zip(taps, single)]
    outputs = [
        extent - (count - 1) * tap.step if plain else k.size(given)
        for tap, plain, extent, count, given in zip(taps, straight, inputs, counts, out.shape[2:])
    ]
    g, o, b, u = grid_of(k, y_image.last, many, filters, out.shape[0], outputs)
    x_buffer = k.read(x_image.tensor, x_image.shape([out.shape[0]], [*many, channels], inputs))
    f_buffer = k.read(f_image.tensor, f_image.shape([*many, inner], [outer], counts))
    y_buffer = k.write(y_image.tensor, y_image.shape([out.shape[0]], [*many, filters], outputs))

    def factors(c: Index, r: Sequence[Index]) -> tuple[Expr, Expr]:
        own, other = (c, o) if transposed else (o, c)
        f = f_buffer.at(*f_image.place([*g, own], [other], r))
        sums = [tap.scale * at + tap.step * hit + tap.shift for tap, at, hit in zip(taps, u, r)]
        space = [floor_divide(total, Int(tap.divisor)) for total, tap in zip(sums, taps)]
        guards = [within(at, extent) for plain, at, extent in zip(straight, space, inputs) if not plain]
        guards += [
            Binary("eq", IndexValue(modulo(total, Int(tap.divisor))), IndexValue(Int(0)))
            for total, tap in zip(sums, taps)
            if tap.divisor > 1
        ]
        place = x_image.place([b], [*g, c], space)
        if how is None:
            return f, element(x_buffer, place, guards)
        return f, how.factor(element(x_buffer, place, guards, how.edge))

    loops: list[Any] = [count for count, one in zip(counts, single) if not one]

    def spread_taps(axes: Sequence[AxisVar]) -> list[Index]:
        left = iter(axes)
        return [Int(0) if one else next(left) for one in single]

    if alone:
        # Depthwise: nothing to share between columns, vectors run along the output.
        wide = x.dtype.accumulate

        def product(*r: AxisVar) -> Expr:
            f, value = factors(Int(0), spread_taps(r))
            return convert(f, wide) * convert(value, wide)

        total = k.reduce(loops or [1], product if loops else lambda _: product(), lanes=1)
    elif x_image.last:
        total = k.contract([*loops, channels], lambda *j: factors(j[-1], spread_taps(j[:-1]))[::-1])
    else:
        total = k.contract([channels, *loops], lambda c, *r: factors(c, spread_taps(r)))
    value: Expr = total
    shape = (*many, filters)
    if how is not None:
        value = how.finish(k, total, shape, (*g, o))
    if bias is not None:
        held = replace(
            bias.view(shape, (bias.strides[0] * filters, bias.strides[0])[-len(shape) :]), contiguous=bias.contiguous
        )
        value = total + convert(k.read(held, shape).at(*g, o), total.dtype)
    k.store(y_buffer, y_image.place([b], [*g, o], u), value)
    k.launch()


def correlate(
    call: Call,
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shape: Geometry,
    how: Variation | None = None,
) -> None:
    """``out[b, o, u] = bias[o] + sum over c, r of x[b, c, s·u + d·r - p] × weight[o, c, r]``."""
    taps = [
        Taps(s, d, -p, count) for s, p, d, count in zip(shape.stride, shape.padding, shape.dilation, weight.shape[2:])
    ]
    gather(call, out, x, weight, bias, shape.groups, taps, transposed=False, how=how)


#: More phases than this share one kernel that tests each tap for divisibility: a launch each would cost more.
_MOST_PHASES = 16


def spread(call: Call, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, shape: Geometry) -> None:
    """The transpose: ``out[b, o, u]`` sums ``x[b, c, i] × weight[c, o, r]`` over all s·i + d·r - p = u.

    With strides, the outputs fall into phases u % s that share no tap: each is a plain correlation of its own.
    """
    extents = weight.shape[2:]
    if math.prod(shape.stride) > _MOST_PHASES:
        taps = [Taps(1, -d, p, n, s) for s, p, d, n in zip(shape.stride, shape.padding, shape.dilation, extents)]
        gather(call, out, x, weight, bias, shape.groups, taps, transposed=True)
        return
    for phases in itertools.product(*(range(s) for s in shape.stride)):
        part, filters, taps = out, weight, []
        for dim, (phase, s) in enumerate(zip(phases, shape.stride)):
            tap, first, step = _phase(phase, s, shape.padding[dim], shape.dilation[dim], extents[dim])
            taps.append(tap)
            if s > 1:
                part = part.narrow(dim + 2, phase, (out.shape[dim + 2] - phase + s - 1) // s, s)
                filters = filters.narrow(dim + 2, first, tap.count, step)
        gather(call, part, x, filters, bias, shape.groups, taps, transposed=True)


def _phase(phase: int, s: int, p: int, d: int, extent: IntLike) -> tuple[Taps, int, int]:
    """The taps r = first + step·t that meet outputs u = s·q + phase, which read element q + shift - (d·step / s)·t."""
    if s == 1:
        return Taps(1, -d, p, extent), 0, 1
    step = s // math.gcd(s, d)
    first = next((r for r in range(step) if (phase + p - d * r) % s == 0), None)
    if first is None:
        return Taps(1, -1, 0, 0), 0, step
    return Taps(1, -d * step // s, (phase + p - d * first) // s, (extent - first + step - 1) // step), first, step


def checked(call: Call, *tensors: Tensor | None) -> None:
    """Raises NoKernel for mixed types, as one contraction has one."""
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
    if len(dtypes) > 1 or boolean in dtypes:
        raise NoKernel(f"{call.op} has no kernel for {' and '.join(sorted(d.name for d in dtypes))}")


def is_channels_last(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """PyTorch's suggest_memory_format: strides in the order n, space, c; where both formats fit it is not.

    >>> is_channels_last((2, 3, 4, 5), (60, 1, 15, 3)), is_channels_last((2, 3, 4, 5), (60, 20, 5, 1))
    (True, False)
    """
    if len(sizes) not in (4, 5) or strides[1] == 0:
        return False
    least = 0
    for dim in (1, *range(len(sizes) - 1, 1, -1), 0):
        if sizes[dim] == 0 or strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * max(sizes[dim], 1)
    return True


def strides_in_format(sizes: Sequence[int], last: bool) -> tuple[int, ...]:
    """Dense strides, of channels_last if asked.

    >>> strides_in_format((2, 3, 4, 5), True)
    (60, 1, 15, 3)
    """
    sizes = [max(size, 1) for size in sizes]  # PyTorch's strides, also of an empty tensor
    if not last:
        return tuple(int(s) for s in dense_strides(sizes))
    transposed = [int(s) for s in dense_strides((sizes[0], *sizes[2:], sizes[1]))]
    return (transposed[0], transposed[-1], *transposed[1:-1])


def _outputs(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any, groups: int
) -> list[Any]:
    _, _, code, sizes, strides, _ = x
    taps = weight[3]
    shape = geometry(stride, padding, dilation, groups, len(sizes) - 2)
    extra = list(extra) * (len(sizes) - 2 if len(extra) == 1 else 1)
    space = []
    for n, extent in enumerate(sizes[2:]):
        s, p, reach = shape.stride[n], shape.padding[n], shape.dilation[n] * (taps[n + 2] - 1) + 1
        space.append((extent - 1) * s - 2 * p + reach + extra[n] if transposed else (extent + 2 * p - reach) // s + 1)
    out = (sizes[0], taps[1] * groups if transposed else taps[0], *space)
    last = is_channels_last(sizes, strides) or is_channels_last(taps, weight[4])
    return [("new", code, out, strides_in_format(out, last))]


@lowering("aten::convolution_overrideable", outputs=_outputs)
def convolution(
    call: Call,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> None:
    """Convolution or transposed convolution of one, two or three dimensions."""
    checked(call, input, weight, bias)
    shape = geometry(stride, padding, dilation, groups, input.ndim - 2)
    (spread if transposed else correlate)(call, call.outs[0], input, weight, bias, shape)
