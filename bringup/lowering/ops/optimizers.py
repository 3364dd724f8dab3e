"""Fused optimizer steps: SGD, Adam, AdamW and Adagrad, one kernel per parameter, in place.

With gradient scaling (``grad_scale``) the unscaled gradient is written back, and where ``found_inf`` is 1 nothing
changes, as PyTorch's own fused kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bringup.ir.dtypes import float64
from bringup.ir.expr import Binary, Expr, Where, const, unary
from bringup.lowering.builder import convert
from bringup.lowering.call import Call, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath

Rule = Callable[..., "tuple[Expr, ...]"]


def step(
    call: Call,
    state: Sequence[Tensor],
    more: Sequence[Tensor | Number],
    rule: Rule,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    """Launches ``state = rule(state, more)`` for one parameter; ``state`` is (parameter, gradient, …)."""
    wide = opmath(state[0].dtype)
    guards = [tensor for tensor in (grad_scale, found_inf) if tensor is not None]
    written = [tensor for n, tensor in enumerate(state) if n != 1 or grad_scale is not None]

    def formula(*values: Any) -> tuple[Expr, ...]:
        now = list(values[: len(state)])
        rest = values[len(state) : len(state) + len(more)]
        extra = list(values[len(state) + len(more) :])
        scaled = now[1]
        if grad_scale is not None:
            now[1] = now[1] / convert(extra.pop(0), wide)
        new = list(rule(now, *rest))
        new.insert(1, now[1])
        if found_inf is not None:
            skip = Binary("eq", extra.pop(0), const(1.0, found_inf.dtype))
            old = [now[0], scaled, *now[2:]]
            new = [Where(skip, before, after) for before, after in zip(old, new)]
        return tuple(value for n, value in enumerate(new) if n != 1 or grad_scale is not None)

    kinds = [wide] * len(state) + [None if isinstance(x, Tensor) else wide for x in more] + [None] * len(guards)
    spread = [_everywhere(x, state[0]) if isinstance(x, Tensor) else x for x in (*more, *guards)]
    elementwise(call, written, [*state, *spread], formula, kinds)


def _everywhere(scalar: Tensor, like: Tensor) -> Tensor:
    return scalar.view([1] * like.ndim, [0] * like.ndim)


def _power(base: Expr, exponent: Expr) -> Expr:
    return Binary("pow", base, exponent)


def adam_rule(decoupled: bool, amsgrad: bool, maximize: bool) -> Rule:
    """Adam with its weight decay in the gradient, or AdamW with it beside; the corrections are in float64."""

    def rule(now: list[Expr], steps: Expr, lr: Expr, beta1: Any, beta2: Any, decay: Any, eps: Any) -> tuple[Expr, ...]:
        x, grad, mean, square, *largest = now
        wide = x.dtype
        grad = -grad if maximize else grad
        if not decay.equals(0):
            x, grad = (x - lr * decay * x, grad) if decoupled else (x, grad + x * decay)
        mean = mean + (1.0 - beta1) * (grad - mean)
        square = square * beta2 + (1.0 - beta2) * grad * grad
        count = convert(steps, float64)
        first = 1.0 - _power(convert(beta1, float64), count)
        second = convert(unary("sqrt", 1.0 - _power(convert(beta2, float64), count)), wide)
        size = convert(convert(lr, float64) / first, wide)
        peak = [Binary("max", largest[0], square)] if amsgrad else []
        root = unary("sqrt", peak[0] if amsgrad else square) / second + eps
        return (x - size * mean / root, mean, square, *peak)

    return rule


def _adam(decoupled: bool) -> Any:
    def lower(
        call: Call,
        self: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        max_exp_avg_sqs: list[Tensor],
        state_steps: list[Tensor],
        lr: Number | Tensor,
        beta1: Number,
        beta2: Number,
        weight_decay: Number,
        eps: Number,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        call.pointwise = True
        rule = adam_rule(decoupled, amsgrad, maximize)
        for n in range(len(self)):
            state = [self[n], grads[n], exp_avgs[n], exp_avg_sqs[n], *(max_exp_avg_sqs[n : n + 1] if amsgrad else [])]
            more = [state_steps[n], lr, beta1, beta2, weight_decay, eps]
            step(call, state, more, _in_wide(rule, self[n]), grad_scale, found_inf)

    return lower


def _in_wide(rule: Rule, like: Tensor) -> Rule:
    """The learning rate may be a tensor of its own type."""
    wide = opmath(like.dtype)

    def converted(now: list[Expr], steps: Expr, lr: Expr, *rest: Any) -> tuple[Expr, ...]:
        return rule(now, steps, convert(lr, wide), *rest)

    return converted


lowering("aten::_fused_adam_", "aten::_fused_adam_.tensor_lr")(_adam(decoupled=False))
lowering("aten::_fused_adamw_", "aten::_fused_adamw_.tensor_lr")(_adam(decoupled=True))


@lowering("aten::_fused_sgd_", "aten::_fused_sgd_.tensor_lr")
def fused_sgd(
    call: Call,
    self: list[Tensor],
    grads: list[Tensor],
    momentum_buffer_list: list[Tensor],
    weight_decay: Number,
    momentum: Number,
    lr: Number | Tensor,
    dampening: Number,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    """Momentum starts as the first gradient."""
    call.pointwise = True

    def rule(now: list[Expr], decay: Any, rate: Any, lr: Expr, damp: Any) -> tuple[Expr, ...]:
        x, grad, *buffers = now
        grad = -grad if maximize else grad
        grad = grad if decay.equals(0) else grad + x * decay
        if buffers:
            held = grad if is_first_step else buffers[0] * rate + grad * (1.0 - damp)
            buffers = [held]
            grad = grad + held * rate if nesterov else held
        return (x - convert(lr, x.dtype) * grad, *buffers)

    for n in range(len(self)):
        state = [self[n], grads[n], *momentum_buffer_list[n : n + 1]]
        step(call, state, [weight_decay, momentum, lr, dampening], rule, grad_scale, found_inf)


@lowering("aten::_fused_adagrad_", "aten::_fused_adagrad_.tensor_lr")
def fused_adagrad(
    call: Call,
    self: list[Tensor],
    grads: list[Tensor],
    state_sums: list[Tensor],
    state_steps: list[Tensor],
    lr: Number | Tensor,
    lr_decay: Number,
    weight_decay: Number,
    eps: Number,
    maximize: bool,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    """The learning rate falls with the step and with the squares seen so far."""
    call.pointwise = True

    def rule(now: list[Expr], steps: Expr, lr: Expr, fall: Any, decay: Any, eps: Any) -> tuple[Expr, ...]:
        x, grad, total = now
        grad = -grad if maximize else grad
        grad = grad if decay.equals(0) else grad + x * decay
        total = total + grad * grad
        rate = convert(lr, x.dtype) / (1.0 + (convert(steps, x.dtype) - 1.0) * fall)
        return (x - rate * grad / (unary("sqrt", total) + eps), total)

    for n in range(len(self)):
        more = [state_steps[n], lr, lr_decay, weight_decay, eps]
        step(call, [self[n], grads[n], state_sums[n]], more, rule, grad_scale, found_inf)
