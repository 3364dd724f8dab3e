"""Softmax and log_softmax, forward and backward: one line at a time."""

from __future__ import annotations

from collections.abc import Callable

from bringup.ir.dtypes import DType
from bringup.ir.expr import Binary, Expr, Where, const, unary
from bringup.lowering.builder import convert
from bringup.lowering.call import Call, Tensor
from bringup.lowering.ops.folding import Elements, Reduction, by_line
from bringup.lowering.ops.statistics import merge_log_sums
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath

States = tuple[Expr, ...]


def _is_masked(peak: Expr) -> Expr:
    return Binary("eq", peak, const(float("-inf"), peak.dtype))


def _exponentials(wide: DType) -> Reduction:
    """(maximum, sum of e^(x - maximum)) of a line."""

    def part(piece: Elements) -> States:
        peak = piece.reduce(lambda *j: convert(piece(*j), wide), "max")
        # A piece that is masked all along counts for nothing.
        shift = piece.k.let(Where(_is_masked(peak), const(0, wide), peak))
        return peak, piece.reduce(lambda *j: unary("exp", convert(piece(*j), wide) - shift))

    return Reduction(part, merge_log_sums, (float("-inf"), 0))


def _forward(call: Call, x: Tensor, dim: int, formula: Callable[[States, States], Expr]) -> None:
    wide = opmath(call.outs[0].dtype)
    by_line(call, [x], dim, wide, _exponentials(wide), formula)


def _share(values: States, states: States) -> Expr:
    """e^(x - max) / sum."""
    return unary("exp", values[0] - states[0]) / states[1]


@lowering("aten::_softmax")
def softmax(call: Call, self: Tensor, dim: int, half_to_float: bool) -> None:
    """e^x / sum(e^x)."""
    _forward(call, self, dim, _share)


@lowering("aten::_safe_softmax")
def safe_softmax(call: Call, self: Tensor, dim: int, dtype: int | None) -> None:
    """Softmax; 0 on lines that are -inf all along."""

    def formula(values: States, states: States) -> Expr:
        return Where(_is_masked(states[0]), const(0, states[0].dtype), _share(values, states))

    _forward(call, self, dim, formula)


@lowering("aten::_log_softmax")
def log_softmax(call: Call, self: Tensor, dim: int, half_to_float: bool) -> None:
    """x - log(sum(e^x))."""
    _forward(call, self, dim, lambda values, states: values[0] - states[0] - unary("log", states[1]))


def _backward(
    call: Call,
    grad: Tensor,
    output: Tensor,
    dim: int,
    summed: Callable[[Expr, Expr], Expr],
    formula: Callable[[Expr, Expr, Expr], Expr],
) -> None:
    """The gradient of an element is a formula of (grad, output, sum over the line of ``summed(grad, output)``)."""
    wide = opmath(output.dtype)

    def part(piece: Elements) -> States:
        return (piece.reduce(lambda *j: summed(convert(piece(*j), wide), convert(piece.of(1, *j), wide))),)

    definition = Reduction(part, "add", (0,))
    by_line(call, [grad, output], dim, wide, definition, lambda values, states: formula(*values, *states))


@lowering("aten::_softmax_backward_data")
def softmax_backward(call: Call, grad_output: Tensor, output: Tensor, dim: int, input_dtype: int) -> None:
    """y (g - sum(g y))."""
    _backward(call, grad_output, output, dim, lambda g, y: g * y, lambda g, y, total: y * (g - total))


@lowering("aten::_log_softmax_backward_data")
def log_softmax_backward(call: Call, grad_output: Tensor, output: Tensor, dim: int, input_dtype: int) -> None:
    """g - e^y sum(g)."""
    _backward(call, grad_output, output, dim, lambda g, y: g, lambda g, y, total: g - unary("exp", y) * total)
