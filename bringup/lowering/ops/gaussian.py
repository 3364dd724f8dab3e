"""The normal distribution: its quantile, the logarithm of its cumulative function, and erfcx, which that needs."""

from __future__ import annotations

import math

from bringup.ir.expr import Expr
from bringup.lowering.builder import KernelBuilder
from bringup.lowering.formulas import (
    SQRT_HALF,
    absolute,
    binary,
    erfc,
    exp,
    is_zero,
    log,
    log1p,
    polynomial,
    sqrt,
    where,
)
from bringup.lowering.ops import special_tables as table
from bringup.lowering.ops.bessel import chebyshev
from bringup.lowering.registry import pointwise


def _erfcx(k: KernelBuilder, x: Expr) -> Expr:
    """e^(x²) erfc(x): one Chebyshev series in 3 / (3 + |x|), reflected for negative x."""
    size = k.let(absolute(x))
    t = k.let(3.0 / (3.0 + size))
    found: Expr = k.let(t * chebyshev(k, 4.0 * t - 2.0, table.ERFCX))
    # Where t would be too small to tell 3 + x from x.
    found = where(size > 5e7, 1 / math.sqrt(math.pi) / size, found)
    return where(x < 0, 2.0 * exp(x * x) - found, found)


def _log_ndtr(k: KernelBuilder, x: Expr) -> Expr:
    t = k.let(x * SQRT_HALF)
    return where(x < -1.0, log(_erfcx(k, -t) * 0.5) - t * t, log1p(erfc(t) * -0.5))


_E_2 = math.exp(-2)


def _ndtri(k: KernelBuilder, p: Expr) -> Expr:
    """The quantile: a rational function in the middle, others of sqrt(-2 log p) in the tails."""
    upper = k.let(p > 1.0 - _E_2)
    tail = k.let(where(upper, 1.0 - p, p))
    middle = k.let(tail - 0.5)
    square = k.let(middle * middle)
    ratio = polynomial(square, table.NDTRI_P0) / polynomial(square, table.NDTRI_Q0)
    inside = (middle + middle * (square * ratio)) * math.sqrt(2 * math.pi)
    x = k.let(sqrt(-2.0 * log(tail)))
    z = k.let(1.0 / x)
    near = z * polynomial(z, table.NDTRI_P1) / polynomial(z, table.NDTRI_Q1)
    far = z * polynomial(z, table.NDTRI_P2) / polynomial(z, table.NDTRI_Q2)
    outside = k.let(x - log(x) / x - where(x < 8.0, near, far))
    found = where(tail > _E_2, inside, where(upper, outside, -outside))
    found = where((p < 0) | (p > 1.0), math.nan, found)
    return where(is_zero(p), -math.inf, where(binary("eq", p, 1.0), math.inf, found))


pointwise("aten::special_erfcx", _erfcx, to="float", builder=True)
pointwise("aten::special_log_ndtr", _log_ndtr, to="float", builder=True)
pointwise("aten::special_ndtri", _ndtri, to="float", builder=True)
