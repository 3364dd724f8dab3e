"""Gradients of convolutions: of the input the transposed convolution, of the weight a contraction over positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bringup.ir.expr import Expr
from bringup.ir.guards import within
from bringup.ir.index import Index
from bringup.lowering.builder import convert
from bringup.lowering.call import Call, Tensor
from bringup.lowering.ops.convolution import (
    Geometry,
    Image,
    channels_of,
    checked,
    correlate,
    geometry,
    grid_of,
    image,
    is_channels_last,
    spread,
    strides_in_format,
)
from bringup.lowering.ops.folding import Reduction, fold
from bringup.lowering.ops.image_loops import element
from bringup.lowering.reduction import rows
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike

#: Parts of the batch whose sums are added at the end, where it has so many: one float32 sum over 16 images of 16×16 was
#: 2.4 times as far from the truth as oneDNN's.
PARTS = 8


def weight_gradient(call: Call, out: Tensor, small: Tensor, large: Tensor, shape: Geometry) -> None:
    """``out[a, e, r] = sum over b, u of small[b, a, u] × large[b, e, s·u + d·r - p]``, within each group."""
    groups, space = shape.groups, list(zip(shape.stride, shape.dilation, shape.padding))
    a_count, e_count = channels_of(out, groups)
    many = [large.shape[1] // e_count] if groups > 1 else []
    depthwise = groups > 1 and isinstance(a_count, int) and isinstance(e_count, int)
    batch = small.shape[0]
    parts = [PARTS] if not depthwise and batch != 0 and batch % PARTS == 0 else []
    share = batch // PARTS if parts else batch
    y_image = image(out, 0, many, a_count)
    dense = y_image.tensor
    if parts:
        sums = call.temporary(out.dtype.accumulate, [PARTS, *y_image.tensor.shape])
        y_image = replace(y_image, tensor=sums)
    small_image = _cut(image(small, 1, many, a_count), parts, share)
    large_image = _cut(image(large, 1, many, e_count), parts, share)
    k = call.kernel()
    part = [k.grid(count) for count in parts]
    # Of channels last, vectors run along the channels: along rows each element is a cache line of its own (a 3 x 3
    # filter over 64 x 112 x 112 with stride 2 took 61 of the CPU's times).
    last = large_image.last if depthwise else y_image.last
    g, e, a, r = grid_of(k, last, many, e_count, a_count, out.shape[2:])
    extents = [k.size(extent) for extent in large.shape[2:]]
    x = k.read(small_image.tensor, small_image.shape([*parts, share], [*many, a_count], small.shape[2:]))
    z = k.read(large_image.tensor, large_image.shape([*parts, share], [*many, e_count], large.shape[2:]))
    y = k.write(y_image.tensor, y_image.shape([*parts, *many, a_count], [e_count], out.shape[2:]))

    def factors(b: Index, *u: Index) -> tuple[Expr, Expr]:
        at = [s * place + d * tap - p for place, tap, (s, d, p) in zip(u, r, space)]
        guards = [within(place, extent) for place, extent in zip(at, extents)]
        left = x.at(*small_image.place([*part, b], [*g, a], u))
        return left, element(z, large_image.place([*part, b], [*g, e], at), guards)

    if depthwise:  # one number per tap, 32 partial sums along a row
        wide = small.dtype.accumulate

        def product(*j: Index) -> Expr:
            left, right = factors(*j)
            return convert(left, wide) * convert(right, wide)

        total = k.reduce([batch, *small.shape[2:]], product)
    else:
        total = k.contract([share, *small.shape[2:]], factors)
    k.store(y, y_image.place([*part, *g, a], [e], r), total)
    k.launch()
    if parts:
        fold(call, [sums], [0], False, Reduction(lambda piece: (piece.reduce(lambda j: piece(j)),), "add"), [dense])


def _cut(held: Image, parts: Sequence[int], share: IntLike) -> Image:
    """An image whose batch is split into parts, if there are any."""
    if not parts:
        return held
    tensor = held.tensor
    shape, strides = (*parts, share, *tensor.shape[1:]), (tensor.strides[0] * share, *tensor.strides)
    return replace(held, tensor=replace(tensor.view(shape, strides), contiguous=tensor.contiguous))


def bias_gradient(call: Call, out: Tensor, grad: Tensor) -> None:
    """The sum over everything but the channels."""
    k = call.kernel()
    row, (y,) = rows(k, grad, [0, *range(2, grad.ndim)], [out], False)
    k.store(y, row.kept, k.reduce(row.folded, lambda *j: convert(row(*j), opmath(grad.dtype))))
    k.launch()


def _outputs(
    grad: Any,
    x: Any,
    weight: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: Any,
    extra: Any,
    groups: Any,
    mask: Sequence[bool],
) -> list[Any]:
    _, _, code, sizes, strides, _ = x
    last = is_channels_last(sizes, strides) or is_channels_last(weight[3], weight[4])
    channels = grad[3][1]
    results = [
        ("new", code, tuple(sizes), strides_in_format(sizes, last)),
        ("new", code, tuple(weight[3]), strides_in_format(weight[3], last)),
        ("new", code, (channels,), (1,)),
    ]
    return [result if wanted else None for result, wanted in zip(results, mask)]


@lowering("aten::convolution_backward_overrideable", outputs=_outputs)
def convolution_backward(
    call: Call,
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> None:
    """The gradients that the mask asks for, of input, weight and bias."""
    checked(call, grad_output, input, weight)
    shape = geometry(stride, padding, dilation, groups, input.ndim - 2)
    if output_mask[0]:
        (correlate if transposed else spread)(call, call.outs[0], grad_output, weight, None, shape)
    if output_mask[1]:
        small, large = (input, grad_output) if transposed else (grad_output, input)
        weight_gradient(call, call.outs[1], small, large, shape)
    if output_mask[2]:
        bias_gradient(call, call.outs[2], grad_output)
