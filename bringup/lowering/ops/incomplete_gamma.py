"""The incomplete gamma functions: series, continued fraction and uniform expansion, each where ATen uses it.

All in float64, with a fixed number of steps: what the power x^a e^-x / gamma(a) loses, float32 would show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bringup.ir.dtypes import DType, float64
from bringup.ir.expr import Cast, Expr, IndexValue, const
from bringup.ir.index import AxisVar
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.formulas import absolute, binary, erfc, exp, is_zero, lgamma, log, log1p, sqrt, unary, where
from bringup.lowering.ops import special_tables as table
from bringup.lowering.registry import pointwise

_LANCZOS_G = 6.024680040776729583740234375
#: Above this shape the uniform expansion serves the neighbourhood of x = a.
_LARGE = 200.0
_BIG = 2.0**52


def _steps(dtype: DType) -> int:
    """Enough for shapes up to 150 000 in float64 (ATen's own limit), 30 000 in float32."""
    return 2000 if dtype is float64 else 500


def _polynomial(k: KernelBuilder, x: Expr, lowest_first: Sequence[float]) -> Expr:
    total: Expr = const(lowest_first[-1], x.dtype)
    for coefficient in reversed(lowest_first[:-1]):
        total = k.let(total * x + coefficient)
    return total


def _power(k: KernelBuilder, a: Expr, x: Expr) -> Expr:
    """x^a e^-x / gamma(a)."""
    far = exp(a * log(x) - x - lgamma(a))
    base = k.let(a + (_LANCZOS_G - 0.5))
    # Both polynomials have the same degree: the ratio may be taken in 1 / a, where nothing overflows.
    over = _polynomial(k, 1.0 / a, table.LANCZOS_OVER)
    under = _polynomial(k, 1.0 / a, table.LANCZOS_UNDER)
    scale = k.let(sqrt(base * math.exp(-1)) * under / over)
    ratio = k.let((x - a - (_LANCZOS_G - 0.5)) / base)
    small = exp(a - x) * binary("pow", x / base, a)
    large = exp(a * (log1p(ratio) - ratio) + x * (0.5 - _LANCZOS_G) / base)
    near = scale * where((a < 200.0) & (x < 200.0), small, large)
    return k.let(where(absolute(a - x) > absolute(a) * 0.4, far, near))


def _series(k: KernelBuilder, a: Expr, x: Expr, steps: int) -> Expr:
    """The lower function over the power: the sum of x^n / ((a + 1) … (a + n)), over a."""

    def step(n: AxisVar, state: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        term, total = state
        term = k.let(term * (x / (a + Cast(IndexValue(n + 1), float64))))
        return term, total + term

    one = const(1.0, float64)
    return k.sequential(steps, (one, one), step)[1] / a


def _fraction(k: KernelBuilder, a: Expr, x: Expr, steps: int) -> Expr:
    """The upper function over the power, by its continued fraction (DLMF 8.9.2)."""

    def step(n: AxisVar, state: tuple[Expr, ...]) -> tuple[Expr, ...]:
        p, q, p_before, q_before, found = state
        c = k.let(Cast(IndexValue(n + 1), float64))
        y, z = c + (1.0 - a), k.let(x - a + 2.0 + c + c)
        p_next, q_next = k.let(p * z - p_before * (y * c)), k.let(q * z - q_before * (y * c))
        found = where(is_zero(q_next), found, p_next / q_next)
        scale = k.let(where(absolute(p_next) > _BIG, const(1 / _BIG, float64), 1.0))
        return p_next * scale, q_next * scale, p * scale, q * scale, found

    p, q = k.let(x + 1.0), k.let(x * (x - a + 2.0))
    return k.sequential(steps, (p, q, const(1.0, float64), x, k.let(p / q)), step)[4]


def _upper_near_zero(k: KernelBuilder, a: Expr, x: Expr) -> Expr:
    """The upper function for x up to 1.1 (DLMF 8.7.3)."""

    def step(n: AxisVar, state: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        factor, total = state
        number = k.let(Cast(IndexValue(n + 1), float64))
        factor = k.let(-factor * x / number)
        return factor, total + factor / (a + number)

    total = k.sequential(25, (const(1.0, float64), const(0.0, float64)), step)[1]
    power = k.let(a * log(x))
    return -unary("expm1", power - lgamma(a + 1.0)) - exp(power - lgamma(a)) * total


def _uniform(k: KernelBuilder, a: Expr, x: Expr, upper: bool) -> Expr:
    """Either function near x = a for large a (DLMF 8.12.3)."""
    sigma = k.let((x - a) / a)
    size = sqrt(binary("max", (log1p(sigma) - sigma) * -2.0, const(0.0, float64)))
    eta = k.let(where(sigma < 0, -size, size))
    total: Expr = const(0.0, float64)
    for row in reversed(table.GAMMA_UNIFORM):
        total = k.let(total / a + _polynomial(k, eta, row))
    sign = 1.0 if upper else -1.0
    rest = exp(eta * eta * a * -0.5) * total / sqrt(a * (2 * math.pi))
    return erfc(eta * sqrt(a * 0.5) * sign) * 0.5 + rest * sign


def _incomplete_gamma(upper: bool) -> Callable[[KernelBuilder, Expr, Expr], Expr]:
    def formula(k: KernelBuilder, shape: Expr, point: Expr) -> Expr:
        steps = _steps(shape.dtype)
        a, x = k.let(convert(shape, float64)), k.let(convert(point, float64))
        power = _power(k, a, x)
        nothing = is_zero(power)
        low = k.let(where(nothing, 0.0, power * _series(k, a, x, steps)))
        high = k.let(where(nothing, 0.0, power * _fraction(k, a, x, steps)))
        small = _upper_near_zero(k, a, x)
        # From below for x < a, roughly; where x is small the upper function has a series of its own.
        from_low = where(x > 1.1, x < a, where(x <= 0.5, unary("reciprocal", log(x)) * -0.4 < a, x * 1.1 < a))
        if upper:
            found = where(from_low, 1.0 - low, where(x > 1.1, high, small))
        else:
            found = where((x > 1.0) & (x > a), 1.0 - where(x > 1.1, high, small), low)
        distance = absolute(x - a) / a
        uniform = (a > _LARGE) & (distance < 4.5 / sqrt(a))
        found = where(uniform, _uniform(k, a, x, upper), found)
        zero, one = (1.0, 0.0) if upper else (0.0, 1.0)
        found = where(unary("isinf", x), one, found)
        found = where(unary("isinf", a), where(unary("isinf", x), math.nan, const(zero, float64)), found)
        found = where(is_zero(x), zero, found)
        found = where(is_zero(a), where(x > 0, one, const(math.nan, float64)), found)
        wrong = (x < 0) | (a < 0) | unary("isnan", x) | unary("isnan", a)
        return convert(where(wrong, math.nan, found), shape.dtype)

    return formula


pointwise("aten::igamma", _incomplete_gamma(upper=False), to="float", builder=True)
pointwise("aten::igammac", _incomplete_gamma(upper=True), to="float", builder=True)
