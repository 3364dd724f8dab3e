"""Ops against Python's own integers and fractions: wrapping, division, shifts, NaN rules, casts, rounding."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.ir import arithmetic
from bringup.ir.dtypes import (
    FLOATS,
    INTEGERS,
    bfloat16,
    bfloat16_values,
    boolean,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    round_values,
    uint8,
    uint32,
    uint64,
)
from bringup.ir.fused_multiply_add import fma
from bringup.ir.ops import BINARY, UNARY

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


def wrap(value, dtype):
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if value > dtype.high else value


def floor_division(a, b):
    return -1 if b == 0 else a // b


def truncated(a, b):
    return -1 if b == 0 else int(Fraction(a, b))


EXACT = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": floor_division,
    "remainder": lambda a, b: a if b == 0 else a % b,
    "truncdiv": truncated,
    "fmod": lambda a, b: a if b == 0 else a - b * truncated(a, b),
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", EXACT)
def test_integer_ops(op, dtype):
    values = sorted({0, 1, 2, 3, 7, dtype.high, dtype.high - 1, dtype.low, max(dtype.low, -1), max(dtype.low, -7)})
    pairs = list(itertools.product(values, values))
    a, b = (np.array(side, dtype.compute) for side in zip(*pairs))
    result = arithmetic.binary(op, a, b, dtype)
    if BINARY[op].returns_bool:
        assert result.tolist() == [EXACT[op](x, y) for x, y in pairs]
    else:
        assert result.tolist() == [wrap(EXACT[op](x, y), dtype) for x, y in pairs]
        assert result.dtype == dtype.compute


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_and_powers(dtype):
    values = sorted({0, 1, 3, dtype.high, dtype.low, max(dtype.low, -1), max(dtype.low, -3)})
    for x, y in itertools.product(values, [max(dtype.low, -1), 0, 1, 5, dtype.bits - 1, dtype.bits, dtype.high]):
        a, b = np.array([x], dtype.compute), np.array([y], dtype.compute)
        inside = 0 <= y < dtype.bits
        assert arithmetic.binary("shl", a, b, dtype)[0] == (wrap(x << y, dtype) if inside else 0)
        assert arithmetic.binary("shr", a, b, dtype)[0] == (x >> y if inside else -1 if x < 0 else 0)
        if y >= 0:
            expected = wrap(pow(x, y, 1 << dtype.bits), dtype)
        else:
            expected = 1 if x == 1 else (-1 if y % 2 else 1) if x == -1 else 0
        assert arithmetic.binary("pow", a, b, dtype)[0] == expected


def test_unary_integers_and_bools():
    lowest = np.int8([-128, 5])
    assert arithmetic.unary("neg", lowest, int8).tolist() == [-128, -5]
    assert arithmetic.unary("abs", lowest, int8).tolist() == [-128, 5]
    assert arithmetic.unary("sign", lowest, int8).tolist() == [-1, 1]
    assert arithmetic.unary("neg", np.uint8([1]), uint8).tolist() == [255]
    yes_no = np.array([True, False])
    assert arithmetic.unary("not", yes_no, boolean).tolist() == [False, True]
    assert arithmetic.binary("add", yes_no, yes_no, boolean).tolist() == [True, False]
    assert arithmetic.binary("max", yes_no, ~yes_no, boolean).tolist() == [True, True]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_and_infinity(dtype):
    def both(op, a, b):
        return float(arithmetic.binary(op, np.array(a, dtype.compute), np.array(b, dtype.compute), dtype))

    for op in ("min", "max"):
        assert math.isnan(both(op, NAN, 1))
        assert math.isnan(both(op, 1, NAN))
    assert both("max", -INF, 3) == 3
    assert both("copysign", -2, NAN) == both("copysign", -2, -NAN) == 2
    assert both("remainder", -7, 3) == 2
    assert both("fmod", -7, 3) == -1
    assert both("floordiv", -7, 2) == -4
    assert both("floordiv", 1, 0) == INF
    assert math.isnan(both("remainder", 1, 0))
    assert both("div", 1, 0) == INF
    assert float(arithmetic.unary("sign", np.array(NAN, dtype.compute), dtype)) == 0
    halves = np.array([0.5, 1.5, 2.5, -0.5], dtype.compute)
    assert arithmetic.unary("round", halves, dtype).tolist() == [0, 2, 2, 0]
    assert arithmetic.unary("isnan", np.array([NAN, INF], dtype.compute), dtype).tolist() == [True, False]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nextafter(dtype):
    start = round_values(np.array([0.0, 1.0, -1.0, 1.0, 2.0], dtype.compute), dtype)
    towards = np.array([1.0, 2.0, 0.0, 1.0, -INF], dtype.compute)
    after = arithmetic.binary("nextafter", start, towards, dtype)
    assert after[0] > 0
    assert after[1] > 1
    assert -1 < after[2] < 0
    assert after[3] == 1
    assert 1 < after[4] < 2
    middle = (start.astype(np.float64) + after) / 2
    assert np.all(
        (round_values(middle.astype(dtype.compute), dtype) - after == 0) | (middle.astype(dtype.compute) != after)
    )


@given(st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1))
@settings(max_examples=200, deadline=None)
def test_half_ops_round_once(x, y):
    with np.errstate(all="ignore"):
        for dtype, a, b in (
            (float16, *(np.uint16([v]).view(np.float16).astype(np.float32) for v in (x, y))),
            (bfloat16, *(bfloat16_values(np.uint16([v])) for v in (x, y))),
        ):
            if not (np.isfinite(a[0]) and np.isfinite(b[0]) and b[0]):
                continue
            exact = {"add": Fraction(float(a[0])) + Fraction(float(b[0]))}
            exact["mul"] = Fraction(float(a[0])) * Fraction(float(b[0]))
            exact["div"] = Fraction(float(a[0])) / Fraction(float(b[0]))
            for op, value in exact.items():
                got = float(arithmetic.binary(op, a, b, dtype)[0])
                if not math.isfinite(got):
                    continue
                size = 2.0 ** (math.frexp(got)[1] - (11 if dtype is float16 else 8))
                size = max(size, 2.0**-24 if dtype is float16 else 2.0**-133)
                assert abs(Fraction(got) - value) <= Fraction(size) / 2


def test_casts():
    cast = arithmetic.cast
    floats = np.float32([NAN, INF, -INF, 3e9, -1.5, 1e20])
    low, least = -(2**31), -(2**63)
    assert cast(floats, float32, int32).tolist() == [low, low, low, low, -1, low]
    assert cast(floats, float32, int64).tolist() == [least, least, least, 3000000000, -1, least]
    assert cast(floats, float32, uint32).tolist() == [0, 0, 0, 3000000000, 2**32 - 1, 0]
    assert cast(floats, float32, uint8).tolist() == [0, 0, 0, 0, 255, 0]
    large = np.float64([2.0**63, 1.5 * 2.0**63, 1e30, -1.0, -1e30, NAN])
    assert cast(large, float64, uint64).tolist() == [2**63, 3 * 2**62, 0, 2**64 - 1, 2**63, 2**63]
    assert cast(np.float32([-1.0, 300.0]), float32, uint8).tolist() == [255, 44]
    assert cast(np.int64([300, -1]), int64, uint8).tolist() == [44, 255]
    assert cast(floats, float32, boolean).tolist() == [True] * 6
    assert cast(np.float64([1 + 2.0**-11 + 2.0**-40]), float64, float16)[0] == 1.0  # by way of float32
    assert cast(np.int64([257]), int64, bfloat16)[0] == 256


def exact_fma(a, b, c, dtype):
    value = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        wide = value.numerator / value.denominator
    except OverflowError:
        return INF if value > 0 else -INF
    if dtype is float64:
        return wide
    near = np.float32(wide)
    candidates = [near, np.nextafter(near, np.float32(INF)), np.nextafter(near, np.float32(-INF))]
    best = min(
        (c for c in candidates if np.isfinite(c)),
        key=lambda c: (abs(Fraction(float(c)) - value), int(c.view("u4")) & 1),
    )
    return float(best)


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_fma_rounds_once(dtype, data):
    numbers = st.floats(allow_nan=False, allow_infinity=False, width=dtype.bits)
    a, b, c = data.draw(numbers), data.draw(numbers), data.draw(numbers)
    with np.errstate(all="ignore"):
        near = float(-dtype.compute.type(a) * dtype.compute.type(b))
    if math.isfinite(near) and data.draw(st.booleans()):
        c = near  # the product without its last bits cancels
    expected = exact_fma(a, b, c, dtype)
    if abs(expected) < 3e38 or dtype is float64:
        assert float(fma(*(np.array(v, dtype.compute) for v in (a, b, c)), dtype)) == expected


def test_fma_specials():
    for dtype in (float32, float64):
        f = dtype.compute.type
        assert np.isnan(fma(f(INF), f(0), f(1), dtype))
        assert fma(f(INF), f(2), f(1), dtype) == INF
        assert math.copysign(1, float(fma(f(-1), f(0), f(-0.0), dtype))) == -1
        assert fma(f(3), f(4), f(5), dtype) == 17
        # A finite product stays finite, also one that float64 cannot hold.
        large = f(np.finfo(f).max)
        for sign in (1, -1):
            assert fma(large, f(sign * 4), f(-INF), dtype) == -INF
            assert fma(large, f(sign * 4), f(INF), dtype) == INF
        assert np.isnan(fma(large, f(4), f(np.nan), dtype))
        assert fma(large, f(4), f(-large), dtype) == INF


def test_every_op_runs_on_every_type_it_takes():
    for dtype in (*INTEGERS, *FLOATS, boolean):
        ones = np.ones(3, dtype.compute)
        for name, op in UNARY.items():
            if op.accepts(dtype):
                result = arithmetic.unary(name, ones, dtype)
                assert result.dtype == (np.bool_ if op.returns_bool else dtype.compute), (name, dtype)
        for name, op in BINARY.items():
            if op.accepts(dtype):
                result = arithmetic.binary(name, ones, ones, dtype)
                assert result.dtype == (np.bool_ if op.returns_bool else dtype.compute), (name, dtype)


def test_bits_of_a_value() -> None:
    values = np.array([0.0, -0.0, 1.0, -np.inf, np.nan, -np.nan], np.float32)
    words = arithmetic.reinterpret(values, uint32)
    assert [hex(word) for word in words] == [
        "0x0",
        "0x80000000",
        "0x3f800000",
        "0xff800000",
        "0x7fc00000",
        "0x7fc00000",
    ]
    back = arithmetic.reinterpret(words, float32)
    assert np.array_equal(back, values, equal_nan=True)
    assert np.signbit(back[1])
