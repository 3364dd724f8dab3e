"""Ops that a language has no instruction for, in terms of simpler ones; each keeps the meaning that ir/ops.py gives it.

``expanded`` returns the value to render instead of an op. Such values hold two more nodes than the IR: ``Given``
computes a part once, and ``Machine`` is an instruction in its plain form, on operands for which every machine agrees.

Functions such as ``exp`` are there for float32 and computed in float64: at most 1 ulp off (test_webassembly.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Literal, TypeAlias

from bringup.ir.dtypes import DType, Kind, float32, float64, int32, int64
from bringup.ir.expr import Binary, Bits, Cast, Const, Expr, Fma, IndexValue, Name, Number, Param, Unary, Where, const

#: divide: towards 0, of integers, by neither 0 nor -1. shift_left, shift_right: by 0 … bits - 1, the sign stays.
#: convert: a float that fits to a signed integer, towards 0. reinterpret: the bits of any value but a NaN.
Plain: TypeAlias = Literal["divide", "shift_left", "shift_right", "convert", "reinterpret"]


@dataclass(frozen=True)
class Machine(Expr):
    """An instruction on operands for which it is defined."""

    op: Plain
    operands: tuple[Expr, ...]
    type: DType

    @property
    def dtype(self) -> DType:
        """The type of the result."""
        return self.type


@dataclass(frozen=True)
class Given(Expr):
    """``body``, which reads ``name`` for ``value``."""

    name: Name
    value: Expr
    body: Expr

    @property
    def dtype(self) -> DType:
        """The body's."""
        return self.body.dtype


_numbers = itertools.count()


def given(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """Returns ``body(value)``, where the body may use the value several times.

    >>> x = Name("x", float32)
    >>> given(x, lambda x: x * x)
    Binary(op='mul', a=Name(name='x', type=float32), b=Name(name='x', type=float32))
    """
    if isinstance(value, (Name, Param, Const, IndexValue)):
        return body(value)
    name = Name(f"given{next(_numbers)}", value.dtype)
    return Given(name, value, body(name))


def expanded(expr: Expr) -> Expr | None:
    """Returns an op, a cast, bits or a Fma in terms of simpler values; None if it is not known here.

    >>> x = Name("x", float32)
    >>> expanded(Unary("isnan", x)).op
    'ne'
    >>> expanded(Unary("sin", x)) is None
    True
    """
    if isinstance(expr, Fma):
        return _over((expr.a, expr.b, expr.c), _fma) if expr.dtype is float32 else None
    if isinstance(expr, Cast):
        return _cast(expr.x, expr.type)
    if isinstance(expr, Bits) and not (expr.type.is_float or expr.x.dtype.is_float):
        return Cast(expr.x, expr.type)
    if isinstance(expr, Bits):
        plain = Machine("reinterpret", (expr.x,), expr.type)
        if expr.type.is_float:
            return plain
        quiet = const(0x7FC00000 if expr.type.bits == 32 else 0x7FF8000000000000, expr.type)
        return given(expr.x, lambda x: Where(_equal(x, x), Machine("reinterpret", (x,), expr.type), quiet))
    if isinstance(expr, Unary):
        return _unary(expr)
    if not isinstance(expr, Binary):
        return None
    formulas = {Kind.FLOAT: _OF_FLOATS, Kind.INT: _OF_SIGNED, Kind.UINT: _OF_UNSIGNED}.get(expr.a.dtype.kind, {})
    formula = formulas.get(expr.op) or _BINARY.get(expr.op)
    return _over((expr.a, expr.b), formula) if formula else None


def _unary(expr: Unary) -> Expr | None:
    if expr.op in _OF_FLOAT32 and expr.dtype is float32:
        return Cast(given(Cast(expr.x, float64), _OF_FLOAT32[expr.op]), float32)
    formula = (_UNARY if expr.x.dtype.is_float else _UNARY_OF_INTEGERS).get(expr.op)
    return given(expr.x, formula) if formula else None


def _over(operands: tuple[Expr, ...], body: Callable[..., Expr]) -> Expr:
    """``given`` for several values."""
    if len(operands) == 1:
        return given(operands[0], body)
    return given(operands[0], lambda first: _over(operands[1:], lambda *rest: body(first, *rest)))


def _equal(a: Expr, b: Expr | Number) -> Expr:
    return Binary("eq", a, b if isinstance(b, Expr) else const(b, a.dtype))


def _polynomial(x: Expr, terms: list[float]) -> Expr:
    start: Expr = const(terms[-1], x.dtype)
    return reduce(lambda total, term: total * x + term, reversed(terms[:-1]), start)


# ---- integers ----
def _truncdiv(a: Expr, b: Expr) -> Expr:
    divisor = Where(_equal(b, 0) | _equal(b, -1), const(1, b.dtype), b)
    quotient = Machine("divide", (a, divisor), a.dtype)
    return Where(_equal(b, 0), const(-1, a.dtype), Where(_equal(b, -1), const(0, a.dtype) - a, quotient))


def _divide_unsigned(a: Expr, b: Expr) -> Expr:
    quotient = Machine("divide", (a, Where(_equal(b, 0), const(1, b.dtype), b)), a.dtype)
    return Where(_equal(b, 0), const(a.dtype.high, a.dtype), quotient)


def _fmod(a: Expr, b: Expr) -> Expr:
    return Where(_equal(b, 0), a, a - Binary("truncdiv", a, b) * b)


def _goes_down(rest: Expr, b: Expr) -> Expr:
    """True where a quotient rounded towards 0 is above the one rounded down."""
    return Binary("ne", rest, const(0, rest.dtype)) & (Binary("xor", rest, b) < 0)


def _floordiv(a: Expr, b: Expr) -> Expr:
    def corrected(quotient: Expr) -> Expr:
        rest = a - quotient * b
        down = given(rest, lambda rest: _goes_down(rest, b))
        return Where(_equal(b, 0), quotient, quotient - Cast(down, a.dtype))  # n // 0 is -1, as n / 0

    return given(Binary("truncdiv", a, b), corrected)


def _remainder(a: Expr, b: Expr) -> Expr:
    return given(_fmod(a, b), lambda rest: Where(_goes_down(rest, b), rest + b, rest))


def _shift(op: Plain) -> Callable[[Expr, Expr], Expr]:
    def shifted(a: Expr, b: Expr) -> Expr:
        if isinstance(b, Const) and 0 <= b.value < a.dtype.bits:
            return Machine(op, (a, b), a.dtype)
        inside = (b >= 0) & (b < a.dtype.bits)
        negative = op == "shift_right" and a.dtype.kind is Kind.INT
        far = Where(a < 0, const(-1, a.dtype), const(0, a.dtype)) if negative else const(0, a.dtype)
        return Where(inside, Machine(op, (a, Where(inside, b, const(0, b.dtype))), a.dtype), far)

    return shifted


# ---- floats ----
def _fma(a: Expr, b: Expr, c: Expr) -> Expr:
    """float64 holds the product of float32s; an inexact sum gets an odd last bit, so rounding it again is exact."""

    def odd(product: Expr, added: Expr, total: Expr) -> Expr:
        error = given(total - product, lambda high: (product - (total - high)) + (added - high))
        return _over((error, Bits(total, int64)), lambda error, bits: stepped(total, error, bits))

    def stepped(total: Expr, error: Expr, bits: Expr) -> Expr:
        even = _equal(bits & 1, 0) & (Unary("abs", error) > 0)
        step = Where(_equal(error > 0, total > 0), const(1, int64), const(-1, int64))
        return Where(even & Unary("isfinite", total), Bits(bits + step, float64), total)

    wide = [Cast(x, float64) for x in (a, b, c)]
    total = _over((wide[0] * wide[1], wide[2]), lambda p, c: given(p + c, lambda total: odd(p, c, total)))
    return Cast(total, float32)


def _exp(x: Expr) -> Expr:
    """e^x = 2^k e^r, of a float64 that a float32 holds; what lies beyond ±200 is 0 or infinite in float32."""

    def power(x: Expr, k: Expr) -> Expr:
        scale = Bits(Machine("shift_left", (Machine("convert", (k,), int64) + 1023, const(52, int64)), int64), float64)
        terms = [1 / math.factorial(n) for n in range(12)]
        return given(x - k * math.log(2), lambda r: _polynomial(r, terms)) * scale

    def finite(x: Expr) -> Expr:
        return given(Unary("round", x * (1 / math.log(2))), lambda k: power(x, k))

    inside = Where(x < 200, Where(x > -200, x, const(-200, float64)), const(200, float64))
    return Where(_equal(x, x), given(inside, finite), x)


def _log(x: Expr) -> Expr:
    """x = 2^e m with m around 1, and log m = 2 atanh s with s = (m - 1) / (m + 1)."""

    def sum_of(bits: Expr, e: Expr) -> Expr:
        m = Bits(bits - Machine("shift_left", (e, const(52, int64)), int64), float64)
        terms = [2 / (2 * n + 1) for n in range(10)]
        s = given(m, lambda m: (m - 1) / (m + 1))
        atanh = given(s, lambda s: given(s * s, lambda square: _polynomial(square, terms)) * s)
        return Cast(e, float64) * math.log(2) + atanh

    def positive(bits: Expr) -> Expr:
        root = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2), where m begins
        return given(Machine("shift_right", (bits - root, const(52, int64)), int64), lambda e: sum_of(bits, e))

    others = Where(_equal(x, 0), const(-math.inf, float64), const(math.nan, float64))
    return Where(x > 0, Where(_equal(x, math.inf), x, given(Bits(x, int64), positive)), others)


def _expm1(x: Expr) -> Expr:
    near = _polynomial(x, [1, 1 / 2, 1 / 6, 1 / 24, 1 / 120]) * x
    return Where(Unary("abs", x) < 1e-3, near, _exp(x) - 1)


def _log1p(x: Expr) -> Expr:
    near = _polynomial(x, [1, -1 / 2, 1 / 3, -1 / 4, 1 / 5]) * x
    return Where(Unary("abs", x) < 1e-3, near, given(x + 1, _log))


def _tanh(x: Expr) -> Expr:
    return given(given(x * 2, _expm1), lambda e: Where(_equal(x, 0), x, e / (e + 2)))


def _cast(x: Expr, to: DType) -> Expr | None:
    """A float as an integer: by way of int32 or int64, whose least number stands for what does not fit."""
    if to.kind is Kind.BOOL:
        return Binary("ne", x, const(0, x.dtype))
    if not x.dtype.is_float or not to.is_integer or (to.kind is Kind.UINT and to.bits == 64):
        return None
    wide = int64 if to.bits == 64 or (to.kind is Kind.UINT and to.bits == 32) else int32
    bound = const(2.0 ** (wide.bits - 1), x.dtype)

    def converted(x: Expr) -> Expr:
        inside = (x >= const(-(2.0 ** (wide.bits - 1)), x.dtype)) & (x < bound)
        plain = Machine("convert", (Where(inside, x, const(0, x.dtype)),), wide)
        return Where(inside, plain, const(wide.low, wide))

    value = given(x, converted)
    return value if to is wide else Cast(value, to)


_UNARY: dict[str, Callable[[Expr], Expr]] = {
    "sign": lambda x: Where(x > 0, const(1, x.dtype), Where(x < 0, const(-1, x.dtype), const(0, x.dtype))),
    "rsqrt": lambda x: const(1, x.dtype) / Unary("sqrt", x),
    "reciprocal": lambda x: const(1, x.dtype) / x,
    "isnan": lambda x: Binary("ne", x, x),
    "isinf": lambda x: _equal(Unary("abs", x), math.inf),
    "isfinite": lambda x: Unary("abs", x) < math.inf,
    "signbit": lambda x: Bits(x, int32 if x.dtype.bits == 32 else int64) < 0,
}
_UNARY_OF_INTEGERS: dict[str, Callable[[Expr], Expr]] = {
    "neg": lambda x: const(0, x.dtype) - x,
    "sign": lambda x: Cast(x > 0, x.dtype) - Cast(x < 0, x.dtype),
    "abs": lambda x: Where(x < 0, const(0, x.dtype) - x, x),
    "not": lambda x: Binary("xor", x, const(-1 if x.dtype.kind is Kind.INT else x.dtype.high, x.dtype)),
    "signbit": lambda x: x < 0,
}
_OF_FLOAT32: dict[str, Callable[[Expr], Expr]] = {
    "exp": _exp,
    "exp2": lambda x: given(x * math.log(2), _exp),
    "expm1": _expm1,
    "log": _log,
    "log2": lambda x: _log(x) * (1 / math.log(2)),
    "log10": lambda x: _log(x) * (1 / math.log(10)),
    "log1p": _log1p,
    "tanh": _tanh,
}
_BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "min": lambda a, b: Where(a < b, a, b),
    "max": lambda a, b: Where(a > b, a, b),
}
_OF_FLOATS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "min": lambda a, b: Where((a < b) | Binary("ne", a, a), a, b),
    "max": lambda a, b: Where((a > b) | Binary("ne", a, a), a, b),
    "copysign": lambda a, b: given(Unary("abs", a), lambda size: Where(Unary("signbit", b), -size, size)),
}
_OF_SIGNED: dict[str, Callable[[Expr, Expr], Expr]] = {
    "truncdiv": _truncdiv,
    "fmod": _fmod,
    "floordiv": _floordiv,
    "remainder": _remainder,
    "shl": _shift("shift_left"),
    "shr": _shift("shift_right"),
}
_OF_UNSIGNED: dict[str, Callable[[Expr, Expr], Expr]] = {
    "truncdiv": _divide_unsigned,
    "floordiv": _divide_unsigned,
    "fmod": _fmod,
    "remainder": _fmod,
    "shl": _shift("shift_left"),
    "shr": _shift("shift_right"),
}
