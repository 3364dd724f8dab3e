"""Types: storage of half types, rounding to nearest even, constants by their bits."""

import numpy as np
import pytest

from bringup.ir.dtypes import (
    DTYPES,
    bfloat16,
    bfloat16_bits,
    bfloat16_values,
    boolean,
    decode,
    encode,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint64,
)
from tests.loops.bits import same_bits, ulp_distance


def test_accumulate_types():
    expected = {float16: float32, bfloat16: float32, float32: float32, float64: float64, uint64: uint64, int16: int64}
    assert {dtype: dtype.accumulate for dtype in expected} == expected
    assert boolean.accumulate is int64
    assert int8.accumulate is uint8.accumulate is int32


def test_bfloat16_rounds_to_nearest_even():
    every = np.arange(1 << 16, dtype=np.uint16)
    values = bfloat16_values(every)
    numbers = ~np.isnan(values)
    assert np.array_equal(bfloat16_bits(values)[numbers], every[numbers])
    assert np.all(bfloat16_bits(values)[~numbers] == 0x7FC0)
    positive = every[:0x7F80]
    half_way = (positive.astype(np.uint32) << 16 | 0x8000).view(np.float32)
    assert np.array_equal(bfloat16_bits(half_way), positive + (positive & 1))
    above = (positive.astype(np.uint32) << 16 | 0x8001).view(np.float32)
    assert np.array_equal(bfloat16_bits(above), positive + 1)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_constants_survive_their_bits(dtype):
    values = [0, 1] if dtype.kind.value != "float" else [0.0, -0.0, 1.5, float("inf"), float("nan")]
    for value in values:
        bits = encode(value, dtype)
        again = decode(bits, dtype)
        assert encode(again, dtype) == bits
        assert again == value or value != value


def test_constants_that_do_not_fit():
    assert encode(-1, int8) == 0xFF
    assert decode(encode(2**64 - 1, uint64), uint64) == 2**64 - 1
    for value, dtype in ((256, uint8), (-1, uint8), (1.5, int8)):
        with pytest.raises(ValueError, match="is no "):
            encode(value, dtype)
    assert encode(-float("nan"), float32) == encode(float("nan"), float32)
    assert decode(encode(1e30, float16), float16) == float("inf")


def test_distance_in_ulps():
    one, next_one = np.float64([1.0, -0.0, 1.0]), np.float64([np.nextafter(1.0, 2), 0.0, np.nan])
    assert ulp_distance(one, next_one, float64).tolist() == [1, 1, np.inf]
    assert ulp_distance(np.float32([-1.0]), np.float32([1.0]), float32)[0] > 2e9
    assert same_bits(np.float32([np.nan]), -np.float32([np.nan]), float32)
    assert not same_bits(np.int64([2**62 + 1]), np.int64([2**62]), int64)
