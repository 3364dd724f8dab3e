"""Images with other borders or in another order: padding, patches as columns and back, pixel and channel shuffles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bringup.ir.expr import AsIndex, Binary, Expr, IndexValue, Load, binary, unary
from bringup.ir.guards import within
from bringup.ir.index import AxisVar, Index, Int, floor_divide, modulo
from bringup.ir.kernel import Buffer
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, NoKernel, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.ops.image_loops import each, element, every, grid_by_memory, scatter_planes
from bringup.lowering.ops.movement import copy
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike

#: (position before the border is folded back, extent of the input) → position in the input.
Border = Callable[[Index, Index], Expr]


def reflected(at: Index, extent: Index) -> Expr:
    """Mirrored at the first and the last element: (n - 1) - |(n - 1) - |i||."""
    last = IndexValue(extent - 1)
    return last - unary("abs", last - unary("abs", IndexValue(at)))


def replicated(at: Index, extent: Index) -> Expr:
    """The nearest element inside."""
    return binary("max", binary("min", IndexValue(at), IndexValue(extent - 1)), 0)


def _places(
    k: KernelBuilder, u: Sequence[Index], inputs: Sequence[IntLike], pads: Sequence[int], fold: Border
) -> list[Index]:
    """Where each position of the padded image comes from; pads are (before, after) from the last dimension on."""
    places: list[Index] = []
    for d, (at, extent) in enumerate(zip(u, inputs)):
        before = pads[2 * (len(inputs) - 1 - d)]
        size = k.size(extent)
        places.append(AsIndex(fold(at - before, size), size))
    return places


def pad(call: Call, x: Tensor, pads: Sequence[int], fold: Border) -> None:
    """Every element of the output from where the border folds back to."""
    (out,) = call.outs
    dims = len(pads) // 2
    if min(pads) < 0:
        _fold_back(call, out, x, pads, [0] * dims, fold)
        return
    # What lies inside is a copy; only the borders look their elements up. 64 planes of 28 x 28 took 5.0 times ATen's
    # time where every element did.
    inside = out
    starts: list[IntLike] = [0] * dims
    for d in range(out.ndim - dims, out.ndim):
        before, after = pads[2 * (out.ndim - 1 - d)], pads[2 * (out.ndim - 1 - d) + 1]
        n = d - out.ndim + dims
        for start, length in ((0, before), (before + x.shape[d], after)):
            if length:
                corner: list[IntLike] = [*starts[:n], start, *starts[n + 1 :]]
                _fold_back(call, inside.narrow(d, start, length), x, pads, corner, fold)
        inside = inside.narrow(d, before, x.shape[d])
        starts[n] = before
    copy(call, inside, x)


def _fold_back(
    call: Call, out: Tensor, x: Tensor, pads: Sequence[int], starts: Sequence[IntLike], fold: Border
) -> None:
    """A part of the output, which starts somewhere in the padded image, from where the border folds back to."""
    dims = len(starts)
    k = call.kernel()
    axes = grid_by_memory(k, out)
    source = k.read(x, (*out.shape[:-dims], *x.shape[-dims:]))
    u = [axis + k.size(start) for axis, start in zip(axes[-dims:], starts)]
    k.store(k.write(out), axes, source.at(*axes[:-dims], *_places(k, u, x.shape[-dims:], pads, fold)))
    k.launch()


def pad_backward(call: Call, grad: Tensor, pads: Sequence[int], fold: Border) -> None:
    """Every element of the gradient goes where its element came from."""
    (out,) = call.outs
    dims = len(pads) // 2
    buffers: list[Buffer] = []

    def terms(k: KernelBuilder, plane: Sequence[AxisVar], u: Sequence[AxisVar]) -> list[tuple[Sequence[Index], Expr]]:
        buffers.append(k.read(grad, (*out.shape[:-dims], *grad.shape[-dims:])))
        places = _places(k, u, out.shape[-dims:], pads, fold)
        return [(places, convert(buffers[0].at(*plane, *u), opmath(out.dtype)))]

    scatter_planes(call, out, dims, grad.shape[-dims:], terms)


def _register(name: str, fold: Border) -> None:
    def forward(call: Call, self: Tensor, padding: list[int]) -> None:
        pad(call, self, padding, fold)

    def backward(call: Call, grad_output: Tensor, self: Tensor, padding: list[int]) -> None:
        if not grad_output.dtype.is_float:
            raise NoKernel(f"{call.op} has no kernel for {grad_output.dtype}")
        pad_backward(call, grad_output, padding, fold)

    for dims in (1, 2, 3):
        lowering(f"aten::{name}{dims}d")(forward)
        lowering(f"aten::{name}{dims}d_backward")(backward)


_register("reflection_pad", reflected)
_register("replication_pad", replicated)


@lowering("aten::constant_pad_nd")
def constant_pad_nd(call: Call, self: Tensor, pad: list[int], value: Number) -> None:
    """The input inside a border of one value; a negative border cuts."""
    (out,) = call.outs
    k = call.kernel()
    axes = grid_by_memory(k, out)
    dims = len(pad) // 2
    shape = (*out.shape[: self.ndim - dims], *self.shape[self.ndim - dims :])
    x, y = k.read(self, shape), k.write(out)
    places: list[Index] = list(axes)
    guards: list[Expr] = []
    for n in range(dims):
        d = self.ndim - 1 - n
        if pad[2 * n] or pad[2 * n + 1]:
            places[d] = axes[d] - pad[2 * n]
        guards.append(within(places[d], k.size(self.shape[d])))
    border = k.number(value, self.dtype)
    k.store(y, axes, Load(x.name, tuple(places), x.dtype, every(guards), border) if guards else x.at(*places))
    k.launch()


def _columns(tensor: Tensor, channels: IntLike, taps: Sequence[IntLike], space: Sequence[IntLike]) -> Tensor:
    """[…, c·kh·kw, oh·ow] seen as […, c, kh, kw, oh, ow]."""
    row, step = tensor.strides[-2:]
    shape = (*tensor.shape[:-2], channels, *taps, *space)
    strides = (*tensor.strides[:-2], row * taps[0] * taps[1], row * taps[1], row, step * space[1], step)
    return replace(tensor.view(shape, strides), contiguous=tensor.contiguous)


def _outputs(
    extents: Sequence[IntLike],
    taps: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> list[IntLike]:
    return [
        (extent + 2 * p - d * (count - 1) - 1) // s + 1
        for extent, count, d, p, s in zip(extents, taps, dilation, padding, stride)
    ]


@lowering("aten::im2col")
def im2col(
    call: Call, self: Tensor, kernel_size: list[int], dilation: list[int], padding: list[int], stride: list[int]
) -> None:
    """Every patch as a column."""
    taps, gaps, pads, steps = (each(n, 2) for n in (kernel_size, dilation, padding, stride))
    space = _outputs(self.shape[-2:], taps, gaps, pads, steps)
    out = _columns(call.outs[0], self.shape[-3], taps, space)
    k = call.kernel()
    axes = tuple(k.grid(extent) for extent in out.shape)
    r, u = axes[-4:-2], axes[-2:]
    x, y = k.read(self, (*out.shape[:-4], *self.shape[-2:])), k.write(out)
    place = [s * at + d * tap - p for s, at, d, tap, p in zip(steps, u, gaps, r, pads)]
    guards = [within(at, k.size(extent)) for at, extent in zip(place, self.shape[-2:])]
    k.store(y, axes, element(x, (*axes[:-4], *place), guards))
    k.launch()


@lowering("aten::col2im")
def col2im(
    call: Call,
    self: Tensor,
    output_size: list[int],
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> None:
    """The sum of all patches: every element looks up the columns that hold it."""
    (out,) = call.outs
    taps, gaps, pads, steps = (each(n, 2) for n in (kernel_size, dilation, padding, stride))
    space = _outputs(out.shape[-2:], taps, gaps, pads, steps)
    k = call.kernel()
    axes = grid_by_memory(k, out)
    columns = _columns(self, out.shape[-3], taps, space)
    x, y = k.read(columns, (*out.shape[:-3], *columns.shape[-5:])), k.write(out)

    def body(*r: AxisVar) -> Expr:
        sums = [at + p - d * tap for at, p, d, tap in zip(axes[-2:], pads, gaps, r)]
        place = [floor_divide(total, Int(s)) for total, s in zip(sums, steps)]
        guards = [within(at, k.size(extent)) for at, extent in zip(place, space)]
        guards += [
            Binary("eq", IndexValue(modulo(total, Int(s))), IndexValue(Int(0)))
            for total, s in zip(sums, steps)
            if s > 1
        ]
        return convert(element(x, (*axes[:-2], *r, *place), guards), opmath(out.dtype))

    k.store(y, axes, k.reduce(list(taps), body, lanes=1))
    k.launch()


def _split(tensor: Tensor, dim: int, inner: IntLike) -> Tensor:
    """One dimension seen as two, the inner one of an extent."""
    dim %= tensor.ndim
    shape = (*tensor.shape[:dim], tensor.shape[dim] // inner, inner, *tensor.shape[dim + 1 :])
    stride = tensor.strides[dim]
    return tensor.view(shape, (*tensor.strides[:dim], stride * inner, stride, *tensor.strides[dim + 1 :]))


def _copy(call: Call, out: Tensor, x: Tensor) -> None:
    elementwise(call, [out], [x], lambda value: value, [None])


def _pixels(image: Tensor, factor: int) -> Tensor:
    """[…, c, h·r, w·r] as […, c, r, r, h, w]: how the channels of a shuffled image count."""
    parts = _split(_split(image, -1, factor), -3, factor)
    lead = range(parts.ndim - 4)
    h, rh, w, rw = range(parts.ndim - 4, parts.ndim)
    return parts.permute([*lead, rh, rw, h, w])


def _channels(tensor: Tensor, factor: int) -> Tensor:
    """[…, c·r·r, h, w] as […, c, r, r, h, w]."""
    return _split(_split(tensor, -3, factor), -4, factor)


@lowering("aten::pixel_shuffle")
def pixel_shuffle(call: Call, self: Tensor, upscale_factor: int) -> None:
    """Channels become pixels."""
    _copy(call, _pixels(call.outs[0], upscale_factor), _channels(self, upscale_factor))


@lowering("aten::pixel_unshuffle")
def pixel_unshuffle(call: Call, self: Tensor, downscale_factor: int) -> None:
    """Pixels become channels."""
    for name, d in (("height", -2), ("width", -1)):
        if self.shape[d] % downscale_factor != 0:
            raise RuntimeError(
                f"pixel_unshuffle expects {name} to be divisible by downscale_factor, but "
                f"input.size({d})={self.shape[d]} is not divisible by {downscale_factor}"
            )
    _copy(call, _channels(call.outs[0], downscale_factor), _pixels(self, downscale_factor))


@lowering("aten::channel_shuffle")
def channel_shuffle(call: Call, self: Tensor, groups: int) -> None:
    """Channels of all groups in turn."""
    (out,) = call.outs
    per_group = self.shape[1] // groups
    target = _split(out, 1, groups)
    source = _split(self, 1, per_group)
    _copy(call, target.permute([0, 2, 1, *range(3, target.ndim)]), source)
