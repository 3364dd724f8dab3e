"""Draws and what becomes of them: element i of a random tensor is a function of (seed, offset, i) alone.

csrc/runtime/philox.h has the definition: the float32 values here are the same bits, whatever the layout, the driver
and the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bringup.ir.dtypes import DType, float32, float64, int32, int64, uint32, uint64
from bringup.ir.expr import AsIndex, Binary, Bits, Cast, Expr, IndexValue, Philox, Where, binary, const, unary
from bringup.ir.index import Index, as_index
from bringup.lowering.builder import KernelBuilder
from bringup.lowering.call import Call, Tensor
from bringup.lowering.elementwise import same_shape


class Draws:
    """The draws of one element: ``linear`` is its number in logical order.

    Of the call's own seed and offset, or of those that a tensor has.
    """

    def __init__(self, k: KernelBuilder, linear: Index, key: Tensor | None = None) -> None:
        self.k = k
        self.seed: Expr
        self.offset: Expr
        self.seed, self.offset = k.philox_key() if key is None else kept_key(k, key)
        self.number = IndexValue(linear)

    def word(self, place: Expr) -> Expr:
        """The 32-bit draw of a place."""
        return Philox(self.seed, self.offset, Cast(place, uint64), 32)

    def double_word(self, place: Expr) -> Expr:
        """The 64-bit draw of a place."""
        return Philox(self.seed, self.offset, Cast(place, uint64), 64)

    def own(self, dtype: DType) -> Expr:
        """The draw of this element, as wide as its type needs."""
        return self.double_word(self.number) if dtype is float64 else self.word(self.number)


def keep_key(call: Call, key: Tensor, name: str) -> None:
    """Stores seed and offset of this call, as int64."""
    k = call.kernel(name)
    target = k.write(key, (2,))
    for place, word in enumerate(k.philox_key()):
        k.store(target, (place,), Cast(word, int64))
    k.launch()


def kept_key(k: KernelBuilder, key: Tensor) -> tuple[Expr, Expr]:
    """The seed and the offset that keep_key stored."""
    words = k.read(key, (2,))
    return k.let(Cast(words[0], uint64)), k.let(Cast(words[1], uint64))


def fill(
    call: Call,
    out: Tensor,
    value: Callable[..., Expr],
    inputs: Sequence[Tensor] = (),
    name: str = "",
    key: Tensor | None = None,
) -> None:
    """A kernel over all elements of a tensor, each numbered in logical order.

    ``value(kernel, draws, …)`` gets the elements of the inputs, which broadcast to the output. The draws are those of
    ``key``, if it is given.
    """
    k = call.kernel(name)
    tensors = [out, *(t.expand(out.shape) if not same_shape(t, out) else t for t in inputs)]
    if all(t.contiguous for t in tensors):
        axes = [k.grid(out.numel)]
        tensors = [t.view((out.numel,), (1,)) for t in tensors]
        linear: Index = axes[0]
    else:
        axes = [k.grid(extent) for extent in out.shape]
        linear = as_index(0)
        for axis, extent in zip(axes, out.shape):
            linear = linear * k.size(extent) + axis
    target, *sources = (k.write(tensors[0]), *(k.read(t, tensors[0].shape) for t in tensors[1:]))
    k.store(target, axes, value(k, Draws(k, linear, key), *(source.at(*axes) for source in sources)))
    k.launch()


def checked(value: Expr, valid: Expr) -> Expr:
    """The value; where it is not valid the device reports an index that is out of range.

    That is the only error that kernels have: it reads "index 1 is out of range for a dimension of 1 (kernel NAME)",
    so the kernel's name says what is wrong.
    """
    place = AsIndex(Where(valid, const(0, int64), const(1, int64)), as_index(1), "check")
    return Where(Binary("eq", IndexValue(place), const(0, int64)), value, const(0, value.dtype))


# ---- the formulas of philox.h ----


def uniform_unit(draws: Draws, dtype: DType) -> Expr:
    """In [0, 1): the high bits of a draw."""
    if dtype is float64:
        return Cast(Cast(binary("shr", draws.own(dtype), 11), int64), float64) * 2.0**-53
    return Cast(Cast(binary("shr", draws.own(dtype), 8), int32), float32) * 2.0**-24


def _unit(word: Expr) -> Expr:
    """In (0, 1]: float(x) 2^-32 + 2^-33, where both halves convert exactly."""
    high = Cast(Cast(binary("shr", word, 16), int32), float32) * 65536.0
    low = Cast(Cast(word & 0xFFFF, int32), float32)
    return (high + low) * 2.0**-32 + 2.0**-33


_LOG = (
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)


def _log(k: KernelBuilder, x: Expr) -> Expr:
    """The logarithm of a normal positive float32, in additions and multiplications (Cephes' polynomial)."""
    bits = k.let(Bits(x, int32))
    exponent = k.let(binary("shr", bits - 0x3F3504F3, 23))  # 0x3F3504F3 = sqrt(1/2)
    m = k.let(Bits(bits - binary("shl", exponent, 23), float32) - 1.0)
    scale = k.let(Cast(exponent, float32))
    z = k.let(m * m)
    y: Expr = const(7.0376836292e-2, float32)
    for coefficient in _LOG:
        y = y * m + coefficient
    y = y * m * z
    y = y + scale * -2.12194440e-4
    y = y - 0.5 * z
    return (m + y) + scale * 0.693359375


def _sine_and_cosine(k: KernelBuilder, turn: Expr) -> tuple[Expr, Expr]:
    """Of 2 pi turn 2^-32: the reduction to half a quadrant is exact."""
    quadrant = k.let(binary("shr", turn + 0x20000000, 30))
    rest = k.let(Cast(turn - binary("shl", quadrant, 30), int32))
    rounded = k.let(Cast(rest, float32))
    x = k.let(rounded * 2.0**-30)
    tail = Cast(rest - Cast(rounded, int32), float32) * 2.0**-30
    z = k.let(x * x)
    s3 = ((z * -0.00460483739 + 0.0796814114) * z + -0.645963609) * z
    s = k.let(x * 1.57079637 + (x * (s3 + -4.37113883e-08) + tail * 1.57079637))
    c4 = (z * 0.000905604567 + -0.020861119) * z + 0.253669381
    c = k.let(c4 * z * z + (1.0 - z * 1.23370051))
    swapped = Binary("ne", quadrant & 1, const(0, uint32))
    sine, cosine = Where(swapped, c, s), Where(swapped, s, c)
    minus = Binary("ne", quadrant & 2, const(0, uint32))
    turned = Binary("ne", (quadrant + 1) & 2, const(0, uint32))
    return Where(minus, -sine, sine), Where(turned, -cosine, cosine)


def normal_unit(k: KernelBuilder, draws: Draws, dtype: DType) -> Expr:
    """Box-Muller on pairs: elements 2 j and 2 j + 1 are r cos t and r sin t."""
    pair = k.let(binary("shl", binary("shr", draws.number, 1), 1))
    odd = Binary("ne", draws.number & 1, const(0, int64))
    if dtype is float64:
        u = (Cast(Cast(binary("shr", draws.double_word(pair), 11), int64) + 1, float64)) * 2.0**-53
        angle = k.let(Cast(Cast(binary("shr", draws.double_word(pair + 1), 11), int64), float64) * 2.0**-53 * math.tau)
        radius = unary("sqrt", unary("log", u) * -2.0)
        return radius * Where(odd, unary("sin", angle), unary("cos", angle))
    radius = unary("sqrt", _log(k, k.let(_unit(draws.word(pair)))) * -2.0)
    sine, cosine = _sine_and_cosine(k, k.let(draws.word(pair + 1)))
    return radius * Where(odd, sine, cosine)


def normal_pair(k: KernelBuilder, draws: Draws) -> tuple[Expr, Expr]:
    """The float32 values that normal_unit gives elements 2 j and 2 j + 1, where ``draws`` counts pairs."""
    first = k.let(draws.number * 2)
    radius = k.let(unary("sqrt", _log(k, k.let(_unit(draws.word(first)))) * -2.0))
    sine, cosine = _sine_and_cosine(k, k.let(draws.word(first + 1)))
    return radius * cosine, radius * sine


def exponential_unit(k: KernelBuilder, draws: Draws, dtype: DType) -> Expr:
    """-log u, never 0."""
    if dtype is float64:
        u = Cast(Cast(binary("shr", draws.own(dtype), 11), int64) + 1, float64) * 2.0**-53
        return binary("max", -unary("log", u), 2.0**-54)
    return binary("max", -_log(k, k.let(_unit(draws.own(dtype)))), 2.0**-25)


def coin(draws: Draws, chance: Expr) -> Expr:
    """True with a probability (float64): x < p 2^32."""
    return Cast(draws.word(draws.number), float64) < chance * 2.0**32


def below(word: Expr, chance: Expr) -> Expr:
    """A coin for a probability (float64) that is the same everywhere, which the core counts in whole steps of 2^-32."""
    steps = unary("floor", chance * 2.0**32)
    return (word < Cast(Cast(steps, uint64), uint32)) | (steps >= 2.0**32)
