"""The stated reference of integer inference, in NumPy: what every target must give, bit for bit (docs/quantized.md).

A real factor m is a multiplier and a shift: m ≈ multiplier / 2^shift with a multiplier of 31 bits. An int32 sum times
the multiplier is an exact 64-bit product; it is rounded once, halves up, which is what RVV's ``vnclip`` does in its
default mode and what one addition and one shift do everywhere else.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bringup.ir.dtypes import Array

#: A sum of int8 products of at most this many terms cannot leave int32, whatever they are; nor can the bias beside it.
LONGEST_SUM = 1 << 16


def multiplier_and_shift(real: float) -> tuple[int, int]:
    """The fixed-point form of a factor: (multiplier in 2^30 … 2^31 - 1, shift in 1 … 63); (0, 1) for what is not > 0.

    Factors from 2^30 up saturate every 8-bit result, and those below 2^-32 give 0: so both ends are cut off.

    >>> multiplier_and_shift(0.75), multiplier_and_shift(1.0), multiplier_and_shift(0.0)
    ((1610612736, 31), (1073741824, 30), (0, 1))
    """
    if not real >= 2.0**-1022:
        return 0, 1
    if real >= 2.0**30:
        return (1 << 31) - 1, 1
    fraction, exponent = math.frexp(real)  # fraction in [0.5, 1)
    # 53 bits to 31, halves up.
    multiplier = (int(math.ldexp(fraction, 53)) + (1 << 21)) >> 22
    if multiplier == 1 << 31:
        multiplier, exponent = 1 << 30, exponent + 1
    if exponent > 30:
        return (1 << 31) - 1, 1
    return multiplier, min(31 - exponent, 63)


def requantize(total: Any, multiplier: Any, shift: Any, zero: int, low: int, high: int) -> Array:
    """int32 sums to 8-bit numbers (as int64): scaled, rounded with halves up, moved to the zero point and clamped.

    >>> requantize([3, -3, 1000], 1 << 30, 31, 0, -128, 127).tolist()  # times a half
    [2, -1, 127]
    """
    product = np.asarray(total, np.int64) * np.asarray(multiplier, np.int64)
    shift = np.asarray(shift, np.int64)
    rounded = (product + (np.int64(1) << (shift - 1))) >> shift
    clamped: Array = np.clip(rounded + zero, low, high)
    return clamped


def integer_bias(weight: Array, bias: Array | None, scales: Any, x_scale: float, x_zero: int) -> Array:
    """The int32 number each channel's sum starts from: the bias in units of x_scale × scale, less x_zero × Σ weight.

    >>> integer_bias(np.int8([[1, 2]]), np.float32([0.3]), [0.1], 0.5, -3).tolist()
    [15]
    """
    sums = weight.reshape(weight.shape[0], -1).astype(np.int64).sum(1)
    whole = np.zeros_like(sums)
    if bias is not None:
        real = bias.astype(np.float64) / (np.float64(x_scale) * np.asarray(scales, np.float64))
        whole = np.clip(np.rint(real), -(2.0**31), 2.0**31 - 1).astype(np.int64)
    start: Array = (whole - x_zero * sums).astype(np.int32)
    return start


def factors(scales: Any, x_scale: float, y_scale: float) -> tuple[Array, Array]:
    """Multiplier and shift of every channel: of (scale × x_scale) / y_scale in float64.

    >>> [part.tolist() for part in factors(np.float32([0.5, 1.0]), 0.25, 0.125)]
    [[1073741824, 1073741824], [30, 29]]
    """
    pairs = [multiplier_and_shift(float(scale) * x_scale / y_scale) for scale in np.asarray(scales).reshape(-1)]
    multipliers, shifts = zip(*pairs) if pairs else ((), ())
    return np.array(multipliers, np.int32), np.array(shifts, np.int32)


def linear(
    x: Array, weight: Array, bias: Array, multiplier: Array, shift: Array, zero: int, low: int, high: int
) -> Array:
    """``[rows, K] × [N, K]`` with ``integer_bias`` and ``factors`` of its weight; an unsigned x counts as x - 128.

    >>> one = np.int8([[1]])
    >>> linear(one, one, np.int32([5]), np.int32([1 << 30]), np.int32([30]), 1, -128, 127).tolist()
    [[7]]
    """
    total = _signed(x) @ weight.astype(np.int64).T + bias
    return requantize(total.astype(np.int32), multiplier, shift, zero, low, high)


def convolution(
    x: Array,
    weight: Array,
    bias: Array,
    multiplier: Array,
    shift: Array,
    x_zero: int,
    zero: int,
    low: int,
    high: int,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Array:
    """Of ``[n, c, space…]``, padded with the zero point of x; the other arguments as for ``linear``.

    >>> x, w, b = np.int8([[[1, 2, 3]]]), np.int8([[[1, 1]]]), np.int32([0])
    >>> one = np.int32([1 << 30]), np.int32([30])
    >>> convolution(x, w, b, *one, 4, 0, -128, 127, [1], [1], [1], 1).tolist()
    [[[5, 3, 5, 7]]]
    """
    dims = x.ndim - 2
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)], constant_values=x_zero)
    source = _signed(padded)
    reach = [dilation[d] * (weight.shape[d + 2] - 1) + 1 for d in range(dims)]
    space = [(padded.shape[d + 2] - reach[d]) // stride[d] + 1 for d in range(dims)]
    filters, channels = weight.shape[0] // groups, weight.shape[1]
    total = np.zeros((x.shape[0], weight.shape[0], *space), np.int64)
    for tap in np.ndindex(*weight.shape[2:]):
        spans = (slice(at * d, at * d + (n - 1) * s + 1, s) for at, d, n, s in zip(tap, dilation, space, stride))
        place: tuple[Any, ...] = (slice(None), slice(None), *spans)
        window = source[place]
        for g in range(groups):
            part = window[:, g * channels : (g + 1) * channels]
            some = slice(g * filters, (g + 1) * filters)
            place = (some, slice(None), *tap)
            kernel = weight[place].astype(np.int64)
            total[:, some] += np.einsum("fc,nc...->nf...", kernel, part)
    across = (-1, *(1 for _ in space))
    total = (total + bias.reshape(across)).astype(np.int32)
    return requantize(total, multiplier.reshape(across), shift.reshape(across), zero, low, high)


def _signed(x: Array) -> Array:
    return x.astype(np.int64) - (128 if x.dtype == np.uint8 else 0)


def add_factors(a_scale: float, b_scale: float, y_scale: float) -> tuple[int, int, int]:
    """The multipliers of both terms of a sum and their common shift: the larger term's has 31 bits.

    >>> add_factors(0.5, 0.25, 0.5)
    (1073741824, 536870912, 30)
    """
    larger = max(a_scale, b_scale) / y_scale
    multiplier, shift = multiplier_and_shift(larger)
    smaller = math.floor(math.ldexp(min(a_scale, b_scale) / y_scale, shift) + 0.5)
    return (multiplier, smaller, shift) if a_scale >= b_scale else (smaller, multiplier, shift)


def add(
    a: Array,
    b: Array,
    a_zero: int,
    b_zero: int,
    a_factor: int,
    b_factor: int,
    shift: int,
    zero: int,
    low: int,
    high: int,
) -> Array:
    """The sum of two quantized tensors: both terms exact in 64 bits, rounded once.

    >>> add(np.int8([10]), np.int8([4]), 0, 0, *add_factors(0.5, 0.25, 0.5), 1, -128, 127).tolist()
    [13]
    """
    total = (a.astype(np.int64) - a_zero) * a_factor + (b.astype(np.int64) - b_zero) * b_factor
    rounded = (total + (np.int64(1) << (shift - 1))) >> shift
    clamped: Array = np.clip(rounded + zero, low, high)
    return clamped
