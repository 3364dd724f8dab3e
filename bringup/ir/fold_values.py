"""Folding one value whose operands are folded: constants by the interpreter's arithmetic, and exact identities.

Functions with a permitted error are not folded (a target computes them itself), and sums are never reordered.
"""

from __future__ import annotations

import numpy as np

from bringup.ir import arithmetic
from bringup.ir.dtypes import Array, DType
from bringup.ir.expr import Binary, Cast, Const, Expr, Fma, Load, Unary, Where, const
from bringup.ir.fused_multiply_add import fma
from bringup.ir.ops import BINARY, UNARY, is_exact
from bringup.ir.walk import bridges, indices_of, operands, subexpressions


def _array(expr: Const) -> Array:
    return np.asarray(expr.value, dtype=expr.type.compute)


def _const(value: Array, dtype: DType) -> Const:
    return const(np.asarray(value).item(), dtype)


def may_raise(expr: Expr) -> bool:
    """True if evaluating a value can be an IndexError, so that dropping it would lose one.

    >>> from bringup.ir.dtypes import float32
    >>> may_raise(const(1.0, float32))
    False
    """
    parts = subexpressions(expr)
    return any(bridge.mode != "skip" for part in parts for index in indices_of(part) for bridge in bridges(index))


def fold_value(expr: Expr) -> Expr:
    """The simpler equal value, or the same one.

    >>> from bringup.ir.dtypes import int32
    >>> fold_value(Binary("add", const(2, int32), const(3, int32))).value
    5
    """
    with np.errstate(all="ignore"):
        if operands(expr) and all(isinstance(e, Const) for e in operands(expr)) and not isinstance(expr, Load):
            folded = _constant(expr)
            if folded is not None:
                return folded
    if isinstance(expr, Binary):
        return _binary(expr)
    if isinstance(expr, Where):
        return _where(expr)
    if isinstance(expr, Cast) and expr.x.dtype == expr.type:
        return expr.x
    if isinstance(expr, Unary) and isinstance(expr.x, Unary) and expr.op == expr.x.op and expr.op in ("neg", "not"):
        return expr.x.x
    if isinstance(expr, Load) and isinstance(expr.guard, Const):
        return _load(expr)
    return expr


def _constant(expr: Expr) -> Const | None:
    if isinstance(expr, Unary) and isinstance(expr.x, Const) and is_exact(UNARY[expr.op], expr.x.dtype):
        return _const(arithmetic.unary(expr.op, _array(expr.x), expr.x.dtype), expr.dtype)
    if isinstance(expr, Binary) and isinstance(expr.a, Const) and isinstance(expr.b, Const):
        if is_exact(BINARY[expr.op], expr.a.dtype):
            return _const(arithmetic.binary(expr.op, _array(expr.a), _array(expr.b), expr.a.dtype), expr.dtype)
    elif isinstance(expr, Cast) and isinstance(expr.x, Const):
        return _const(arithmetic.cast(_array(expr.x), expr.x.dtype, expr.type), expr.type)
    elif isinstance(expr, Fma):
        a, b, c = (_array(e) for e in (expr.a, expr.b, expr.c) if isinstance(e, Const))
        return _const(fma(a, b, c, expr.dtype), expr.dtype)
    return None


def _is(expr: Expr, value: float) -> bool:
    """True for that constant; 0.0 and -0.0 differ."""
    return isinstance(expr, Const) and expr.dtype.name != "bool" and expr == const(value, expr.dtype)


def _binary(expr: Binary) -> Expr:
    op, a, b = expr.op, expr.a, expr.b
    floating = a.dtype.is_float
    if op == "mul":
        if _is(b, 1):
            return a
        if _is(a, 1):
            return b
        for zero, other in ((a, b), (b, a)):
            if not floating and _is(zero, 0) and not may_raise(other):
                return zero
    elif op == "add":
        nothing = -0.0 if floating else 0  # x + 0.0 turns -0.0 into 0.0
        if _is(b, nothing):
            return a
        if _is(a, nothing):
            return b
    elif (op == "sub" and _is(b, 0)) or (op in ("div", "truncdiv") and _is(b, 1)):
        return a
    elif op in ("and", "or"):
        if a == b and not may_raise(b):
            return a
        if a.dtype.name == "bool":
            for known, other in ((a, b), (b, a)):
                if isinstance(known, Const):
                    if bool(known.value) == (op == "and"):
                        return other
                    if not may_raise(other):
                        return known
    elif op in ("shl", "shr") and _is(b, 0):
        return a
    return expr


def _where(expr: Where) -> Expr:
    if isinstance(expr.condition, Const):
        kept, dropped = (expr.yes, expr.no) if expr.condition.value else (expr.no, expr.yes)
        return expr if may_raise(dropped) else kept
    if expr.yes == expr.no and not may_raise(expr.condition):
        return expr.yes
    return expr


def _load(expr: Load) -> Expr:
    assert isinstance(expr.guard, Const)
    if not expr.guard.value:
        return expr.other if expr.other is not None else const(0, expr.type)
    skips = any(bridge.mode == "skip" for index in expr.indices for bridge in bridges(index))
    if expr.other is not None and may_raise(expr.other):
        return expr
    return Load(expr.buffer, expr.indices, expr.type, None, expr.other if skips else None)
