"""What each op does to NumPy values: the one place that defines integer wrapping, NaN rules, casts and rounding.

Values are in compute form: half types as float32 numbers that a half can hold (dtypes.py). Call under
``np.errstate(all="ignore")``: overflow, 0/0 and wrapping are meant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bringup.ir import functions
from bringup.ir.dtypes import (
    Array,
    DType,
    bfloat16_bits,
    bfloat16_values,
    boolean,
    float16,
    int32,
    int64,
    round_values,
    uint32,
    uint64,
)
from bringup.ir.ops import BINARY, UNARY


def _sign(x: Array) -> Array:
    return ((x > 0).astype(np.int8) - (x < 0).astype(np.int8)).astype(x.dtype)


def _one(x: Array) -> Any:
    return x.dtype.type(1)


_UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": lambda x: np.negative(x),
    "abs": np.abs,
    "sign": _sign,
    "not": np.invert,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: _one(x) / np.sqrt(x),
    "reciprocal": lambda x: _one(x) / x,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "signbit": lambda x: np.signbit(x) & ~np.isnan(x) if x.dtype.kind == "f" else x < 0,
}


def unary(op: str, x: Array, dtype: DType) -> Array:
    """A unary op on values of a type.

    >>> from bringup.ir.dtypes import int8
    >>> unary("neg", np.int8([-128]), int8)
    array([-128], dtype=int8)
    """
    x = np.asarray(x)
    result = functions.function(op, x, dtype) if UNARY[op].transcendental else _UNARY[op](x)
    return result if UNARY[op].returns_bool else round_values(result, dtype)


def _integer_floor(a: Array, b: Array) -> tuple[Array, Array]:
    """Quotient and remainder, rounded down; by 0: all bits set and the dividend; by -1: without overflow."""
    odd = (b == 0) | (b == -1) if b.dtype.kind == "i" else b == 0
    safe = np.where(odd, _one(b), b)
    quotient = np.where(odd, np.where(b == 0, np.invert(np.zeros_like(a)), np.negative(a)), a // safe)
    rest = np.where(odd, np.where(b == 0, a, np.zeros_like(a)), a % safe)
    return quotient, rest


def _integer_trunc(a: Array, b: Array) -> tuple[Array, Array]:
    quotient, rest = _integer_floor(a, b)
    up = (rest != 0) & ((a < 0) != (b < 0)) & (b != 0)
    return np.where(up, quotient + _one(quotient), quotient), np.where(up, rest - b, rest)


def _floordiv(a: Array, b: Array) -> Array:
    if a.dtype.kind != "f":
        return _integer_floor(a, b)[0]
    rest = np.fmod(a, b)
    quotient = (a - rest) / b
    quotient = np.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - _one(a), quotient)
    down = np.floor(quotient)
    down = np.where(quotient - down > a.dtype.type(0.5), down + _one(a), down)
    down = np.where(quotient != 0, down, np.copysign(a.dtype.type(0), a / b))
    return np.where(b == 0, a / b, down)


def _remainder(a: Array, b: Array) -> Array:
    if a.dtype.kind != "f":
        return _integer_floor(a, b)[1]
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


def _shift(a: Array, b: Array, left: bool) -> Array:
    bits = a.dtype.itemsize * 8
    fits = (b >= 0) & (b < bits)
    amount = np.where(fits, b, np.zeros_like(b))
    if left:
        unsigned = np.dtype(f"u{a.dtype.itemsize}")
        shifted = np.left_shift(a.astype(unsigned), amount.astype(unsigned)).astype(a.dtype)
        return np.where(fits, shifted, np.zeros_like(a))
    return np.where(fits, np.right_shift(a, amount), np.where(a < 0, np.invert(np.zeros_like(a)), np.zeros_like(a)))


def _integer_power(a: Array, b: Array) -> Array:
    a, b = np.broadcast_arrays(a, b)
    result, base = np.ones_like(a), a.copy()
    left = np.where(b > 0, b, np.zeros_like(b)).astype(np.uint64)
    while np.any(left):
        result = np.where(left & np.uint64(1), result * base, result)
        base = base * base
        left = left >> np.uint64(1)
    if b.dtype.kind == "u":
        return result
    parity = np.where(b & _one(b), a, _one(a))  # a negative power of 1 or -1
    unit = (a == 1) | (a == -1)
    return np.where(b >= 0, result, np.where(unit, parity, np.zeros_like(a)))


_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda a, b: a | b if a.dtype == np.bool_ else a + b,
    "sub": np.subtract,
    "mul": lambda a, b: a & b if a.dtype == np.bool_ else a * b,
    "div": np.divide,
    "floordiv": _floordiv,
    "truncdiv": lambda a, b: _integer_trunc(a, b)[0],
    "remainder": _remainder,
    "fmod": lambda a, b: np.fmod(a, b) if a.dtype.kind == "f" else _integer_trunc(a, b)[1],
    "min": lambda a, b: np.where((a < b) | (a != a), a, b),
    "max": lambda a, b: np.where((a > b) | (a != a), a, b),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": lambda a, b: _shift(a, b, left=True),
    "shr": lambda a, b: _shift(a, b, left=False),
    "copysign": lambda a, b: np.where(np.isnan(b), np.abs(a), np.copysign(a, b)),  # the sign of a NaN is not a value
    "nextafter": np.nextafter,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def _next_half(a: Array, b: Array, dtype: DType) -> Array:
    if dtype is float16:  # of two equal numbers the second, as in other types: seen in the sign of 0
        near = np.nextafter(a.astype(np.float16), b.astype(np.float16)).astype(np.float32)
        return np.where(a == b, b, near)
    bits = bfloat16_bits(a).astype(np.int32)
    away = (b > a) == (a > 0)
    moved = np.where(a == 0, np.where(b > 0, 1, 0x8001), np.where(away, bits + 1, bits - 1))
    result = bfloat16_values(moved.astype(np.uint16))
    return np.where((a != a) | (b != b), np.float32(np.nan), np.where(a == b, b, result))


def binary(op: str, a: Array, b: Array, dtype: DType) -> Array:
    """A binary op on values of a type.

    >>> from bringup.ir.dtypes import int32
    >>> binary("remainder", np.int32([-7]), np.int32([3]), int32)
    array([2], dtype=int32)
    """
    a, b = np.asarray(a), np.asarray(b)
    if dtype.is_half and op == "nextafter":
        return _next_half(a, b, dtype)
    if op in _BINARY:
        result = _BINARY[op](a, b)
    elif dtype.is_float:
        result = functions.function_of_two(op, a, b, dtype)
    else:
        result = _integer_power(a, b)
    return result if BINARY[op].returns_bool else round_values(result, dtype)


def cast(x: Array, source: DType, target: DType) -> Array:
    """A conversion between types, as expr.Cast defines it.

    >>> from bringup.ir.dtypes import float32, uint8
    >>> cast(np.float32([-1.0, 300.0]), float32, uint8)
    array([255,  44], dtype=uint8)
    """
    x = np.asarray(x)
    if target is boolean:
        return np.asarray(x != 0)
    if target.is_float:
        return round_values(x.astype(target.compute), target)
    if not source.is_float:
        return x.astype(target.compute)
    wide = int64 if target in (int64, uint32, uint64) else int32
    top = float(wide.high + 1)
    cut = np.trunc(x).astype(np.float64)
    upper = (cut >= top) if target is uint64 else np.zeros(cut.shape, np.bool_)
    cut = np.where(upper, cut - top, cut)
    fits = (cut >= -top) & (cut < top)
    whole = np.where(fits, np.where(fits, cut, 0.0).astype(np.int64), wide.low).astype(np.int64)
    return np.where(upper, whole ^ np.int64(int64.low), whole).astype(target.compute)


def zero(dtype: DType) -> Array:
    """The zero of a type, as a value.

    >>> zero(float16)
    array(0., dtype=float32)
    """
    return np.zeros((), dtype.compute)


def reinterpret(x: Array, target: DType) -> Array:
    """The bits of values as another type, as expr.Bits defines it.

    >>> from bringup.ir.dtypes import int32
    >>> hex(int(reinterpret(np.float32(1.0), int32)))
    '0x3f800000'
    """
    values = np.where(np.isnan(x), np.asarray(np.nan, x.dtype), x) if x.dtype.kind == "f" else np.asarray(x)
    return np.ascontiguousarray(values).view(target.compute).reshape(np.shape(x))
