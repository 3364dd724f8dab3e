"""Bessel functions of orders 0 and 1, modified and not, spherical, and Airy's: PyTorch's own approximations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bringup.ir.expr import Expr, const
from bringup.lowering.builder import KernelBuilder
from bringup.lowering.formulas import absolute, binary, cos, exp, is_zero, log, polynomial, sin, sqrt, unary, where
from bringup.lowering.ops import special_tables as table
from bringup.lowering.registry import pointwise


def chebyshev(k: KernelBuilder, y: Expr, coefficients: Sequence[float]) -> Expr:
    """A Chebyshev series by Clenshaw's recurrence; y is twice the argument of the polynomials."""
    y = k.let(y)
    before: Expr = const(0.0, y.dtype)
    last: Expr = const(0.0, y.dtype)
    total: Expr = const(coefficients[0], y.dtype)
    for coefficient in coefficients[1:]:
        before, last = last, total
        total = k.let(y * last - before + coefficient)
    return 0.5 * (total - before)


# ---- modified ----


def _i(order: int, scaled: bool) -> Any:
    near, far = (table.I0_NEAR, table.I0_FAR) if order == 0 else (table.I1_NEAR, table.I1_FAR)

    def formula(k: KernelBuilder, x: Expr) -> Expr:
        size = k.let(absolute(x))
        inside = chebyshev(k, size * 0.5 - 2.0, near)
        if order == 1:
            inside = inside * size
        outside = chebyshev(k, 32.0 / size - 2.0, far)
        if not scaled:
            growth = k.let(exp(size))
            inside, outside = growth * inside, growth * outside
        found = where(size <= 8.0, inside, outside / sqrt(size))
        return where(x < 0, -found, found) if order == 1 else found

    return formula


def _k(order: int, scaled: bool) -> Any:
    near, far = (table.K0_NEAR, table.K0_FAR) if order == 0 else (table.K1_NEAR, table.K1_FAR)

    def formula(k: KernelBuilder, x: Expr) -> Expr:
        series = chebyshev(k, x * x - 2.0, near)
        product = log(0.5 * x) * _i(order, False)(k, x)
        inside = series - product if order == 0 else product + series / x
        outside = chebyshev(k, 8.0 / x - 2.0, far)
        if scaled:
            inside = inside * exp(x)
        else:
            outside = exp(-x) * outside
        found = where(x <= 2.0, inside, outside / sqrt(x))
        return where(is_zero(x), math.inf, where(x < 0, math.nan, found))

    return formula


for _name, _formula in {
    "i0": _i(0, scaled=False),
    "special_i0e": _i(0, scaled=True),
    "special_i1": _i(1, scaled=False),
    "special_i1e": _i(1, scaled=True),
    "special_modified_bessel_i0": _i(0, scaled=False),
    "special_modified_bessel_i1": _i(1, scaled=False),
    "special_modified_bessel_k0": _k(0, scaled=False),
    "special_modified_bessel_k1": _k(1, scaled=False),
    "special_scaled_modified_bessel_k0": _k(0, scaled=True),
    "special_scaled_modified_bessel_k1": _k(1, scaled=True),
}.items():
    pointwise(f"aten::{_name}", _formula, to="float", builder=True)

# ---- first and second kind ----

_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


def _far(k: KernelBuilder, x: Expr, order: int, second: bool) -> Expr:
    """Beyond 5: a wave of falling height."""
    t = table
    p, q = ((t.J0_PP, t.J0_PQ), (t.J0_QP, t.J0_QQ)) if order == 0 else ((t.J1_PP, t.J1_PQ), (t.J1_QP, t.J1_QQ))
    z = k.let(5.0 / x * (5.0 / x))
    phase = k.let(x - math.pi * (0.25 + 0.5 * order))
    along, across = (sin(phase), cos(phase)) if second else (cos(phase), -sin(phase))
    height = polynomial(z, p[0]) / polynomial(z, p[1]) * along
    shift = 5.0 / x * (polynomial(z, q[0]) / polynomial(z, q[1])) * across
    return (height + shift) * _SQRT_2_OVER_PI / sqrt(x)


def _j(k: KernelBuilder, x: Expr, order: int) -> Expr:
    size = k.let(absolute(x))
    square = k.let(size * size)
    if order == 0:
        near = (
            (square - 5.78318596294678452118)
            * (square - 30.4712623436620863991)
            * polynomial(square, table.J0_RP)
            / polynomial(square, table.J0_RQ)
        )
        near = where(size < 0.00001, 1.0 - square / 4.0, near)
    else:
        ratio = polynomial(square, table.J1_RP) / polynomial(square, table.J1_RQ)
        near = ratio * size * (square - 14.6819706421238932572) * (square - 49.2184563216946036703)
    found = where(size <= 5.0, near, _far(k, size, order, second=False))
    return where(x < 0, -found, found) if order == 1 else found


def _y(k: KernelBuilder, x: Expr, order: int) -> Expr:
    square = k.let(x * x)
    if order == 0:
        extra = polynomial(square, table.Y0_P) / polynomial(square, table.Y0_Q)
        near = extra + 2 / math.pi * log(x) * _j(k, x, 0)
    else:
        extra = x * (polynomial(square, table.Y1_P) / polynomial(square, table.Y1_Q))
        near = extra + 2 / math.pi * (_j(k, x, 1) * log(x) - 1.0 / x)
    found = where(x <= 5.0, near, _far(k, x, order, second=True))
    return where(is_zero(x), -math.inf, where(x < 0, math.nan, found))


def _spherical(k: KernelBuilder, x: Expr) -> Expr:
    square = k.let(x * x)
    series = polynomial(square, [(-1.0) ** n / math.factorial(2 * n + 1) for n in range(6, -1, -1)])
    return where(unary("isinf", x), 0.0, where(absolute(x) < 0.5, series, sin(x) / x))


pointwise("aten::special_bessel_j0", lambda k, x: _j(k, x, 0), to="float", builder=True)
pointwise("aten::special_bessel_j1", lambda k, x: _j(k, x, 1), to="float", builder=True)
pointwise("aten::special_bessel_y0", lambda k, x: _y(k, x, 0), to="float", builder=True)
pointwise("aten::special_bessel_y1", lambda k, x: _y(k, x, 1), to="float", builder=True)
pointwise("aten::special_spherical_bessel_j0", _spherical, to="float", builder=True)

# ---- Airy ----


def _airy_series(k: KernelBuilder, x: Expr) -> Expr:
    """Around 0: two power series in x³; 16 terms reach the last bit of float64 below 2.09."""
    cube = k.let(x * x * x)
    f: Expr = const(1.0, x.dtype)
    g: Expr = x
    m, n = f, g
    for step in range(16):
        a = 3.0 * step
        m = k.let(m * cube / ((a + 2.0) * (a + 3.0)))
        n = k.let(n * cube / ((a + 3.0) * (a + 4.0)))
        f, g = k.let(f + m), k.let(g + n)
    return 0.355028053887817239260 * f - 0.258819403792806798405 * g


def _airy(k: KernelBuilder, x: Expr) -> Expr:
    size = k.let(absolute(x))
    zeta = k.let(2.0 * size * sqrt(size) / 3.0)
    z = k.let(1.0 / zeta)
    square = k.let(z * z)
    root = k.let(sqrt(sqrt(size)))
    phase = k.let(zeta + 0.25 * math.pi)
    height = 1.0 + square * polynomial(square, table.AIRY_FN) / polynomial(square, table.AIRY_FD)
    shift = z * polynomial(square, table.AIRY_GN) / polynomial(square, table.AIRY_GD)
    inv_sqrt_pi = 1 / math.sqrt(math.pi)
    below = inv_sqrt_pi / root * (sin(phase) * height - cos(phase) * shift)
    ratio = polynomial(z, table.AIRY_N) / polynomial(z, table.AIRY_D)
    above = inv_sqrt_pi * ratio / (2.0 * root * exp(zeta))
    found = where(x < -2.09, below, where(x >= 2.09, above, _airy_series(k, x)))
    return where(unary("isinf", x), math.nan, where(binary("gt", x, 103.892), 0.0, found))


pointwise("aten::special_airy_ai", _airy, to="float", builder=True)
