"""Sampling images at given places (grid_sample): each dimension gives taps with weights and the weights' slopes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bringup.ir.dtypes import DType, int64
from bringup.ir.expr import AsIndex, Binary, Cast, Expr, Where, binary, const, unary
from bringup.ir.index import AxisVar, Index
from bringup.ir.kernel import Buffer
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, NoKernel, Tensor
from bringup.lowering.ops.image_loops import scatter_planes
from bringup.lowering.ops.resampling import cubic_weights, size_value
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


@dataclass(frozen=True)
class Tap:
    """One element of a dimension: where (outside: 0), its weight, and how that grows with the grid's coordinate."""

    at: Index
    weight: Expr
    slope: Expr


@dataclass(frozen=True)
class Mode:
    """How to sample: the plain arguments of the op."""

    interpolation: int
    padding: int
    align: bool
    volume: bool  # grid_sampler_3d


def _whole(value: Expr) -> Expr:
    """A coordinate as an integer; NaN and what no image reaches lies outside."""
    known = Binary("and", value > -1e9, value < 1e9)
    return Cast(Where(known, value, const(-100.0, value.dtype)), int64)


def _folded(k: KernelBuilder, at: Expr, size: IntLike, mode: Mode) -> tuple[Expr, Expr]:
    """A coordinate with the border folded back, and its slope (0 where it is held, -1 where it is mirrored)."""
    wide = at.dtype
    one, zero = const(1.0, wide), const(0.0, wide)
    if mode.padding == ZEROS:
        return at, one
    slope: Expr = one
    if mode.padding == REFLECTION:
        if mode.align and size == 1:
            return zero, zero
        low = 0.0 if mode.align else -0.5
        span = size_value(k, size - 1 if mode.align else size, wide)
        moved = at - low
        distance = k.let(unary("abs", moved))
        extra = k.let(binary("fmod", distance, span))
        even = Binary("eq", binary("fmod", unary("floor", distance / span), 2.0), zero)
        slope = Where(moved < 0.0, -one, one)
        slope = Where(even, slope, -slope)
        at = k.let(Where(even, extra + low, span - extra + low))
    last = size_value(k, size - 1, wide)
    inside = Binary("and", at > 0.0, Binary("lt", at, last))
    # As ATen: NaN is held at the first element of an image, and at the last of a volume.
    if mode.volume:
        clipped: Expr = Where(Binary("lt", at, last), binary("max", at, 0.0), last)
    else:
        clipped = Where(at > 0.0, binary("min", at, last), zero)
    return clipped, Where(inside, slope, zero)


def taps_of(k: KernelBuilder, coordinate: Expr, size: IntLike, mode: Mode) -> list[Tap]:
    """The taps of one dimension for a coordinate in -1 … 1."""
    wide, extent = coordinate.dtype, k.size(size)
    zero = const(0.0, wide)
    if mode.align:
        factor = size_value(k, size - 1, wide) / 2.0
        at = (coordinate + 1.0) / 2.0 * size_value(k, size - 1, wide)
    else:
        factor = size_value(k, size, wide) / 2.0
        at = ((coordinate + 1.0) * size_value(k, size, wide) - 1.0) / 2.0
    at = k.let(at)
    if mode.interpolation == BICUBIC:
        low = k.let(unary("floor", at))
        part = k.let(at - low)
        places = [_folded(k, low + n, size, mode)[0] for n in (-1.0, 0.0, 1.0, 2.0)]
        parts = zip(places, cubic_weights(part), _cubic_slopes(part))
        return [Tap(AsIndex(_whole(p), extent, "skip"), k.let(w), k.let(s * factor)) for p, w, s in parts]
    at, slope = _folded(k, at, size, mode)
    at = k.let(at)
    if mode.interpolation == NEAREST:
        return [Tap(AsIndex(_whole(unary("round", at)), extent, "skip"), const(1.0, wide), zero)]
    low = k.let(unary("floor", at))
    part, slope = k.let(at - low), k.let(slope * factor)
    first = k.let(_whole(low))
    return [
        Tap(AsIndex(first, extent, "skip"), 1.0 - part, -slope),
        Tap(AsIndex(first + 1, extent, "skip"), part, slope),
    ]


def _cubic_slopes(t: Expr) -> list[Expr]:
    """The derivatives of the cubic weights."""
    a = -0.75

    def near(x: Expr) -> Expr:
        return (x * (3 * (a + 2)) - 2 * (a + 3)) * x

    def far(x: Expr) -> Expr:
        return (x * (3 * a) - 10 * a) * x + 8 * a

    return [far(t + 1.0), near(t), -near(1.0 - t), -far(2.0 - t)]


def _taps(
    k: KernelBuilder, grid: Buffer, place: Sequence[Index], sizes: Sequence[IntLike], mode: Mode, wide: DType
) -> list[list[Tap]]:
    """The taps of all dimensions; the grid's last dimension counts from the innermost one."""
    dims = len(sizes)
    given = [convert(grid.at(*place, dims - 1 - n), wide) for n in range(dims)]
    return [taps_of(k, coordinate, size, mode) for coordinate, size in zip(given, sizes)]


def _sum(x: Buffer, outer: Sequence[Index], taps: Sequence[Sequence[Tap]], sloped: int | None, wide: DType) -> Expr:
    """The weighted sum of all taps; ``sloped``: with the slopes of one dimension instead of its weights."""
    if not taps:
        return convert(x.at(*outer), wide)
    total: Expr | None = None
    for tap in taps[0]:
        rest = _sum(x, (*outer, tap.at), taps[1:], None if sloped is None else sloped - 1, wide)
        part = (tap.slope if sloped == 0 else tap.weight) * rest
        total = part if total is None else total + part
    assert total is not None
    return total


@lowering("aten::grid_sampler_2d", "aten::grid_sampler_3d")
def grid_sampler(
    call: Call, input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> None:
    """The image at the grid's places; places are worked out once for all channels."""
    (out,) = call.outs
    mode = Mode(interpolation_mode, padding_mode, align_corners, input.ndim == 5)
    wide = opmath(input.dtype)
    sizes = input.shape[2:]
    k = call.kernel()
    n, *u = k.grid(out.shape[0]), *(k.grid(extent) for extent in out.shape[2:])
    x = k.read(input, (*out.shape[:2], *sizes))
    places = k.read(grid, (out.shape[0], *out.shape[2:], len(sizes)))
    y = k.write(out)
    taps = _taps(k, places, (n, *u), sizes, mode, wide)
    with k.loop(out.shape[1]) as c:
        k.store(y, (n, c, *u), _sum(x, (n, c), taps, None, wide))
    k.launch()


@lowering("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward")
def grid_sampler_backward(
    call: Call,
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: list[bool],
) -> None:
    """The gradients of the image and of the grid."""
    if not input.dtype.is_float:
        raise NoKernel(f"{call.op} has no kernel for {input.dtype}")
    mode = Mode(interpolation_mode, padding_mode, align_corners, input.ndim == 5)
    if output_mask[0]:
        _of_image(call, call.outs[0], grad_output, grid, mode)
    if output_mask[1]:
        _of_grid(call, call.outs[1], grad_output, input, grid, mode)


def _of_image(call: Call, out: Tensor, grad: Tensor, grid: Tensor, mode: Mode) -> None:
    sizes, wide = out.shape[2:], opmath(out.dtype)

    def terms(k: KernelBuilder, plane: Sequence[AxisVar], u: Sequence[AxisVar]) -> list[tuple[Sequence[Index], Expr]]:
        values = k.read(grad, (*out.shape[:2], *grad.shape[2:]))
        places = k.read(grid, (out.shape[0], *grad.shape[2:], len(sizes)))
        shares: list[tuple[tuple[Index, ...], Expr]] = [((), k.let(convert(values.at(*plane, *u), wide)))]
        for dimension in _taps(k, places, (plane[0], *u), sizes, mode, wide):
            shares = [((*at, tap.at), value * tap.weight) for at, value in shares for tap in dimension]
        return list(shares)

    scatter_planes(call, out, len(sizes), grad.shape[2:], terms)


def _of_grid(call: Call, out: Tensor, grad: Tensor, input: Tensor, grid: Tensor, mode: Mode) -> None:
    sizes, wide = input.shape[2:], opmath(out.dtype)
    dims, channels = len(sizes), input.shape[1]
    k = call.kernel()
    n, *u = (k.grid(extent) for extent in out.shape[:-1])
    y = k.write(out, (*out.shape[:-1], dims))
    if mode.interpolation == NEAREST:
        for d in range(dims):
            k.store(y, (n, *u, d), 0)
        k.launch()
        return
    values = k.read(grad, (out.shape[0], channels, *out.shape[1:-1]))
    x = k.read(input, (out.shape[0], channels, *sizes))
    places = k.read(grid, (*out.shape[:-1], dims))
    taps = _taps(k, places, (n, *u), sizes, mode, wide)

    def body(c: AxisVar) -> tuple[Expr, ...]:
        share = k.let(convert(values.at(n, c, *u), wide))
        return tuple(share * _sum(x, (n, c), taps, d, wide) for d in range(dims))

    def combine(left: tuple[Expr, ...], right: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(a + b for a, b in zip(left, right))

    totals = k.reduce_many(channels, body, combine, [0.0] * dims, lanes=1)
    for d, total in enumerate(totals):
        k.store(y, (n, *u, dims - 1 - d), total)
    k.launch()
