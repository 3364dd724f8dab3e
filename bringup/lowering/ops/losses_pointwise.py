"""Losses of one prediction and one target per element: a formula, then no reduction, a mean or a sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bringup.ir.dtypes import DType
from bringup.ir.expr import Cast, Expr, IndexValue, const
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, NoKernel, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.formulas import absolute, exp, log, log1p, log_sigmoid, maximum, sigmoid, where
from bringup.lowering.ops.folding import Elements, Reduction, fold
from bringup.lowering.ops.indexing import broadcast_shape
from bringup.lowering.output_layout import promoted_output
from bringup.lowering.registry import Outputs, compute_type, lowering, new_output
from bringup.lowering.scalar_types import opmath

#: PyTorch's codes for the argument ``reduction``.
NONE, MEAN, SUM = 0, 1, 2
Formula = Callable[..., Expr]


def reduced(call: Call, operands: Sequence[Any], reduction: int, formula: Formula) -> None:
    """The loss of each element, or their mean or sum; halves stay float32 until the end."""
    kind = opmath(compute_type(operands))
    if not kind.is_float:
        raise NoKernel(f"{call.op} of {kind}")
    if reduction == NONE:
        call.pointwise = True
        elementwise(call, call.outs, operands, formula, kind)
        return
    tensors = [x for x in operands if isinstance(x, Tensor)]
    shape = broadcast_shape([t.shape for t in tensors])
    inputs = [t.expand(shape) for t in tensors]

    def part(piece: Elements) -> tuple[Expr, ...]:
        def element(*j: Any) -> Expr:
            loads = iter(range(len(inputs)))
            values = [
                convert(piece.of(next(loads), *j), kind)
                if isinstance(x, Tensor)
                else piece.k.number(x, kind)
                if isinstance(x, Number)
                else x
                for x in operands
            ]
            return formula(*values)

        return (piece.reduce(element),)

    def mean(k: KernelBuilder, states: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (states[0] / _count(k, inputs[0], kind),)

    def total(_: KernelBuilder, states: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return states

    fold(call, inputs, range(len(shape)), False, Reduction(part, "add", finish=mean if reduction == MEAN else total))


def _count(k: KernelBuilder, x: Tensor, kind: DType) -> Expr:
    return Cast(IndexValue(k.size(x.numel)), kind)


def gradient(call: Call, grad: Any, x: Tensor, operands: Sequence[Any], reduction: int, formula: Formula) -> None:
    """``formula(grad, x, *operands)``; the gradient of a mean is shared by the elements."""

    def shared(k: KernelBuilder, g: Expr, x_value: Expr, *others: Expr) -> Expr:
        return formula(g / _count(k, x, g.dtype) if reduction == MEAN else g, x_value, *others)

    call.pointwise = True
    kind = opmath(compute_type((x, *operands)))
    elementwise(call, call.outs, (grad, x, *operands), shared, kind, builder=True)


def _register(
    name: str, at: int, loss: Formula | None, slope: Formula | None = None, outputs: Outputs | None = None
) -> None:
    """Registers a loss of (x, target, …) and its gradient by their formulas; argument ``at`` is the reduction, the
    others are operands. ``outputs`` are those of the gradient."""

    def forward(call: Call, *arguments: Any) -> None:
        assert loss is not None
        reduced(call, (*arguments[:at], *arguments[at + 1 :]), arguments[at], loss)

    def backward(call: Call, grad: Any, x: Tensor, *arguments: Any) -> None:
        assert slope is not None
        gradient(call, grad, x, (*arguments[: at - 1], *arguments[at:]), arguments[at - 1], slope)

    if loss is not None:
        lowering(f"aten::{name}")(forward)
    if slope is not None:
        lowering(f"aten::{name}_backward", outputs=outputs)(backward)


# ---- distances ----


def _smooth_l1(x: Expr, target: Expr, beta: Expr) -> Expr:
    """A parabola below beta, |x - t| above."""
    z = absolute(x - target)
    return where(z < beta, 0.5 * z * z / beta, z - 0.5 * beta)


def _huber(x: Expr, target: Expr, delta: Expr) -> Expr:
    """A parabola below delta, straight above."""
    z = absolute(x - target)
    return where(z < delta, 0.5 * z * z, delta * (z - 0.5 * delta))


def _smooth_l1_slope(g: Expr, x: Expr, target: Expr, beta: Expr) -> Expr:
    z = x - target
    return where(z <= -beta, -g, where(z >= beta, g, g * z / beta))


def _huber_slope(g: Expr, x: Expr, target: Expr, delta: Expr) -> Expr:
    z = x - target
    return where(z <= -delta, -g * delta, where(z >= delta, g * delta, g * z))


def _huber_gradients(*arguments: Any) -> list[Any]:
    """Contiguous, as on the CPU; PyTorch's meta kernel keeps the order of dimensions."""
    ((_, code, sizes, _),) = promoted_output(*arguments[:3])
    return [new_output(code, sizes)]


_register("mse_loss", 2, lambda x, t: (x - t) * (x - t), lambda g, x, t: 2.0 * (x - t) * g)
_register("smooth_l1_loss", 2, _smooth_l1, _smooth_l1_slope)
_register("huber_loss", 2, _huber, _huber_slope, _huber_gradients)


# ---- probabilities ----


def _cross_entropy(x: Expr, target: Expr, weight: Expr | None) -> Expr:
    """-(t log x + (1 - t) log(1 - x)), logarithms of at least -100."""
    least = const(-100.0, x.dtype)
    loss = (target - 1.0) * maximum(log1p(-x), least) - target * maximum(log(x), least)
    return loss if weight is None else loss * weight


def _cross_entropy_slope(g: Expr, x: Expr, target: Expr, weight: Expr | None) -> Expr:
    slope = g * (x - target) / maximum((1.0 - x) * x, const(1e-12, x.dtype))
    return slope if weight is None else slope * weight


def _cross_entropy_of_logits(x: Expr, target: Expr, weight: Expr | None, positive: Expr | None) -> Expr:
    """The loss of sigmoid(x), without computing the probability."""
    chance = log_sigmoid(x)
    if positive is not None:
        chance = chance * ((positive - 1.0) * target + 1.0)
    loss = (1.0 - target) * x - chance
    return loss if weight is None else loss * weight


@lowering("aten::soft_margin_loss")
def soft_margin_loss(call: Call, self: Tensor, target: Any, reduction: int) -> None:
    """log(1 + e^(-t x)); the power overflows where PyTorch's does, in the type of the tensor."""

    def formula(x: Expr, t: Expr) -> Expr:
        return log1p(convert(convert(exp(-t * x), self.dtype), x.dtype))

    reduced(call, (self, target), reduction, formula)


_register("soft_margin_loss", 2, None, lambda g, x, t: -t * g * sigmoid(-t * x))
_register("binary_cross_entropy", 3, _cross_entropy, _cross_entropy_slope)
_register("binary_cross_entropy_with_logits", 4, _cross_entropy_of_logits)
