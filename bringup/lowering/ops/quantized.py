"""Quantized models: int8 sums of products requantized by multiplier and shift, and the plain quantize and dequantize.

The integer ops (``bringup::…``) stand in graphs only, where graph/quantize/rewrite.py has put them. What they give is
quantized_reference.py, bit for bit. quantize and dequantize are exactly PyTorch's own formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bringup.ir.dtypes import DType, float32, float64, int8, int32, int64, uint8
from bringup.ir.expr import Binary, Bits, Expr, const
from bringup.ir.index import Index
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, NoKernel, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.formulas import clamped, unary, where
from bringup.lowering.ops.convolution import Variation, correlate, geometry
from bringup.lowering.ops.matmul import is_unit
from bringup.lowering.registry import define
from bringup.lowering.scalar_types import BY_CODE, opmath, promote


def _integers(k: KernelBuilder, *numbers: int) -> list[Expr]:
    """Numbers of a layer as arguments: layers that differ only in them share a kernel."""
    return [k.constant(number, int64) for number in numbers]


def _clamped(x: Expr, low: Expr, high: Expr) -> Expr:
    return Binary("min", Binary("max", x, low), high)


def _shifted(product: Expr, shift: Expr) -> Expr:
    """An int64 over 2^shift, rounded with halves up."""
    half = Binary("shl", const(1, int64), shift - 1)
    return Binary("shr", product + half, shift)


def requantized(total: Expr, multiplier: Expr, shift: Expr, zero: Expr, low: Expr, high: Expr) -> Expr:
    """An int32 sum as a quantized number, still in int64."""
    product = convert(total, int64) * convert(multiplier, int64)
    return _clamped(_shifted(product, convert(shift, int64)) + zero, low, high)


def _signed(value: Expr) -> Expr:
    """An 8-bit activation as int8: an unsigned one less 128, which flips its highest bit."""
    return value if value.dtype is int8 else convert(Binary("xor", value, const(128, uint8)), int8)


def _eight_bits(call: Call, *tensors: Tensor) -> None:
    for tensor in tensors:
        if tensor.dtype not in (int8, uint8):
            raise NoKernel(f"{call.op} takes int8 and uint8, not {tensor.dtype}")


# ---- sums of products ----


def _finish(
    bias: Tensor, multipliers: Tensor, shifts: Tensor, numbers: Sequence[int]
) -> Callable[[KernelBuilder, Expr, Sequence[Any], Sequence[Index]], Expr]:
    """What becomes of a sum: per-channel vectors are read at ``place`` of their shape."""

    def finish(k: KernelBuilder, total: Expr, shape: Sequence[Any], place: Sequence[Index]) -> Expr:
        start, multiplier, shift = (
            k.read(_split(vector, shape), shape).at(*place) for vector in (bias, multipliers, shifts)
        )
        return requantized(total + start, multiplier, shift, *_integers(k, *numbers))

    return finish


def _split(vector: Tensor, shape: Sequence[Any]) -> Tensor:
    """A vector over groups and the channels of a group."""
    if len(shape) == 1:
        return vector
    strides = (vector.strides[0] * shape[1], vector.strides[0])
    return replace(vector.view(tuple(shape), strides), contiguous=vector.contiguous)


@define("graph lowering", "bringup::quantized_linear")
def quantized_linear(
    call: Call,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    multipliers: Tensor,
    shifts: Tensor,
    zero: int,
    low: int,
    high: int,
    dtype: Any,
) -> None:
    """Rows times the rows of a weight, summed in int32."""
    _eight_bits(call, x, weight)
    (rows, depth), columns = x.shape, weight.shape[0]
    k = call.kernel("quantized_linear")
    i, j = k.grid(rows), k.grid(columns)
    source, factors = k.read(x), k.read(weight, (columns, depth))
    out = k.write(call.outs[0], (rows, columns))
    # Integers have the same sum in every order: lanes where both lie along it.
    lanes = 32 if is_unit(x.strides[-1]) and is_unit(weight.strides[-1]) else 1
    total = k.contract([depth], lambda p: (_signed(source[i, p]), factors[j, p]), lanes=lanes)
    finish = _finish(bias, multipliers, shifts, (zero, low, high))
    k.store(out, (i, j), finish(k, total, (columns,), (j,)))
    k.launch()


@define("graph lowering", "bringup::quantized_convolution")
def quantized_convolution(
    call: Call,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    multipliers: Tensor,
    shifts: Tensor,
    x_zero: int,
    zero: int,
    low: int,
    high: int,
    dtype: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> None:
    """A convolution, summed in int32; beyond its edge the input is its zero point."""
    _eight_bits(call, x, weight)
    how = Variation(const(x_zero, x.dtype), _signed, _finish(bias, multipliers, shifts, (zero, low, high)))
    shape = geometry(stride, padding, dilation, groups, x.ndim - 2)
    correlate(call.part("quantized_convolution", call.outs), call.outs[0], x, weight, None, shape, how)


# ---- what follows from weights: computed at every call, or once where the weights are constants (export) ----


@define("graph lowering", "bringup::quantized_bias")
def quantized_bias(
    call: Call, weight: Tensor, bias: Tensor | None, scales: Tensor, x_scale: Number, x_zero: int
) -> None:
    """The int32 number that a channel's sum starts from."""
    k = call.kernel("quantized_bias")
    channels, *inner = weight.shape
    o = k.grid(channels)
    source, out = k.read(weight), k.write(call.outs[0], (channels,))
    total = convert(k.reduce(inner, lambda *j: convert(source.at(o, *j), int32)), int64)
    (zero,) = _integers(k, x_zero)
    value = zero * (const(0, int64) - total)
    if bias is not None:
        unit = k.number(x_scale, float64) * convert(k.read(scales, (channels,))[o], float64)
        real = unary("round", convert(k.read(bias, (channels,))[o], float64) / unit)
        value = convert(clamped(real, const(-(2.0**31), float64), const(2.0**31 - 1, float64)), int64) + value
    k.store(out, (o,), value)
    k.launch()


@define("graph lowering", "bringup::quantized_factors")
def quantized_factors(call: Call, scales: Tensor, x_scale: Number, y_scale: Number) -> None:
    """Multiplier and shift of every channel: the 53 bits of the real factor, rounded to 31."""
    k = call.kernel("quantized_factors")
    (channels,) = scales.shape
    o = k.grid(channels)
    scale = convert(k.read(scales)[o], float64)
    multipliers, shifts = (k.write(out, (channels,)) for out in call.outs)
    real = k.let(scale * k.number(x_scale, float64) / k.number(y_scale, float64))
    bits = k.let(Bits(real, int64))
    exponent = Binary("and", Binary("shr", bits, const(52, int64)), const(2047, int64))
    mantissa = Binary("and", bits, const((1 << 52) - 1, int64)) + (1 << 52)
    rounded = k.let(Binary("shr", mantissa + (1 << 21), const(22, int64)))
    over = k.let(Binary("eq", rounded, const(1 << 31, int64)))
    raw = k.let(1053 - exponent - where(over, const(1, int64), 0))
    multiplier = where(over, const(1 << 30, int64), rounded)
    multiplier = where(raw < 1, const((1 << 31) - 1, int64), multiplier)
    shift = _clamped(raw, const(1, int64), const(63, int64))
    usable = k.let(real >= 2.0**-1022)
    k.store(multipliers, (o,), where(usable, multiplier, 0))
    k.store(shifts, (o,), where(usable, shift, 1))
    k.launch()


# ---- element by element ----


def _pointwise(call: Call, tensors: Sequence[Tensor], formula: Callable[..., Expr]) -> None:
    call.pointwise = True
    elementwise(call, call.outs, tensors, formula, int64, name=call.op.replace("bringup::", ""), builder=True)


@define("graph lowering", "bringup::requantize")
def requantize(call: Call, x: Tensor, *numbers_and_dtype: Any) -> None:
    """(x + offset) × multiplier / 2^shift, at another zero point."""

    def formula(k: KernelBuilder, value: Expr) -> Expr:
        offset, multiplier, shift, zero, low, high = _integers(k, *numbers_and_dtype[:-1])
        return requantized(value + offset, multiplier, shift, zero, low, high)

    _pointwise(call, [x], formula)


@define("graph lowering", "bringup::quantized_add")
def quantized_add(call: Call, a: Tensor, b: Tensor, *numbers_and_dtype: Any) -> None:
    """The sum of two quantized tensors, rounded once."""
    _eight_bits(call, a, b)

    def formula(k: KernelBuilder, x: Expr, y: Expr) -> Expr:
        x_zero, y_zero, x_factor, y_factor, shift, zero, low, high = _integers(k, *numbers_and_dtype[:-1])
        total = (x - x_zero) * x_factor + (y - y_zero) * y_factor
        return _clamped(_shifted(total, shift) + zero, low, high)

    _pointwise(call, [a, b], formula)


# ---- quantized_decomposed: PyTorch's own formulas, op by op ----


def _known_scale(scale: Number) -> float:
    value = float(scale.known())
    if value == 0 or math.isinf(value):
        raise NoKernel(f"a scale of {value}")
    return value


def _rounded(x: Expr, inverse: Expr, zero: Expr, low: int, high: int) -> Expr:
    """clamp(round(x × inverse) + zero, low, high), in the type of x."""
    moved = unary("round", x * inverse) + zero
    return clamped(moved, const(low, x.dtype), const(high, x.dtype))


def _halves_widened(call: Call, x: Tensor) -> None:
    if not x.dtype.is_float or x.dtype is float64:
        raise NoKernel(f"{call.op} takes float32 and half types, not {x.dtype}")


@define("graph lowering", "quantized_decomposed::quantize_per_tensor")
def quantize_per_tensor(call: Call, x: Tensor, scale: Number, zero: int, low: int, high: int, dtype: Any) -> None:
    """One scale and zero point for all; both are numbers of the graph."""
    _halves_widened(call, x)
    inverse, call.pointwise = const(1.0 / _known_scale(scale), float32), True
    formula = lambda value: _rounded(value, inverse, const(zero, float32), low, high)  # noqa: E731
    elementwise(call, call.outs, [x], formula, float32, name="quantize")


@define("graph lowering", "quantized_decomposed::quantize_per_tensor.tensor")
def quantize_per_tensor_tensor(
    call: Call, x: Tensor, scale: Tensor | Number, zero: Tensor | Number, low: int, high: int, dtype: Any
) -> None:
    """The same with a scale and zero point that are computed, as in dynamic quantization."""
    _halves_widened(call, x)

    def formula(value: Expr, size: Expr, point: Expr) -> Expr:
        inverse = convert(unary("reciprocal", size), float32)
        return _rounded(value, inverse, convert(point, float32), low, high)

    operands = [x, _one(scale), _one(zero)]
    elementwise(call, call.outs, operands, formula, [float32, float64, float64], name="quantize")


def _one(number: Tensor | Number) -> Tensor | Number:
    """A tensor of one element, without dimensions."""
    while isinstance(number, Tensor) and number.ndim:
        number = number.select(number.ndim - 1, 0)
    return number


def _dequantized(call: Call, operands: Sequence[Any], scale: float | None = None, zero: int | None = None) -> None:
    """(x - zero) × scale: two ops of PyTorch, each rounded to the type of the result."""
    out = call.outs[0].dtype
    wide = opmath(out)

    def formula(x: Expr, *others: Expr) -> Expr:
        size, point = others or (const(scale or 0.0, wide), const(zero or 0, wide))
        moved = convert(convert(x, out), wide) - convert(point, wide)
        return convert(convert(moved, out), wide) * convert(size, wide)

    elementwise(call, call.outs, operands, formula, [None] * len(operands), name="dequantize")


def _of_type(call: Call, x: Tensor, code: int) -> None:
    if BY_CODE.get(code) is not x.dtype:
        raise NoKernel(f"{call.op} expects {BY_CODE.get(code)} and got {x.dtype}")


@define("graph lowering", "quantized_decomposed::dequantize_per_tensor")
def dequantize_per_tensor(
    call: Call, x: Tensor, scale: Number, zero: int, low: int, high: int, dtype: int, out_dtype: Any
) -> None:
    """One scale and zero point for all."""
    _of_type(call, x, dtype)
    call.pointwise = True
    _dequantized(call, [x], float(scale.known()), zero)


@define("graph lowering", "quantized_decomposed::dequantize_per_tensor.tensor")
def dequantize_per_tensor_tensor(
    call: Call,
    x: Tensor,
    scale: Tensor | Number,
    zero: Tensor | Number,
    low: int,
    high: int,
    dtype: int,
    out_dtype: Any,
) -> None:
    """The same with a scale and zero point that are computed."""
    _of_type(call, x, dtype)
    _dequantized(call, [x, _one(scale), _one(zero)])


def _along(vector: Tensor, like: Tensor, axis: int) -> Tensor:
    """A vector, spread over the other dimensions of a tensor; one of a single element, over all."""
    axis %= like.ndim
    if vector.ndim != 1 or not (vector.shape[0] == like.shape[axis] or vector.shape[0] == 1):
        raise NoKernel("as many scales and zero points as the axis has positions")
    step = vector.strides[0] if vector.shape[0] == like.shape[axis] else 0
    return vector.view(like.shape, [step if d == axis else 0 for d in range(like.ndim)])


@define("graph lowering", "quantized_decomposed::quantize_per_channel")
def quantize_per_channel(
    call: Call, x: Tensor, scales: Tensor, zeros: Tensor, axis: int, low: int, high: int, dtype: Any
) -> None:
    """A scale and a zero point for each position of an axis."""
    _halves_widened(call, x)
    wide = promote(float32, scales.dtype)

    def formula(value: Expr, size: Expr, point: Expr) -> Expr:
        inverse = convert(unary("reciprocal", size), wide)
        return _rounded(convert(value, wide), inverse, convert(point, wide), low, high)

    operands = [x, _along(scales, x, axis), _along(zeros, x, axis)]
    kinds: list[DType | None] = [float32, None, None]
    elementwise(call, call.outs, operands, formula, kinds, name="quantize")


@define("graph lowering", "quantized_decomposed::dequantize_per_channel")
def dequantize_per_channel(
    call: Call,
    x: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    axis: int,
    low: int,
    high: int,
    dtype: int,
    out_dtype: Any,
) -> None:
    """A scale and a zero point for each position of an axis; the difference is one of integers."""
    _of_type(call, x, dtype)
    operands = [x, _along(scales, x, axis), *([] if zeros is None else [_along(zeros, x, axis)])]

    def formula(value: Expr, size: Expr, *points: Expr) -> Expr:
        for point in points:
            joint = promote(value.dtype, point.dtype)
            value = convert(value, joint) - convert(point, joint)
        joint = promote(value.dtype, size.dtype)
        return convert(value, joint) * convert(size, joint)

    elementwise(call, call.outs, operands, formula, [None] * len(operands), name="dequantize")
