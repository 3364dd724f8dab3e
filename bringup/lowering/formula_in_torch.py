"""The value of a pointwise formula in PyTorch's own ops: on the CPU, and of types that kernels do not have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bringup.ir.dtypes import DType, boolean, float32, float64, int64
from bringup.ir.expr import Binary, Cast, Const, Expr, Fma, Param, Unary, Where

#: Ops of formulas that torch has under another name.
_NAMES: dict[str, Callable[..., Tensor]] = {
    "not": torch.bitwise_not,
    "max": torch.maximum,
    "min": torch.minimum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "floordiv": torch.floor_divide,
    "truncdiv": functools.partial(torch.div, rounding_mode="trunc"),
}
_FLOATS: dict[torch.dtype, DType] = {torch.float32: float32, torch.bool: boolean}


def evaluated(formula: Callable[..., Any], operands: Sequence[Any], compute: torch.dtype) -> tuple[Tensor, ...]:
    """The results of a formula; tensors among the operands are its values.

    >>> evaluated(lambda x: 1.0 / x + 1.0, [torch.tensor([2.0])], torch.float32)
    (tensor([1.5000]),)
    """
    # A formula asks types little: whether they are float, integer or bool. Complex values pass as real ones.
    integral = not (compute.is_floating_point or compute.is_complex)
    wide = _FLOATS.get(compute, int64 if integral else float64)
    tensors = {f"v{n}": operand for n, operand in enumerate(operands) if isinstance(operand, Tensor)}

    def dtype(expr: Expr) -> torch.dtype:
        return torch.bool if expr.dtype is boolean else compute

    def value_of(expr: Expr) -> Tensor:
        if isinstance(expr, Param):
            return tensors[expr.name].to(compute)
        if isinstance(expr, Const):
            return torch.tensor(expr.value, dtype=dtype(expr))
        if isinstance(expr, Cast):
            return value_of(expr.x).to(dtype(expr))
        if isinstance(expr, Fma):
            return value_of(expr.a) * value_of(expr.b) + value_of(expr.c)
        if isinstance(expr, Where):
            return torch.where(value_of(expr.condition), value_of(expr.yes), value_of(expr.no))
        assert isinstance(expr, (Unary, Binary)), f"{expr} is not a part of a pointwise formula"
        call: Callable[..., Tensor] = _NAMES.get(expr.op) or getattr(torch, expr.op)
        return call(value_of(expr.x)) if isinstance(expr, Unary) else call(value_of(expr.a), value_of(expr.b))

    found = formula(*(Param(f"v{n}", wide) if f"v{n}" in tensors else operand for n, operand in enumerate(operands)))
    return tuple(map(value_of, found if isinstance(found, tuple) else (found,)))
