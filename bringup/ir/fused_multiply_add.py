"""a × b + c with one rounding, on NumPy arrays, without hardware or libm: error-free sums and rounding to odd."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from bringup.ir.dtypes import Array, DType, float32


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b = sum + error, exactly."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """a × b = product + error, exactly (Dekker; no overflow, no underflow)."""
    product = a * b
    split_a, split_b = a * 134217729.0, b * 134217729.0
    a_high, b_high = split_a - (split_a - a), split_b - (split_b - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _to_odd(total: Array, error: Array) -> Array:
    """The sum of two float64 rounded to odd: a second, shorter rounding then gives what one rounding would."""
    odd = (np.ascontiguousarray(total).view(np.int64).reshape(np.shape(total)) & 1) == 1
    moved = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & ~odd & np.isfinite(total), moved, total)


def _fma64_exact(a: float, b: float, c: float) -> float:
    """One element by rational arithmetic, for the ranges where the error-free sums would over- or underflow."""
    if math.isfinite(a) and math.isfinite(b) and not math.isfinite(c):
        return c  # whatever a × b is: it may overflow in float64, but it is finite
    if not (math.isfinite(a) and math.isfinite(b)):
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return float(np.float64(a) * np.float64(b) + np.float64(c))  # the sign of zero follows IEEE
    try:
        return exact.numerator / exact.denominator  # Python's integer division rounds correctly
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _fma64(a: Array, b: Array, c: Array) -> Array:
    high, low = _two_product(a, b)
    total_high, total_low = _two_sum(c, low)
    sum_high, sum_low = _two_sum(high, total_high)
    result = sum_high + _to_odd(*_two_sum(total_low, sum_low))
    with np.errstate(all="ignore"):
        size_a, size_b, size_c = (np.frexp(v)[1] for v in (a, b, c))
    product = size_a + size_b
    plain = (np.abs(size_a) < 500) & (np.abs(size_b) < 500) & (np.abs(product) < 800) & (np.abs(size_c) < 800)
    plain &= np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0) & (c != 0) & (result != 0)
    if np.all(plain):
        return result
    result = np.array(result)
    for at in np.argwhere(~plain):
        place = tuple(at)
        result[place] = _fma64_exact(float(a[place]), float(b[place]), float(c[place]))
    return result


def fma(a: Array, b: Array, c: Array, dtype: DType) -> Array:
    """a × b + c in float32 or float64, rounded once.

    >>> tiny = np.float32(2.0**-12)
    >>> fma(1 + tiny, 1 - tiny, np.float32(-1), float32) == -np.float32(2.0**-24)
    np.True_
    """
    with np.errstate(all="ignore"):
        wide = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (a, b, c)))
        if dtype is not float32:
            return _fma64(*wide)
        product = wide[0] * wide[1]  # exact: 48 bits
        return _to_odd(*_two_sum(product, wide[2])).astype(np.float32)
