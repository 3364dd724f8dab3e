"""The integer ops of quantized models as PyTorch ops: schema, outputs, and the value in torch's own ops.

They are written into graphs by rewrite.py. Their kernels are lowering/ops/quantized.py; the values here serve
what is computed once (export folds what follows from weights), devices without kernels, and the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_LAYER = "Tensor x, Tensor weight, Tensor bias, Tensor multipliers, Tensor shifts"
_RESULT = "int zero, int low, int high, ScalarType dtype"
_WINDOW = "int[] stride, int[] padding, int[] dilation, int groups"

library = torch.library.Library("bringup", "FRAGMENT")
library.define(f"quantized_linear({_LAYER}, {_RESULT}) -> Tensor")
library.define(f"quantized_convolution({_LAYER}, int x_zero, {_RESULT}, {_WINDOW}) -> Tensor")
library.define("quantized_bias(Tensor weight, Tensor? bias, Tensor scales, float x_scale, int x_zero) -> Tensor")
library.define("quantized_factors(Tensor scales, float x_scale, float y_scale) -> (Tensor, Tensor)")
library.define(f"requantize(Tensor x, int offset, int multiplier, int shift, {_RESULT}) -> Tensor")
library.define(
    "quantized_add(Tensor a, Tensor b, int a_zero, int b_zero, int a_factor, int b_factor, int shift, "
    f"{_RESULT}) -> Tensor"
)


def _shifted(product: Tensor, shift: Tensor | int) -> Tensor:
    """int64 over 2^shift, rounded with halves up."""
    half = torch.ones_like(product) << (shift - 1)
    return (product + half) >> shift


def _finished(total: Tensor, zero: int, low: int, high: int, dtype: torch.dtype) -> Tensor:
    return (total + zero).clamp(low, high).to(dtype)


def _wrapped(total: Tensor) -> Tensor:
    """The value that an int32 would have."""
    return total.to(torch.int32).to(torch.int64)


def _signed(x: Tensor) -> Tensor:
    """An activation as float64; an unsigned one less 128. Sums of products of 8 bits are exact there."""
    if x.dtype not in (torch.int8, torch.uint8):
        raise TypeError(f"quantized ops take int8 and uint8, not {x.dtype}")
    return x.to(torch.float64) - (128 if x.dtype == torch.uint8 else 0)


def quantized_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    multipliers: Tensor,
    shifts: Tensor,
    zero: int,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> Tensor:
    """Rows times the rows of a weight."""
    total = _wrapped((_signed(x) @ weight.to(torch.float64).t()).to(torch.int64) + bias)
    return _finished(_shifted(total * multipliers, shifts), zero, low, high, dtype)


def quantized_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    multipliers: Tensor,
    shifts: Tensor,
    x_zero: int,
    zero: int,
    low: int,
    high: int,
    dtype: torch.dtype,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """A convolution whose input is its zero point beyond the edge."""
    edges = [edge for pad in reversed(padding) for edge in (pad, pad)]
    edge_value = x_zero - (128 if x.dtype == torch.uint8 else 0)
    source = F.pad(_signed(x), edges, value=edge_value)
    none = [0] * len(padding)
    sums = torch.ops.aten.convolution(
        source, weight.to(torch.float64), None, stride, none, dilation, False, none, groups
    )
    across = [-1, *(1 for _ in padding)]
    total = _wrapped(sums.to(torch.int64) + bias.view(across))
    return _finished(_shifted(total * multipliers.view(across), shifts.view(across)), zero, low, high, dtype)


def quantized_bias(weight: Tensor, bias: Tensor | None, scales: Tensor, x_scale: float, x_zero: int) -> Tensor:
    """The int32 number that each channel's sum starts from."""
    value = -x_zero * weight.flatten(1).sum(1, dtype=torch.int64)
    if bias is not None:
        real = torch.round(bias.to(torch.float64) / (x_scale * scales.to(torch.float64)))
        value = value + real.clamp(-(2.0**31), 2.0**31 - 1).nan_to_num(0.0).to(torch.int64)
    return value.to(torch.int32)


def quantized_factors(scales: Tensor, x_scale: float, y_scale: float) -> tuple[Tensor, Tensor]:
    """Multiplier and shift of each channel."""
    real = scales.to(torch.float64) * x_scale / y_scale
    bits = real.view(torch.int64)
    rounded = ((bits & ((1 << 52) - 1)) + (1 << 52) + (1 << 21)) >> 22
    over = rounded == 1 << 31
    shift = 1053 - ((bits >> 52) & 2047) - over.to(torch.int64)
    multiplier = torch.where(over, 1 << 30, rounded)
    multiplier = torch.where(shift < 1, (1 << 31) - 1, multiplier)
    usable = real >= 2.0**-1022
    pair = torch.where(usable, multiplier, 0), torch.where(usable, shift.clamp(1, 63), 1)
    return pair[0].to(torch.int32), pair[1].to(torch.int32)


def requantize(
    x: Tensor,
    offset: int,
    multiplier: int,
    shift: int,
    zero: int,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> Tensor:
    """(x + offset) × multiplier / 2^shift at another zero point."""
    return _finished(_shifted((x.to(torch.int64) + offset) * multiplier, shift), zero, low, high, dtype)


def quantized_add(
    a: Tensor,
    b: Tensor,
    a_zero: int,
    b_zero: int,
    a_factor: int,
    b_factor: int,
    shift: int,
    zero: int,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> Tensor:
    """The sum of two quantized tensors."""
    total = (a.to(torch.int64) - a_zero) * a_factor + (b.to(torch.int64) - b_zero) * b_factor
    return _finished(_shifted(total, shift), zero, low, high, dtype)


for _function in (
    quantized_linear,
    quantized_convolution,
    quantized_bias,
    quantized_factors,
    requantize,
    quantized_add,
):
    library.impl(_function.__name__, _function, "CompositeExplicitAutograd")


# ---- shapes ----


def _linear_shape(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]), dtype=rest[-1])


def _convolution_shape(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    dtype, stride, padding, dilation, groups = rest[-5:]
    none = [0] * (x.ndim - 2)
    shown = torch.ops.aten.convolution(
        x.to(torch.float32), weight.to(torch.float32), None, stride, padding, dilation, False, none, groups
    )
    return torch.empty_like(shown, dtype=dtype)


def _factors_shape(scales: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    made = [scales.new_empty(scales.shape, dtype=torch.int32) for _ in range(2)]
    return made[0], made[1]


def _elementwise_shape(x: Tensor, *rest: Any) -> Tensor:
    shown = torch.add(x, rest[0]) if isinstance(rest[0], Tensor) else x
    return torch.empty_like(shown, dtype=rest[-1])


library.impl("quantized_linear", _linear_shape, "Meta")
library.impl("quantized_convolution", _convolution_shape, "Meta")
library.impl("quantized_bias", lambda weight, *_: weight.new_empty(weight.shape[:1], dtype=torch.int32), "Meta")
library.impl("quantized_factors", _factors_shape, "Meta")
library.impl("requantize", _elementwise_shape, "Meta")
library.impl("quantized_add", _elementwise_shape, "Meta")
