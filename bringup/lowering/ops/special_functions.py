"""Exponentials, logarithms, trigonometry, gamma and zeta functions: a line per op where the IR has the function."""

from __future__ import annotations

import math
from typing import Any

from bringup.ir.dtypes import int32
from bringup.ir.expr import Expr, const
from bringup.lowering.builder import KernelBuilder
from bringup.lowering.call import Call, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.formulas import (
    absolute,
    binary,
    binary_op,
    exp,
    exp2,
    floor,
    is_nan,
    is_zero,
    lgamma,
    log,
    log1p,
    maximum,
    minimum,
    sin,
    unary,
    unary_op,
    where,
)
from bringup.lowering.registry import lowering, pointwise
from bringup.lowering.scalar_types import opmath

_BOTH = (0, 1)

for _op in (
    *("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "digamma"),
):
    pointwise(f"aten::{_op}", unary_op(_op), to="float")
pointwise("aten::atan2", binary_op("atan2"), to="float")

# ---- with their limits written out ----


def _angle(x: Expr) -> Expr:
    return where(is_nan(x), x, where(x < 0, math.pi, const(0, x.dtype)))


def _sinc(x: Expr) -> Expr:
    z = x * math.pi
    return where(is_zero(x), 1.0, sin(z) / z)


def _logit(x: Expr, eps: Expr | None) -> Expr:
    if eps is not None:
        x = minimum(maximum(x, eps), 1.0 - eps)
    return log(x / (1.0 - x))


def _logit_backward(g: Expr, x: Expr, eps: Expr | None) -> Expr:
    slope = g / (x * (1.0 - x))
    if eps is None:
        return where((x < 0) | (x > 1), math.nan, slope)
    return where((x < eps) | (x > 1.0 - eps), 0.0, slope)


def _entropy(x: Expr) -> Expr:
    return where(is_nan(x), x, where(x > 0, -x * log(x), where(is_zero(x), const(0, x.dtype), -math.inf)))


def _times_log(logarithm: Any) -> Any:
    """x × log(y), 0 where x is."""
    return lambda x, y: where(is_nan(y), math.nan, where(is_zero(x), 0.0, x * logarithm(y)))


def _log_add(k: KernelBuilder, x: Expr, y: Expr) -> Expr:
    """log(e^x + e^y) from the larger one; equal infinities would give NaN."""
    larger = k.let(maximum(x, y))
    infinite = unary("isinf", x) & binary("eq", x, y)
    return where(infinite, x, larger + log1p(exp(-absolute(x - y))))


def _log_add_2(k: KernelBuilder, x: Expr, y: Expr) -> Expr:
    larger = k.let(maximum(x, y))
    infinite = unary("isinf", x) & binary("eq", x, y)
    return where(infinite, x, larger + log1p(exp2(-absolute(x - y))) * (1 / math.log(2)))


def _log_gamma_product(x: Expr, p: int) -> Expr:
    if p < 1:
        raise RuntimeError("p has to be greater than or equal to 1")
    total: Expr = const(p * (p - 1) / 4 * math.log(math.pi), x.dtype)
    for i in range(p):
        total = total + lgamma(x - i / 2)
    return total


pointwise("aten::angle", _angle, to="float")
pointwise("aten::sinc", _sinc, to="float")
pointwise("aten::logit", _logit, to="float")
pointwise("aten::logit_backward", _logit_backward)
pointwise("aten::special_entr", _entropy, to="float")
pointwise("aten::xlogy.Tensor", _times_log(log), to="float")
pointwise("aten::xlogy.Scalar_Other aten::xlogy.Scalar_Self", _times_log(log), to="float", promote=_BOTH)
pointwise("aten::special_xlog1py", _times_log(log1p), to="float")
pointwise(
    "aten::special_xlog1py.other_scalar aten::special_xlog1py.self_scalar",
    _times_log(log1p),
    to="float",
    promote=_BOTH,
)
pointwise("aten::logaddexp", _log_add, builder=True)
pointwise("aten::logaddexp2", _log_add_2, builder=True)
pointwise("aten::mvlgamma", _log_gamma_product, to="float")

# ---- zeta and polygamma ----

#: (2k)! / B_2k of the Euler-Maclaurin sum.
_ZETA_TERMS = (
    12.0,
    -720.0,
    30240.0,
    -1209600.0,
    47900160.0,
    -1.8924375803183791606e9,
    7.47242496e10,
    -2.950130727918164224e12,
    1.1646782814350067249e14,
    -4.5979787224074726105e15,
    1.8152105401943546773e17,
    -7.1661652561756670113e18,
)


def _positive_zeta(k: KernelBuilder, x: Expr, q: Expr) -> Expr:
    """sum of (q + n)^-x for q > 0: ten terms, then Euler-Maclaurin."""
    total: Expr = binary("pow", q, -x)
    for n in range(1, 10):
        total = k.let(total + binary("pow", q + float(n), -x))
    a = k.let(q + 9.0)
    power = k.let(binary("pow", a, -x))
    total = k.let(total + power * a / (x - 1.0) - 0.5 * power)
    factor, n = x, 0
    for term in _ZETA_TERMS:
        power = k.let(power / a)
        total = k.let(total + where(power > 0.0, factor * power / term, 0.0))  # the factor may be infinite by then
        power = k.let(power / a)
        factor = k.let(factor * (x + (n + 1.0)) * (x + (n + 2.0)))
        n += 2
    return total


def _zeta(k: KernelBuilder, x: Expr, q: Expr) -> Expr:
    """Hurwitz's zeta function. For q < 0 (x an integer) the terms below 0 are a difference of two positive sums."""
    negative = k.let(q < 0)
    fraction = k.let(q - floor(q))
    upward = _positive_zeta(k, x, where(negative, fraction, q))
    below = _positive_zeta(k, x, where(negative, 1.0 - fraction, 1.0)) - _positive_zeta(
        k, x, where(negative, 1.0 - q, 1.0)
    )
    odd = binary("ne", binary("remainder", x, 2.0), 0.0)
    found = where(negative, upward + where(odd, -below, below), upward)
    pole = where(binary("eq", q, floor(q)), math.inf, where(binary("eq", x, floor(x)), found, math.nan))
    found = where(q <= 0, pole, found)
    return where(binary("eq", x, 1.0), math.inf, where(x < 1.0, math.nan, found))


def _trigamma(k: KernelBuilder, x: Expr) -> Expr:
    reflected = k.let(x < 0.5)
    slope = k.let(math.pi / sin(x * math.pi))
    z: Expr = k.let(where(reflected, 1.0 - x, x))
    total: Expr = where(reflected, -(slope * slope), 0.0)
    for n in range(6):
        shifted = z + float(n)
        total = total + 1.0 / (shifted * shifted)
    z = k.let(z + 6.0)
    square = k.let(1.0 / (z * z))
    series = 1.0 / 6 - square * (1.0 / 30 - square * (1.0 / 42))
    total = k.let(total + (1.0 + 1.0 / (2.0 * z) + square * series) / z)
    return where(reflected, -total, total)


def _polygamma(k: KernelBuilder, n: int, x: Expr) -> Expr:
    if n == 0:
        return unary("digamma", x)
    if n == 1:
        return _trigamma(k, x)
    sign = 1.0 if n % 2 else -1.0
    return _zeta(k, const(n + 1.0, x.dtype), x) * (sign * math.exp(math.lgamma(n + 1)))


pointwise("aten::special_zeta", _zeta, to="float", builder=True)
pointwise(
    "aten::special_zeta.other_scalar aten::special_zeta.self_scalar", _zeta, to="float", promote=_BOTH, builder=True
)
pointwise("aten::polygamma", _polygamma, to="float", builder=True)


@lowering("aten::frexp.Tensor")
def frexp(call: Call, self: Tensor) -> None:
    """The mantissa in ½ … 1 and the power of 2: exact multiplications by powers, the largest first."""

    def formula(k: KernelBuilder, x: Expr) -> tuple[Expr, Expr]:
        size: Expr = k.let(absolute(x))
        exponent: Expr = const(0, int32)
        top = 9 if x.dtype.size == 8 else 6
        # Twice 2^top, so that subnormals come up all the way.
        for bit in (top, *range(top, -1, -1)):
            step = 1 << bit
            big, small = k.let(size >= 2.0**step), k.let(size < 2.0**-step)
            size = k.let(where(big, size * 2.0**-step, where(small, size * 2.0**step, size)))
            exponent = k.let(exponent + where(big, step, where(small, -step, const(0, int32))))
        big = k.let(size >= 1.0)
        plain = unary("isfinite", x) & binary("ne", x, 0.0)
        mantissa = binary("copysign", where(big, size * 0.5, size), x)
        return where(plain, mantissa, x), where(plain, where(big, exponent + 1, exponent), 0)

    elementwise(call, call.outs, (self,), formula, opmath(self.dtype), builder=True)
