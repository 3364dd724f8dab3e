"""Comparing results: equal bits (all NaNs alike), and the distance in units of the last place."""

from __future__ import annotations

import numpy as np

from bringup.ir.dtypes import Array, DType, from_storage


def same_bits(a: Array, b: Array, dtype: DType) -> bool:
    """True if two arrays in storage form hold the same values; 0.0 and -0.0 differ, NaNs do not.

    >>> from bringup.ir.dtypes import float32
    >>> same_bits(np.float32([0.0, np.nan]), np.float32([-0.0, np.nan]), float32)
    False
    """
    return a.shape == b.shape and not np.any(ulp_distance(a, b, dtype))


def ulp_distance(a: Array, b: Array, dtype: DType) -> Array:
    """How many numbers of the type lie between two values, as float64; inf where only one is NaN; integers: |a - b|.

    >>> from bringup.ir.dtypes import float32
    >>> ulp_distance(np.float32([1.0]), np.nextafter(np.float32([1.0]), np.float32(2)), float32)
    array([1.])
    """
    if not dtype.is_float:
        return np.asarray(np.abs(a.astype(np.float64) - b.astype(np.float64)) + (a != b))
    nan_a, nan_b = np.isnan(from_storage(a, dtype)), np.isnan(from_storage(b, dtype))
    with np.errstate(over="ignore"):  # the difference of two int64 fits uint64
        left, right = _ordered(a, dtype), _ordered(b, dtype)
        distance = np.where(left > right, left - right, right - left).astype(np.uint64).astype(np.float64)
    return np.asarray(np.where(nan_a & nan_b, 0.0, np.where(nan_a | nan_b, np.inf, distance)))


def _ordered(a: Array, dtype: DType) -> Array:
    """Bits as integers in the order of the numbers, -0.0 one below 0.0."""
    unsigned = np.dtype(f"u{dtype.size}")
    bits = np.ascontiguousarray(a).view(unsigned).reshape(a.shape).astype(np.int64)
    if dtype.size == 8:
        return np.asarray(np.where(bits < 0, np.int64(-0x8000000000000000) - bits - 1, bits))
    top = np.int64(1) << np.int64(8 * dtype.size - 1)
    return np.asarray(np.where(bits >= top, top - bits - 1, bits))
