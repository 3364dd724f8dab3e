"""Layer, group and RMS normalisation, forward and backward: statistics of a row, then every element of the row.

A row is what is normalised together: the last dimensions of layer and RMS norm; in group norm the channels of a group,
with all their positions. The first ``outer`` dimensions of a tensor number the rows; weights are views of its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from bringup.ir.dtypes import DType
from bringup.ir.expr import Expr, const, unary
from bringup.ir.index import AxisVar, as_index
from bringup.ir.kernel import Buffer
from bringup.lowering.builder import convert
from bringup.lowering.call import Call, Number, Tensor
from bringup.lowering.loops import LoopDim, in_memory_order, merged
from bringup.lowering.ops.convolution import is_channels_last, strides_in_format
from bringup.lowering.ops.folding import Elements, Reduction, fold, lanes_along
from bringup.lowering.ops.statistics import moments
from bringup.lowering.registry import lowering, new_output
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike, product

States = tuple[Expr, ...]


class NormRows:
    """A kernel with a row at each grid point; buffers are views over the grid's axes and the loops inside a row."""

    def __init__(self, call: Call, outer: int, tensors: Sequence[Tensor], wide: DType) -> None:
        """``tensors``: every tensor that the kernel will touch."""
        self.k, self.dims, self.wide = call.kernel(), outer, wide
        self._all = list(tensors)
        self._outer = self._loops(self._all, range(outer))
        self.axes: tuple[AxisVar, ...] = tuple(self.k.grid(extent) for extent, _ in self._outer)

    @staticmethod
    def _loops(tensors: Sequence[Tensor], dims: Sequence[int]) -> list[LoopDim]:
        shape = tensors[0].shape
        return merged(in_memory_order([(shape[d], tuple(t.strides[d] for t in tensors)) for d in dims]))

    def _view(self, tensor: Tensor, inner: Sequence[LoopDim] = (), place: int = 0) -> Tensor:
        number = next(n for n, known in enumerate(self._all) if known is tensor)
        loops = [(extent, strides[number]) for extent, strides in self._outer]
        loops += [(extent, strides[place]) for extent, strides in inner]
        return tensor.view([extent for extent, _ in loops], [stride for _, stride in loops])

    def piece(self, *inputs: Tensor) -> Elements:
        """The elements of a row, to be folded."""
        loops = self._loops(inputs, range(self.dims, inputs[0].ndim)) or [(1, (1,) * len(inputs))]
        buffers = tuple(self.k.read(self._view(t, loops, n)) for n, t in enumerate(inputs))
        extents = tuple(extent for extent, _ in loops)
        lanes, steps = lanes_along(loops[-1][1][0], product(extents)), (0,) * len(loops)
        return Elements(self.k, buffers, self.axes, extents, steps, as_index(0), product(extents), lanes)

    def statistic(self, tensor: Tensor) -> Expr:
        """The number that a tensor of one element per row has for this row."""
        return self.k.let(convert(self.k.read(self._view(tensor)).at(*self.axes), self.wide))

    def keep(self, tensor: Tensor, value: Expr) -> None:
        """Stores a number of this row."""
        self.k.store(self.k.write(self._view(tensor)), self.axes, value)

    def each(self, out: Tensor, inputs: Sequence[Tensor | None], formula: Callable[..., Expr]) -> None:
        """Stores ``formula(inputs…)`` at every element of the row, and ends the kernel; None stays None.

        What does not move along the innermost loop is loaded before it.
        """
        given = [t for t in inputs if t is not None]
        loops = self._loops([out, *given], range(self.dims, out.ndim))
        y = self.k.write(self._view(out, loops, 0))
        still = [bool(loops) and _is_zero(loops[-1][1][n + 1]) for n in range(len(given))]
        spans = [loops[:-1] if one else loops for one in still]
        buffers = [self.k.read(self._view(t, spans[n], n + 1)) for n, t in enumerate(given)]
        with ExitStack() as nest:
            j: list[AxisVar] = [nest.enter_context(self.k.loop(extent)) for extent, _ in loops[:-1]]
            early = {n: self.k.let(self._value(buffers[n], j)) for n, one in enumerate(still) if one}
            j += [nest.enter_context(self.k.loop(extent)) for extent, _ in loops[-1:]]
            values = iter([early[n] if n in early else self._value(b, j) for n, b in enumerate(buffers)])
            self.k.store(y, (*self.axes, *j), formula(*(None if t is None else next(values) for t in inputs)))
        self.k.launch()

    def _value(self, buffer: Buffer, j: Sequence[AxisVar]) -> Expr:
        return convert(buffer.at(*self.axes, *j), self.wide)


def _is_zero(stride: IntLike) -> bool:
    return isinstance(stride, int) and stride == 0


def given(*tensors: Tensor | None) -> list[Tensor]:
    """Those of some optional tensors that are there."""
    return [t for t in tensors if t is not None]


def normalize(
    call: Call, x: Tensor, outer: int, weight: Tensor | None, bias: Tensor | None, eps: Number, outs: Sequence[Tensor]
) -> None:
    """Launches (x - mean) rstd w + b; ``outs``: y, mean, rstd."""
    y, mean, rstd = outs
    rows = NormRows(call, outer, [x, y, mean, rstd, *given(weight, bias)], opmath(x.dtype))
    k, wide = rows.k, rows.wide
    count, middle, squares = moments(rows.piece(x), wide)
    scale = k.let(unary("rsqrt", squares / count + k.number(eps, wide)))
    rows.keep(mean, middle)
    rows.keep(rstd, scale)

    def formula(value: Expr, w: Expr | None, b: Expr | None) -> Expr:
        return affine((value - middle) * scale, w, b)

    rows.each(y, [x, weight, bias], formula)


def affine(value: Expr, weight: Expr | None, bias: Expr | None) -> Expr:
    """value × weight + bias, as far as they are given."""
    scaled = value if weight is None else value * weight
    return scaled if bias is None else scaled + bias


def input_gradient(
    call: Call,
    grad: Tensor,
    x: Tensor,
    outer: int,
    mean: Tensor | None,
    rstd: Tensor,
    weight: Tensor | None,
    dx: Tensor,
) -> None:
    """Launches dx = rstd (g - mean(g) - n mean(g n)), where g = grad w and n = (x - mean) rstd; no mean: RMS norm."""
    rows = NormRows(call, outer, [grad, x, rstd, dx, *given(mean, weight)], opmath(x.dtype))
    k, wide = rows.k, rows.wide
    middle = const(0, wide) if mean is None else rows.statistic(mean)
    scale = rows.statistic(rstd)
    piece = rows.piece(grad, x, *given(weight))

    def terms(*j: Any) -> States:
        g, value = convert(piece(*j), wide), convert(piece.of(1, *j), wide)
        g = g if weight is None else g * convert(piece.of(2, *j), wide)
        return g, g * ((value - middle) * scale)

    total, projection = k.reduce_many(piece.extents, terms, "add", (0, 0), piece.lanes)
    count = k.let(piece.number(wide))
    shift = const(0, wide) if mean is None else k.let(total / count)
    slope = k.let(projection / count)

    def formula(g: Expr, value: Expr, w: Expr | None) -> Expr:
        return scale * (affine(g, w, None) - shift - (value - middle) * scale * slope)

    rows.each(dx, [grad, x, weight], formula)


def parameter_gradients(
    call: Call,
    grad: Tensor,
    x: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    dims: Sequence[int],
    dw: Tensor | None,
    db: Tensor | None,
) -> None:
    """Launches dw = sum of grad (x - mean) rstd and db = sum of grad over some dimensions, as far as wanted."""
    outs = given(dw, db)
    if not outs:
        return
    wide = opmath(x.dtype)
    inputs = [grad] if dw is None else [grad, x, rstd.expand(x.shape), *(t.expand(x.shape) for t in given(mean))]

    def terms(piece: Elements, *j: Any) -> States:
        g, *rest = (convert(piece.of(n, *j), wide) for n in range(len(inputs)))
        if dw is None:
            return (g,)
        value, scale, *middle = rest
        weighted = g * ((value - middle[0] if middle else value) * scale)
        return (weighted,) if db is None else (weighted, g)

    def part(piece: Elements) -> States:
        return piece.k.reduce_many(piece.extents, lambda *j: terms(piece, *j), "add", inits, piece.lanes)

    inits = (0,) * len(outs)
    fold(call, inputs, dims, False, Reduction(part, "add", inits), outs)


def _layer_norm_outputs(x: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: Any) -> list[Any]:
    """As the CPU does; PyTorch's meta kernel is Python that takes 1.9 ms, and 1 s the first time."""
    _, _, code, sizes, *_ = x
    outer = len(sizes) - len(normalized_shape)
    if not normalized_shape:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
            "normalized_shape = []"
        )
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tuple(tensor[3]) != tuple(normalized_shape):
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape {list(tensor[3])} "
                f"and normalized_shape = {list(normalized_shape)}"
            )
    if outer < 0 or tuple(sizes[outer:]) != tuple(normalized_shape):
        wanted = ", ".join(str(n) for n in normalized_shape)
        raise RuntimeError(
            f"Given normalized_shape=[{wanted}], expected input with shape [*, {wanted}], but got input of "
            f"size{list(sizes)}"
        )
    statistics = tuple(sizes[:outer]) + (1,) * len(normalized_shape)
    own = code if weight is None else weight[2]  # halves with float32 weights have float32 statistics
    return [new_output(code, sizes), new_output(own, statistics), new_output(own, statistics)]


@lowering("aten::native_layer_norm", outputs=_layer_norm_outputs, repeated=(1,))
def layer_norm(
    call: Call, input: Tensor, normalized_shape: Any, weight: Tensor | None, bias: Tensor | None, eps: Number
) -> None:
    """Normalises the last dimensions."""
    outer = input.ndim - len(normalized_shape)
    w, b = (None if t is None else t.expand(input.shape) for t in (weight, bias))
    normalize(call, input, outer, w, b, eps, call.outs)


def _backward_outputs(
    grad: Any, input: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, wanted: Sequence[bool]
) -> list[Any]:
    """Contiguous gradients, as on the CPU; PyTorch's meta kernel keeps the order of dimensions."""
    parts = zip((input, weight, bias), wanted)
    return [new_output(tensor[2], tensor[3]) if take and tensor is not None else None for tensor, take in parts]


@lowering("aten::native_layer_norm_backward", outputs=_backward_outputs)
def layer_norm_backward(
    call: Call,
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Any,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> None:
    """Gradients of layer norm."""
    outer = input.ndim - len(normalized_shape)
    dx, dw, db = (out if wanted else None for out, wanted in zip(call.outs, output_mask))
    if dx is not None:
        w = None if weight is None else weight.expand(input.shape)
        input_gradient(call, grad_out, input, outer, mean, rstd, w, dx)
    parameter_gradients(call, grad_out, input, mean, rstd, range(outer), dw, db)


@lowering("aten::_fused_rms_norm")
def rms_norm(call: Call, input: Tensor, normalized_shape: Any, weight: Tensor | None, eps: Number | None) -> None:
    """x w / sqrt(mean(x²) + eps); no eps: that of the type."""
    outer = input.ndim - len(normalized_shape)
    y, rstd = call.outs
    w = None if weight is None else weight.expand(input.shape)
    rows = NormRows(call, outer, [input, y, rstd, *given(w)], opmath(input.dtype))
    k, wide = rows.k, rows.wide
    piece = rows.piece(input)

    def squared(*j: Any) -> Expr:
        value = convert(piece(*j), wide)
        return value * value

    small = const(EPSILON[wide.name], wide) if eps is None else k.number(eps, wide)
    scale = k.let(unary("rsqrt", piece.reduce(squared) / piece.number(wide) + small))
    rows.keep(rstd, scale)
    rows.each(y, [input, w], lambda value, factor: affine(value * scale, factor, None))


#: numeric_limits::epsilon of the compute types.
EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52}


@lowering("aten::_fused_rms_norm_backward")
def rms_norm_backward(
    call: Call,
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Any,
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> None:
    """Gradients of RMS norm."""
    outer = input.ndim - len(normalized_shape)
    dx, dw = (out if wanted else None for out, wanted in zip(call.outs, output_mask))
    if dx is not None:
        w = None if weight is None else weight.expand(input.shape)
        input_gradient(call, grad_out, input, outer, None, rstd, w, dx)
    parameter_gradients(call, grad_out, input, None, rstd, range(outer), dw, None)


def _grouped(tensor: Tensor, groups: int) -> Tensor:
    """[n, c, …] as [n, group, c / groups, …]."""
    (n, c, *space), (sn, sc, *steps) = tensor.shape, tensor.strides
    each = c // groups
    return tensor.view([n, groups, each, *space], [sn, sc * each, sc, *steps])


def _per_channel(tensor: Tensor | None, x: Tensor) -> Tensor | None:
    """A tensor [c] as a view of a grouped shape."""
    if tensor is None:
        return None
    (step,) = tensor.strides
    return tensor.view(x.shape, [0, step * x.shape[2], step, *(0 for _ in x.shape[3:])])


def _group_norm_outputs(
    x: Any, weight: Any, bias: Any, count: int, channels: int, space: int, group: int, eps: Any
) -> list[Any]:
    """As the CPU does; PyTorch's meta kernel gives halves with float32 weights half statistics."""
    _, _, code, sizes, strides, _ = x
    own = code if weight is None else weight[2]
    y = ("new", code, tuple(sizes), strides_in_format(tuple(sizes), is_channels_last(sizes, strides)))
    return [y, new_output(own, (count, group)), new_output(own, (count, group))]


@lowering("aten::native_group_norm", outputs=_group_norm_outputs)
def group_norm(
    call: Call,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: IntLike,
    C: IntLike,
    HxW: IntLike,
    group: int,
    eps: Number,
) -> None:
    """Normalises groups of channels."""
    if group <= 0:
        raise RuntimeError(f"Expected num groups to be greater than 0, got {group}")
    if input.numel != N * C * HxW or C % group != 0:
        raise RuntimeError(f"{call.op}: {N} x {C} x {HxW} in {group} groups do not fit the input")
    y, mean, rstd = call.outs
    x = _grouped(input, group)
    outs = (_grouped(y, group), mean, rstd)
    normalize(call, x, 2, _per_channel(weight, x), _per_channel(bias, x), eps, outs)


@lowering("aten::native_group_norm_backward")
def group_norm_backward(
    call: Call,
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: IntLike,
    C: IntLike,
    HxW: IntLike,
    group: int,
    output_mask: Sequence[bool],
) -> None:
    """Gradients of group norm."""
    dx, dw, db = (out if wanted else None for out, wanted in zip(call.outs, output_mask))
    grad, x = _grouped(grad_out, group), _grouped(input, group)
    if dx is not None:
        input_gradient(call, grad, x, 2, mean, rstd, _per_channel(weight, x), _grouped(dx, group))
    channels = [
        None if t is None else t.view(x.shape[1:3], [t.strides[0] * x.shape[2], t.strides[0]]) for t in (dw, db)
    ]
    middle, scale = (t.view(x.shape, [*t.strides, *(0 for _ in x.shape[2:])]) for t in (mean, rstd))
    parameter_gradients(call, grad, x, middle, scale, [0, *range(3, x.ndim)], *channels)
