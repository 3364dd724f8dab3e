"""Random numbers made on the host: what becomes of the core's raw draws, in the same bits as compiled kernels.

csrc/runtime/philox.h has the definition. Numbers are made in runs that stay in a processor's cache; element i is the
same in whatever run it lies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = Any  # of NumPy
#: Elements of one run: even, because normal numbers come in pairs.
RUN = 1 << 15
_F32 = np.float32
_LOG = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1),
    *(2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)


@dataclass(frozen=True)
class Draws:
    """Elements ``begin`` to ``begin + count - 1`` of the call that a seed and an offset name; ``begin`` is even."""

    seed: int
    offset: int
    begin: int
    count: int

    def words(self) -> Array:
        """The 32-bit draws."""
        from bringup import _C

        return np.frombuffer(_C.philox(self.seed, self.offset, self.begin, self.count), np.uint32)

    def double_words(self) -> Array:
        """The 64-bit draws: two of 32 bits each, the lower half first."""
        pairs = Draws(self.seed, self.offset, 2 * self.begin, 2 * self.count).words().astype(np.uint64)
        return pairs[0::2] | pairs[1::2] << np.uint64(32)

    def in_pairs(self) -> Draws:
        """The same up to the end of the last pair."""
        return replace(self, count=self.count + self.count % 2)


def fill(self: Tensor, key: tuple[int, int], value: Callable[[Draws], Array | Tensor]) -> Tensor:
    """Writes ``value`` of every element's draws into a tensor of any device, in logical order."""
    made = torch.empty(self.shape, dtype=self.dtype, device="cpu")
    flat = made.view(-1)
    for begin in range(0, flat.numel(), RUN):
        count = min(RUN, flat.numel() - begin)
        with np.errstate(all="ignore"):  # an infinite deviation is the caller's wish
            run = value(Draws(*key, begin, count))
        if isinstance(run, np.ndarray):
            narrow = run.dtype == np.float64 and self.is_floating_point() and self.dtype != torch.float64
            run = torch.from_numpy(run.astype(_F32) if narrow else run)  # a half type is rounded to by way of float32
        flat[begin : begin + count] = run
    return self.copy_(made)


# ---- unit distributions: of float32 the same bits on every machine, by IEEE additions, multiplications and roots ----
def uniform(draws: Draws, dtype: torch.dtype) -> Array:
    """In [0, 1), as float64 for that type and as float32 for all others."""
    if dtype == torch.float64:
        return (draws.double_words() >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (draws.words() >> np.uint32(8)).astype(_F32) * _F32(2.0**-24)


def normal(draws: Draws, dtype: torch.dtype) -> Array:
    """Box and Muller's two numbers of two draws, with mean 0 and deviation 1."""
    pairs = draws.in_pairs()
    made: Array
    if dtype == torch.float64:
        wide = pairs.double_words() >> np.uint64(11)
        radius = np.sqrt(-2.0 * np.log(_unit_f64(wide[0::2])))
        angle = 6.283185307179586 * (wide[1::2].astype(np.float64) * 2.0**-53)
        sine, cosine = np.sin(angle), np.cos(angle)
        made = np.empty(pairs.count, np.float64)
    else:
        words = pairs.words()
        radius = np.sqrt(_F32(-2) * log_f32(unit_f32(words[0::2])))
        sine, cosine = sincos_f32(np.ascontiguousarray(words[1::2]))
        made = np.empty(pairs.count, _F32)
    np.multiply(radius, cosine, out=made[0::2])
    np.multiply(radius, sine, out=made[1::2])
    return made[: draws.count]


def exponential(draws: Draws, dtype: torch.dtype) -> Array:
    """Waiting times of rate 1: never 0, never infinite."""
    if dtype == torch.float64:
        return np.maximum(-np.log(_unit_f64(draws.double_words() >> np.uint64(11))), 2.0**-54)
    made: Array = np.maximum(-log_f32(unit_f32(draws.words())), _F32(2.0**-25))
    return made


def inside(draws: Draws) -> Array:
    """float64 in (0, 1), for distributions by a formula."""
    return uniform(draws, torch.float64) + 2.0**-54


def below(draws: Draws, chance: float) -> Array:
    """True with a probability."""
    return draws.words() < int(chance * 2.0**32)


def integers(draws: Draws, low: int, span: int) -> Array:
    """int64 from ``low`` on, of ``span`` values; of all 2^64 where that is 0. The bias is below span / 2^64."""
    wide = draws.double_words()
    if span:  # the high half of the product
        half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
        a, b, c, d = wide >> half, wide & mask, np.uint64(span >> 32), np.uint64(span & 0xFFFFFFFF)
        middle = a * d + (b * d >> half)
        wide = a * c + (middle >> half) + (b * c + (middle & mask) >> half)
    return (wide + np.uint64(low % (1 << 64))).view(np.int64)


def between(unit: Array, dtype: torch.dtype, low: float, high: float) -> Array | Tensor:
    """Uniform numbers scaled to [low, high) as tensors of a type hold them."""
    if dtype in (torch.float16, torch.bfloat16):  # as many bits of the draw as it holds: more would round up to the end
        steps = _F32(2.0**11 if dtype == torch.float16 else 2.0**8)
        unit = np.floor(unit * steps) / steps
    if low == 0 and high == 1:
        return unit
    wide = unit.dtype.type
    start, end = wide(low), wide(high)
    value = torch.from_numpy(unit * wide(high - low) + start)
    stored = value.to(dtype).to(value.dtype).numpy()  # rounding must not reach the open end
    return value if start == end else value.masked_fill_(torch.from_numpy(stored >= end), float(start))


def unit_f32(words: Array) -> Array:
    """In (0, 1]."""
    return words.astype(_F32) * _F32(2.0**-32) + _F32(2.0**-33)


def _unit_f64(wide: Array) -> Array:
    return (wide + np.uint64(1)).astype(np.float64) * 2.0**-53


def log_f32(x: Array) -> Array:
    """Within 0.9 ulp for x in [2^-33, 1]: x = 2^e m with m in [sqrt(1/2), sqrt(2)), then Cephes' polynomial."""
    bits = x.view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> 23  # that is sqrt(1/2)
    m = (bits - (exponent << 23)).view(_F32) - _F32(1)
    e, z = exponent.astype(_F32), m * m
    y = _polynomial(m, *_LOG)
    y *= m
    y *= z
    y += e * _F32(-2.12194440e-4)
    y -= _F32(0.5) * z
    return (m + y) + e * _F32(0.693359375)


def sincos_f32(turn: Array) -> tuple[Array, Array]:
    """sin and cos of 2 pi turn 2^-32, within 1.8 ulp.

    The reduction to half a quadrant is integer arithmetic, so it is exact, and the polynomials (Cephes', rescaled) take
    quarter turns: pi/2 in two parts costs less than rounding the angle first.
    """
    quadrant = (turn + np.uint32(0x20000000)) >> np.uint32(30)
    rest = (turn - (quadrant << np.uint32(30))).view(np.int32)
    rounded = rest.astype(_F32)
    x = rounded * _F32(2.0**-30)  # quarter turns, in [-1/2, 1/2]
    tail = (rest - rounded.astype(np.int32)).astype(_F32) * _F32(2.0**-30)  # what rounding lost
    z = x * x
    s = _polynomial(z, -0.00460483739, 0.0796814114, -0.645963609) * z + _F32(-4.37113883e-08)
    s = x * _F32(1.57079637) + (x * s + tail * _F32(1.57079637))
    c = _polynomial(z, 0.000905604567, -0.020861119, 0.253669381) * z * z + (_F32(1) - _F32(1.23370051) * z)
    odd = (quadrant & np.uint32(1)).astype(bool)  # quadrants 0 … 3: (s, c), (c, -s), (-s, -c), (-c, s)
    sine, cosine = np.where(odd, c, s).view(np.uint32), np.where(odd, s, c).view(np.uint32)
    sine ^= (quadrant & np.uint32(2)) << np.uint32(30)
    cosine ^= ((quadrant + np.uint32(1)) & np.uint32(2)) << np.uint32(30)
    return sine.view(_F32), cosine.view(_F32)


def _polynomial(x: Array, first: float, *rest: float) -> Array:
    y = x * _F32(first)
    for coefficient in rest[:-1]:
        y += _F32(coefficient)
        y *= x
    y += _F32(rest[-1])
    return y
