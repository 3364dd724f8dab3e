"""Expressions by their mathematical names: what the one-line definitions of pointwise ops are made of."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from bringup.ir.dtypes import boolean
from bringup.ir.expr import Binary, Expr, ExprLike, Unary, Where, const
from bringup.ir.ops import BINARY, UNARY, unknown_name
from bringup.lowering.call import NoKernel, NumberParam

SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)


def unary(op: str, x: Expr) -> Expr:
    """An op of the table; a type that it does not take is a case without a kernel.

    >>> from bringup.ir.dtypes import float32
    >>> unary("exp", const(0.0, float32)).dtype
    float32
    """
    if op not in UNARY:
        raise unknown_name(op, UNARY, "unary op")
    if not UNARY[op].accepts(x.dtype):
        raise NoKernel(f"{op} of {x.dtype}")
    return Unary(op, x)


def binary(op: str, a: Expr, b: ExprLike) -> Expr:
    """An op of the table; a type that it does not take is a case without a kernel.

    >>> from bringup.ir.dtypes import int8
    >>> binary("max", const(1, int8), 2).dtype
    int8
    """
    if op not in BINARY:
        raise unknown_name(op, BINARY, "binary op")
    if not BINARY[op].accepts(a.dtype):
        raise NoKernel(f"{op} of {a.dtype}")
    return Binary(op, a, b if isinstance(b, Expr) else const(b, a.dtype))


def unary_op(op: str) -> Callable[[Expr], Expr]:
    """The formula of a table op.

    >>> unary_op("exp").__name__
    'exp'
    """

    def formula(x: Expr) -> Expr:
        return unary(op, x)

    formula.__name__ = op
    return formula


def binary_op(op: str) -> Callable[[Expr, Expr], Expr]:
    """The formula of a table op of two operands.

    >>> binary_op("max").__name__
    'max'
    """

    def formula(a: Expr, b: Expr) -> Expr:
        return binary(op, a, b)

    formula.__name__ = op
    return formula


exp, exp2, expm1 = unary_op("exp"), unary_op("exp2"), unary_op("expm1")
log, log1p, log2 = unary_op("log"), unary_op("log1p"), unary_op("log2")
sin, cos, tan, tanh = unary_op("sin"), unary_op("cos"), unary_op("tan"), unary_op("tanh")
erf, erfc, lgamma = unary_op("erf"), unary_op("erfc"), unary_op("lgamma")
sqrt, absolute, floor, trunc = unary_op("sqrt"), unary_op("abs"), unary_op("floor"), unary_op("trunc")
maximum, minimum = binary_op("max"), binary_op("min")
equal, differs = binary_op("eq"), binary_op("ne")


def names() -> list[str]:
    """The functions that a formula may use, by name.

    >>> "sigmoid" in names()
    True
    """
    own = {name for name, thing in globals().items() if inspect.isfunction(thing) and thing.__module__ == __name__}
    return sorted(name for name in own - {"unary_op", "binary_op", "names"} if not name.startswith("_"))


def __getattr__(name: str) -> Any:
    """A name that is not here: the error says what was meant."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name in UNARY or name in BINARY:
        kind = "unary" if name in UNARY else "binary"
        raise AttributeError(f"bringup.formulas has no {name!r}: write {kind}({name!r}, …)")
    raise AttributeError(f"bringup.formulas: {unknown_name(name, names(), 'function of formulas')}")


def where(condition: Expr, yes: ExprLike, no: ExprLike) -> Expr:
    """One of two values; a number becomes a constant of the other's type.

    >>> from bringup.ir.dtypes import float32
    >>> where(const(True, boolean), const(1.0, float32), 0.0).dtype
    float32
    """
    if not isinstance(yes, Expr):
        assert isinstance(no, Expr)
        yes = const(yes, no.dtype)
    return Where(condition, yes, no if isinstance(no, Expr) else const(no, yes.dtype))


def false(_: Any = None) -> Expr:
    """The truth value of a question that a type cannot answer with yes.

    >>> false().dtype
    bool
    """
    return const(False, boolean)


def is_nan(x: Expr) -> Expr:
    """NaN; no integer is one.

    >>> is_nan(const(True, boolean)) == false()
    True
    """
    return unary("isnan", x) if x.dtype.is_float else false()


def is_zero(x: Expr) -> Expr:
    """x == 0.

    >>> from bringup.ir.dtypes import float32
    >>> is_zero(const(1.0, float32)).dtype
    bool
    """
    return binary("eq", x, 0)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x).

    >>> from bringup.ir.dtypes import float32
    >>> sigmoid(const(1.0, float32)).dtype
    float32
    """
    return 1.0 / (1.0 + exp(-x))


def log_sigmoid(x: Expr) -> Expr:
    """log(sigmoid(x)) that neither overflows nor cancels.

    >>> from bringup.ir.dtypes import float32
    >>> log_sigmoid(const(1.0, float32)).dtype
    float32
    """
    return minimum(x, const(0.0, x.dtype)) - log1p(exp(-absolute(x)))


def clamped(x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    """min(max(x, low), high); None is not a bound, a NaN stays.

    >>> from bringup.ir.dtypes import float32
    >>> clamped(const(1.0, float32), None, None)
    Const(bits=1065353216, type=float32)
    """
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule, the highest power first.

    >>> from bringup.ir.dtypes import float32
    >>> polynomial(const(1.0, float32), [2.0])
    Const(bits=1073741824, type=float32)
    """
    total: Expr = const(coefficients[0], x.dtype)
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def scaled(factor: Expr, x: Expr) -> Expr:
    """factor × x, where the number 1 is not a multiplication.

    >>> from bringup.ir.dtypes import float32
    >>> scaled(const(2.0, float32), const(1.0, float32)).dtype
    float32
    """
    return x if isinstance(factor, NumberParam) and factor.equals(1) else factor * x
