"""Arithmetic of one, two and three operands: a line per op."""

from __future__ import annotations

from bringup.ir.expr import Expr
from bringup.lowering.call import NumberParam
from bringup.lowering.registry import pointwise


def scaled(alpha: NumberParam, x: Expr) -> Expr:
    """alpha × x, where 1 is no multiplication."""
    return x if alpha.equals(1) else alpha * x


pointwise("aten::add.Tensor", lambda x, y, alpha: x + scaled(alpha, y))
