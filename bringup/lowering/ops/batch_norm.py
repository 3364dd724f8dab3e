"""Batch normalisation, forward and backward: statistics of channels, a few numbers per channel, then every element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bringup.ir.dtypes import DType, bfloat16, float16, float32, float64
from bringup.ir.expr import Cast, Expr, IndexValue, const, unary
from bringup.ir.index import AxisVar
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, NoKernel, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.ops.convolution import is_channels_last, strides_in_format
from bringup.lowering.ops.folding import Reduction, fold
from bringup.lowering.ops.norms import given, parameter_gradients
from bringup.lowering.ops.statistics import merge_moments, moments
from bringup.lowering.registry import lowering, new_output
from bringup.lowering.scalar_types import CODE_OF, opmath
from bringup.lowering.symbolic import IntLike, product

States = tuple[Expr, ...]

_HALVES = (CODE_OF[float16], CODE_OF[bfloat16])


def _across(tensor: Tensor, x: Tensor) -> Tensor:
    """A tensor [c] as a view of the shape of x."""
    return tensor.view(x.shape, [0, tensor.strides[0], *(0 for _ in x.shape[2:])])


def _folded(x: Tensor) -> list[int]:
    """All dimensions but the channels."""
    return [d for d in range(x.ndim) if d != 1]


def _count(x: Tensor) -> IntLike:
    return product(x.shape[d] for d in _folded(x))


class _Channels:
    """A kernel with a channel at each grid point: values of tensors [c], and stores to such tensors."""

    def __init__(self, call: Call, channels: IntLike, wide: DType) -> None:
        self.k: KernelBuilder = call.kernel()
        self.c: AxisVar = self.k.grid(channels)
        self.shape, self.wide = [channels], wide

    def value(self, tensor: Tensor | None, default: float = 1.0) -> Expr:
        if tensor is None:
            return const(default, self.wide)
        return self.k.let(convert(self.k.read(tensor, self.shape)[self.c], self.wide))

    def number(self, count: IntLike) -> Expr:
        return Cast(IndexValue(self.k.size(count)), self.wide)

    def store(self, tensor: Tensor | None, value: Expr) -> None:
        if tensor is not None:
            self.k.store(self.k.write(tensor, self.shape), (self.c,), value)

    def track(self, running: Tensor | None, into: Tensor | None, momentum: Number, value: Expr) -> None:
        """into = momentum value + (1 - momentum) running; both may be the same tensor."""
        if running is None or into is None:
            return
        source = self.k.update(running, self.shape) if into is running else self.k.read(running, self.shape)
        target = source if into is running else self.k.write(into, self.shape)
        part = self.k.number(momentum, self.wide)
        kept = (const(1, self.wide) - part) * convert(source[self.c], self.wide)
        self.k.store(target, (self.c,), part * value + kept)


def _forward(
    call: Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: Sequence[Tensor | None],
    training: bool,
    momentum: Number,
    eps: Number,
    updated: Sequence[Tensor | None],
) -> None:
    """Launches batch norm into the first three outputs; ``updated``: where the running statistics go."""
    y, save_mean, save_invstd = call.outs[:3]
    if not x.dtype.is_float:
        raise NoKernel(f"{call.op} has no kernel for {x.dtype}")
    wide, channels = opmath(x.dtype), x.shape[1]
    if training:
        mean, variance = (call.temporary(wide, [channels]) for _ in range(2))
        # In float32 the mean of a training step's batch was 3 times as far from the truth as ATen's, which is made so.
        definition = Reduction(
            lambda piece: moments(piece, wide, float64 if x.dtype is float32 else None),
            merge_moments,
            (0, 0, 0),
            lambda k, states: (states[1], states[2] / states[0]),
        )
        fold(call, [x], _folded(x), False, definition, [mean, variance])
    else:
        mean, variance = given(*running)
    scale = call.temporary(wide, [channels])
    each = _Channels(call, channels, wide)
    middle, spread = each.value(mean), each.value(variance)
    invstd = each.k.let(unary("rsqrt", spread + each.k.number(eps, wide)))
    each.store(scale, invstd * each.value(weight))
    if save_mean.numel != 0:
        each.store(save_mean, middle)
        each.store(save_invstd, invstd)
    if training:
        count = each.number(_count(x))
        each.track(running[0], updated[0], momentum, middle)
        each.track(running[1], updated[1], momentum, spread * (count / (count - 1)))
    each.k.launch()
    operands = [x, _across(mean, x), _across(scale, x), None if bias is None else _across(bias, x)]

    def formula(value: Expr, m: Expr, s: Expr, b: Expr | None) -> Expr:
        return (value - m) * s if b is None else (value - m) * s + b

    elementwise(call, [y], operands, formula, wide)


def _outputs(x: Any, parameters: Sequence[Any], training: bool) -> list[Any]:
    """The outputs of the CPU: statistics in the parameters' type, and none where the running ones are used.

    PyTorch's meta kernel, a decomposition in Python, says what CUDA returns: float32, and in evaluation too.
    """
    _, _, code, sizes, strides, flags = x
    if len(sizes) < 2:
        raise IndexError(f"batch_norm: an input of shape {list(sizes)} has no dimension 1, that of the channels")
    if training and 0 in sizes:
        raise RuntimeError(f"input tensor must have at least one element, but got input_sizes = {list(sizes)}")
    for name, tensor in zip(("weight", "bias", "running_mean", "running_var"), parameters):
        if tensor is not None and tuple(tensor[3]) != (sizes[1],):
            raise RuntimeError(f"{name} should contain {sizes[1]} elements not {list(tensor[3])}")
    if not training and None in parameters[2:4]:
        raise RuntimeError("Expected running_mean and running_var to be defined when training=False")
    types = {tensor[2] for tensor in parameters if tensor is not None} or {code}
    if types != {code} and not (code in _HALVES and types == {CODE_OF[float32]}):
        raise RuntimeError(
            "batch_norm: weight, bias and running statistics must have the input's dtype; only those of a float16 or "
            "bfloat16 input may be float32, all of them"
        )
    last = not flags & 2 and is_channels_last(sizes, strides)
    statistics = new_output(types.pop(), (sizes[1],) if training else (0,))
    return [("new", code, tuple(sizes), strides_in_format(sizes, last)), statistics, statistics]


def _outputs_in_place(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any) -> list[Any]:
    return _outputs(x, (weight, bias, mean, var), training)


def _outputs_without_statistics(x: Any, weight: Any, bias: Any, *_: Any) -> list[Any]:
    return _outputs(x, (weight, bias), True)


def _outputs_in_evaluation(x: Any, weight: Any, bias: Any, mean: Any, var: Any, *_: Any) -> list[Any]:
    return _outputs(x, (weight, bias, mean, var), False)


def _outputs_of_functional(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: Any) -> list[Any]:
    made = _outputs(x, (weight, bias, mean, var), training)
    return [*made, *(new_output(running[2], running[3]) for running in (mean, var))]


@lowering("aten::native_batch_norm", "aten::_native_batch_norm_legit", outputs=_outputs_in_place)
def batch_norm(
    call: Call,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: Number,
    eps: Number,
) -> None:
    """Training updates the running statistics in place."""
    running = (running_mean, running_var)
    _forward(call, input, weight, bias, running, training, momentum, eps, running)


@lowering("aten::_native_batch_norm_legit.no_stats", outputs=_outputs_without_statistics)
def batch_norm_no_stats(call: Call, x: Tensor, weight: Any, bias: Any, _: bool, *numbers: Number) -> None:
    """By the statistics of the batch."""
    batch_norm(call, x, weight, bias, None, None, True, *numbers)


@lowering("aten::_native_batch_norm_legit_no_training", outputs=_outputs_in_evaluation)
def batch_norm_no_training(call: Call, x: Tensor, *parameters_and_numbers: Any) -> None:
    """By the running statistics."""
    *parameters, momentum, eps = parameters_and_numbers
    batch_norm(call, x, *parameters, False, momentum, eps)


@lowering("aten::_native_batch_norm_legit_functional", outputs=_outputs_of_functional)
def batch_norm_functional(
    call: Call,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: Number,
    eps: Number,
) -> None:
    """The running statistics are outputs."""
    running, updated = (running_mean, running_var), call.outs[3:5]
    _forward(call, input, weight, bias, running, training, momentum, eps, updated)
    if not training:
        elementwise(call, updated, running, lambda mean, variance: (mean, variance), [None, None])


def _outputs_of_backward(grad: Any, x: Any, weight: Any, *rest: Any) -> list[Any]:
    """The outputs of the CPU: contiguous or channels last; the meta kernel keeps any order of dimensions."""
    _, _, code, sizes, strides, flags = x
    mean, _, saved, _, _, _, mask = rest[:7]
    parameter = next((tensor[2] for tensor in (weight, saved, mean) if tensor is not None), code)
    last = not flags & 2 and is_channels_last(sizes, strides)
    made = [("new", code, tuple(sizes), strides_in_format(sizes, last)), *[new_output(parameter, (sizes[1],))] * 2]
    return [output if wanted else None for output, wanted in zip(made, mask)]


@lowering("aten::native_batch_norm_backward", outputs=_outputs_of_backward)
def batch_norm_backward(
    call: Call,
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: Number,
    output_mask: Sequence[bool],
) -> None:
    """dx = w r (g - mean(g) - n mean(g n)) in training, where r = invstd and n = (x - mean) r; else w r g."""
    dx, dw, db = (out if wanted else None for out, wanted in zip(call.outs, output_mask))
    x, wide = input, opmath(input.dtype)
    channels = x.shape[1]
    mean, invstd = given(save_mean, save_invstd) if train else given(running_mean, call.temporary(wide, [channels]))
    if not train:
        each = _Channels(call, channels, wide)
        each.store(invstd, unary("rsqrt", each.value(running_var) + each.k.number(eps, wide)))
        each.k.launch()
    if train and dx is not None:  # needs both sums
        sums = [out if out and out.dtype is wide else call.temporary(wide, [channels]) for out in (dw, db)]
    else:
        sums = [dw, db]  # type: ignore[list-item]
    parameter_gradients(call, grad_out, x, _across(mean, x), _across(invstd, x), _folded(x), *sums)
    if dx is None:
        return
    each = _Channels(call, channels, wide)
    r = each.value(invstd)
    slope = each.k.let(r * each.value(weight))
    factors = [call.temporary(wide, [channels]) for _ in range(3 if train else 1)]
    each.store(factors[0], slope)
    if train:
        share = each.k.let(slope / each.number(_count(x)))
        projection, total = (each.value(t) for t in sums)
        each.store(factors[1], share * r * projection)
        each.store(factors[2], share * total)
        for out, held, value in zip((dw, db), sums, (projection, total)):
            each.store(None if out is held else out, value)
    each.k.launch()
    operands = [grad_out, *([x, _across(mean, x)] if train else []), *(_across(factor, x) for factor in factors)]

    def trained(g: Expr, value: Expr, m: Expr, a: Expr, b: Expr, c: Expr) -> Expr:
        return g * a - (value - m) * b - c

    elementwise(call, [dx], operands, trained if train else lambda g, a: g * a, wide)


@lowering("aten::batch_norm_backward", outputs=_outputs_of_backward)
def batch_norm_backward_reserved(call: Call, *arguments: Any) -> None:
    """Of _batch_norm_with_update; it saves the inverse deviation as the variance, and reserves memory."""
    batch_norm_backward(call, *arguments[:-1])
