"""Random ops: in-place, so that the output is the only tensor; the numbers are those of distributions.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bringup.ir.dtypes import DType, boolean, float16, float32, float64, int64, uint64
from bringup.ir.expr import Binary, Cast, Expr, Where, binary, const, unary
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, NoKernel, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.ops.draws import (
    Draws,
    below,
    checked,
    coin,
    exponential_unit,
    fill,
    keep_key,
    normal_pair,
    normal_unit,
    uniform_unit,
)
from bringup.lowering.registry import lowering, new_output
from bringup.lowering.scalar_types import CODE_OF, opmath


def _floating(call: Call) -> tuple[Tensor, DType]:
    out = call.outs[0]
    if not out.dtype.is_float:
        raise NoKernel(f"{call.op} of {out.dtype}")
    return out, opmath(out.dtype)


def rounded(value: Expr, dtype: DType) -> Expr:
    """A value as a tensor of a type would hold it, in the type that it is computed in."""
    return convert(convert(value, dtype), opmath(dtype))


@lowering("aten::uniform_")
def uniform(call: Call, self: Tensor, low: Number, high: Number, generator: None) -> None:
    """In [low, high); rounding must not reach the open end."""
    out, wide = _floating(call)
    # Both bounds are part of the structure: whether they are in order decides between numbers and an error.
    if not 0 <= float(high.known()) - float(low.known()) < 3e38:
        raise NoKernel("the core says what is wrong with these bounds")

    def value(k: KernelBuilder, draws: Draws) -> Expr:
        unit = uniform_unit(draws, wide)
        if out.dtype.is_half:  # as many bits of the draw as the type can hold
            steps = 2048.0 if out.dtype is float16 else 256.0
            unit = unary("floor", unit * steps) / steps
        if low.value == 0 and high.value == 1:
            return unit
        bottom, top = k.number(low, float64), k.number(high, float64)
        start, width, end = convert(bottom, wide), convert(top - bottom, wide), convert(top, wide)
        drawn = k.let(unit * width + start)
        inside = (rounded(drawn, out.dtype) < end) | Binary("eq", start, end)
        return Where(inside, drawn, start)

    fill(call, out, value)


def _scaled_normal(k: KernelBuilder, draws: Draws, dtype: DType, mean: Number, deviation: Number) -> Expr:
    unit = normal_unit(k, draws, dtype)
    if mean.equals(0) and deviation.equals(1):
        return unit
    return unit * k.number(deviation, dtype) + k.number(mean, dtype)


@lowering("aten::normal_")
def normal(call: Call, self: Tensor, mean: Number, deviation: Number, generator: None) -> None:
    """Bell-shaped around a mean."""
    out, wide = _floating(call)
    if deviation < 0:
        raise NoKernel("the core says what is wrong with this deviation")
    if wide is float32 and out.contiguous and out.numel >= 2 and out.numel % 2 == 0:
        _normal_pairs(call, out, mean, deviation)
        return
    fill(call, out, lambda k, draws: _scaled_normal(k, draws, wide, mean, deviation))


def _normal_pairs(call: Call, out: Tensor, mean: Number, deviation: Number) -> None:
    """Both of a pair at once: one logarithm, square root and angle for two elements, with the bits of one by one.

    A million float32: 1.4 of ATen's time, element by element 2.2.
    """
    k = call.kernel()
    pairs = out.numel // 2
    i = k.grid(pairs)
    target = k.write(out.view((pairs, 2), (2, 1)))
    for place, unit in enumerate(normal_pair(k, Draws(k, i))):
        plain = mean.equals(0) and deviation.equals(1)
        value = unit if plain else unit * k.number(deviation, float32) + k.number(mean, float32)
        k.store(target, (i, place), value)
    k.launch()


@lowering("aten::log_normal_")
def log_normal(call: Call, self: Tensor, mean: Number, deviation: Number, generator: None) -> None:
    """e to the power of a normal number."""
    out, wide = _floating(call)
    if not deviation > 0:
        raise NoKernel("the core says what is wrong with this deviation")
    fill(
        call,
        out,
        lambda k, draws: unary("exp", rounded(_scaled_normal(k, draws, wide, mean, deviation), out.dtype)),
    )


@lowering("aten::normal.Tensor_float", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor")
def normal_around(call: Call, mean: Tensor | Number, deviation: Tensor | Number, generator: None) -> None:
    """A mean and a deviation of its own for each element; a negative deviation is reported as an index out of range."""
    out, wide = _floating(call)
    tensors = [t for t in (mean, deviation) if isinstance(t, Tensor)]
    if any(t.dtype is not out.dtype for t in tensors) or (isinstance(deviation, Number) and deviation < 0):
        raise NoKernel("the core says what is wrong with this deviation")

    def value(k: KernelBuilder, draws: Draws, *given: Expr) -> Expr:
        values = iter(given)
        shift, scale = (
            convert(next(values), wide) if isinstance(t, Tensor) else k.number(t, wide) for t in (mean, deviation)
        )
        # The core's three ops: draw, multiply, add, each rounded.
        drawn = rounded(rounded(normal_unit(k, draws, wide), out.dtype) * scale, out.dtype) + shift
        return checked(drawn, scale >= 0) if isinstance(deviation, Tensor) else drawn

    fill(call, out, value, tensors, "normal_with_std_below_0")


@lowering("aten::exponential_")
def exponential(call: Call, self: Tensor, rate: Number, generator: None) -> None:
    """Waiting times."""
    out, wide = _floating(call)
    if not rate > 0:
        raise NoKernel("the core says what is wrong with this rate")
    fill(
        call,
        out,
        lambda k, draws: convert(convert(exponential_unit(k, draws, wide), float64) / k.number(rate, float64), wide),
    )


def _inverted(call: Call, out: Tensor, formula: Callable[[KernelBuilder, Expr], Expr]) -> None:
    """A distribution by a formula of a float64 in (0, 1), from the 64-bit draw."""

    def value(k: KernelBuilder, draws: Draws) -> Expr:
        return convert(formula(k, k.let(uniform_unit(draws, float64) + 2.0**-54)), opmath(out.dtype))

    fill(call, out, value)


@lowering("aten::cauchy_")
def cauchy(call: Call, self: Tensor, median: Number, sigma: Number, generator: None) -> None:
    """The tangent of an even angle."""
    out, _ = _floating(call)
    if not sigma > 0:
        raise NoKernel("the core says what is wrong with this sigma")
    _inverted(
        call,
        out,
        lambda k, u: k.number(median, float64) + k.number(sigma, float64) * unary("tan", (u - 0.5) * math.pi),
    )


@lowering("aten::geometric_")
def geometric(call: Call, self: Tensor, p: Number, generator: None) -> None:
    """How many trials a success takes."""
    out = call.outs[0]
    if not p > 0 or not p < 1 or not (out.dtype.is_float or out.dtype.is_integer):
        raise NoKernel("the core says what is wrong with this probability")
    _inverted(call, out, lambda k, u: unary("ceil", unary("log", u) / k.let(unary("log1p", -k.number(p, float64)))))


# ---- coins ----


@lowering("aten::bernoulli_.float")
def bernoulli(call: Call, self: Tensor, chance: Number, generator: None) -> None:
    """1 with one probability everywhere."""
    out = call.outs[0]
    if chance < 0 or chance > 1:
        raise NoKernel("the core says what is wrong with this probability")
    fill(call, out, lambda k, draws: _coin_as(below(draws.word(draws.number), k.number(chance, float64)), out.dtype))


def _coin_as(truth: Expr, dtype: DType) -> Expr:
    return truth if dtype is boolean else Where(truth, const(1, dtype), const(0, dtype))


@lowering("aten::bernoulli_.Tensor")
def bernoulli_tensor(call: Call, self: Tensor, p: Tensor | Number, generator: None) -> None:
    """1 with a probability of its own for each element; one outside 0 … 1 is reported as an index out of range."""
    out = call.outs[0]
    sizes = p.shape if isinstance(p, Tensor) else ()
    fits = len(sizes) <= out.ndim and all(n == 1 or n == whole for n, whole in zip(sizes[::-1], out.shape[::-1]))
    if not p.dtype.is_float or not fits:
        raise NoKernel("the core says what is wrong with these probabilities")

    def value(k: KernelBuilder, draws: Draws, *given: Expr) -> Expr:
        chance = k.let(convert(given[0], float64)) if isinstance(p, Tensor) else k.number(p, float64)
        truth = _coin_as(coin(draws, chance), out.dtype)
        return checked(truth, (chance >= 0.0) & (chance <= 1.0))

    fill(call, out, value, [p] if isinstance(p, Tensor) else [], "bernoulli_with_p_outside_0_and_1")


@lowering("aten::bernoulli")
def bernoulli_of(call: Call, self: Tensor, generator: None) -> None:
    """1 with the probability that the input has there."""
    bernoulli_tensor(call, call.outs[0], self, generator)


def _dropout_outputs(input: Any, *_: Any) -> list[Any]:
    """New tensors. Without ``train`` PyTorch's meta kernel returns the input, and the kernel would write over it."""
    return [new_output(input[2], input[3]), new_output(CODE_OF[boolean], input[3])]


@lowering("aten::native_dropout", outputs=_dropout_outputs)
def native_dropout(call: Call, input: Tensor, p: Number, train: bool | None) -> None:
    """Zeroes a part p, scales the rest; the mask is the second result."""
    if train is False or not p > 0 or not p < 1:
        raise NoKernel("the core does dropout that draws nothing")
    if not (input.contiguous and all(out.contiguous for out in call.outs)):
        raise NoKernel("dropout draws in logical order: contiguous tensors only")
    k = call.kernel()
    count = input.numel
    i = k.grid(count)
    x, y, mask = (k.read(input.view((count,), (1,))), *(k.write(out.view((count,), (1,))) for out in call.outs))
    kept, dropped = _dropout(k, Draws(k, i), x[i], p, input.dtype)
    k.store(y, [i], dropped)
    k.store(mask, [i], kept)
    k.launch()


def _dropout(k: KernelBuilder, draws: Draws, x: Expr, p: Number, dtype: DType) -> tuple[Expr, Expr]:
    """Whether an element is kept, and what becomes of it; NaN and infinity are NaN where they are dropped."""
    wide = opmath(dtype)
    keep = k.let(1.0 - k.number(p, float64))
    kept = k.let(below(draws.word(draws.number), keep))
    return kept, convert(x, wide) * convert(kept, wide) * convert(1.0 / keep, wide)


def dropout_key(call: Call, x: Tensor) -> None:
    """The seed and the offset of a dropout (graph/compile/keyed_dropout.py)."""
    keep_key(call, call.outs[0], "dropout_key")


def keyed_dropout(call: Call, x: Tensor, key: Tensor, p: Number) -> None:
    """Dropout as a key says, or its gradient: both scale by the same mask."""
    (out,) = call.outs
    fill(call, out, lambda k, draws, x: _dropout(k, draws, x, p, out.dtype)[1], [x], "keyed_dropout", key)


def _rrelu_outputs(self: Any, *_: Any) -> list[Any]:
    """Contiguous, as on the CPU; PyTorch's meta kernel keeps the order of dimensions."""
    return [new_output(self[2], self[3])]


@lowering("aten::rrelu_with_noise", outputs=_rrelu_outputs)
def rrelu_with_noise(
    call: Call, self: Tensor, noise: Tensor, lower: Number, upper: Number, training: bool, generator: None
) -> None:
    """Negative elements times a slope of their own, which the noise keeps; without training the slope is the middle."""
    if noise.shape != self.shape:
        raise NoKernel("the CPU says what is wrong with this noise")
    wide = opmath(self.dtype)
    call.pointwise = True
    if not training:
        elementwise(
            call,
            call.outs,
            [self, lower, upper],
            lambda x, low, high: Where(x <= 0, x * ((low + high) / 2.0), x),
            wide,
        )
        return
    if not (self.contiguous and noise.contiguous and call.outs[0].contiguous):
        raise NoKernel("rrelu draws in logical order: contiguous tensors only")
    k = call.kernel()
    count = self.numel
    i = k.grid(count)
    x, slopes, y = (
        make(t.view((count,), (1,))) for make, t in ((k.read, self), (k.write, noise), (k.write, call.outs[0]))
    )
    low, high = k.number(lower, wide), k.number(upper, wide)
    slope = rounded(uniform_unit(Draws(k, i), wide) * (high - low) + low, self.dtype)
    drawn = k.let(Where(convert(x[i], wide) <= 0, slope, const(1, wide)))
    k.store(y, [i], convert(x[i], wide) * drawn)
    k.store(slopes, [i], drawn)
    k.launch()


# ---- integers ----

_MANTISSA = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}


def integer_limit(dtype: DType) -> int:
    """The largest integer up to which a type holds every integer."""
    return 1 << _MANTISSA[dtype.name] if dtype.is_float else min(dtype.high, int64.high)


@lowering("aten::random_")
def random_all(call: Call, self: Tensor, generator: None) -> None:
    """Any integer from 0 to the limit of the type."""
    fill_integers(call, 0, integer_limit(call.outs[0].dtype) + 1)


@lowering("aten::random_.to")
def random_to(call: Call, self: Tensor, to: int, generator: None) -> None:
    """Integers from 0 to below a bound."""
    random_from(call, self, 0, to, generator)


@lowering("aten::random_.from")
def random_from(call: Call, self: Tensor, low: int, to: int | None, generator: None) -> None:
    """Integers from a bound to below another, or to the limit of the type."""
    limit = integer_limit(call.outs[0].dtype)
    lowest = -limit if self.dtype.is_float else 0 if self.dtype is boolean else self.dtype.low
    if to is None and low == int64.low:
        return fill_integers(call, 0, 1 << 64)
    end = limit + 1 if to is None else to
    if not lowest <= low < end <= limit + 1:
        raise NoKernel("the core says what is wrong with these bounds")
    return fill_integers(call, low, end - low)


def fill_integers(call: Call, low: int, count: int) -> None:
    """Integers low … low + count - 1: the high half of the 128-bit product of a 64-bit draw and their count."""
    out = call.outs[0]

    def value(k: KernelBuilder, draws: Draws) -> Expr:
        word: Expr = k.let(draws.double_word(draws.number))
        if count < 1 << 64:
            word = high_product(k, word, k.constant(count, uint64))
        drawn = Cast(word, int64) + k.constant(low, int64)
        return Binary("ne", drawn, const(0, int64)) if out.dtype is boolean else drawn

    fill(call, out, value)


def high_product(k: KernelBuilder, a: Expr, b: Expr) -> Expr:
    """The high half of a 128-bit product, by 32-bit pieces: no sum here exceeds 64 bits."""
    a1, a0, b1, b0 = (k.let(half) for x in (a, b) for half in (binary("shr", x, 32), x & 0xFFFFFFFF))
    middle = k.let(a1 * b0 + binary("shr", a0 * b0, 32))
    carry = binary("shr", a0 * b1 + (middle & 0xFFFFFFFF), 32)
    return a1 * b1 + binary("shr", middle, 32) + carry
