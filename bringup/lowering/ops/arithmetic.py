"""Arithmetic of one, two and three operands: a line per op."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from bringup.ir.dtypes import DType, Kind, bfloat16, float32
from bringup.ir.expr import Expr, const
from bringup.lowering.builder import convert
from bringup.lowering.call import Call, Number, NumberParam
from bringup.lowering.elementwise import elementwise
from bringup.lowering.formulas import (
    absolute,
    binary,
    binary_op,
    clamped,
    exp2,
    is_nan,
    is_zero,
    maximum,
    minimum,
    scaled,
    sqrt,
    trunc,
    unary,
    where,
)
from bringup.lowering.output_layout import promoted_output
from bringup.lowering.registry import compute_type, lowering, pointwise
from bringup.lowering.scalar_types import C10_NAMES, CODE_OF, clamp_takes_any_bound, opmath, overflow_error

_BOTH = (0, 1)


def _numeric(dtype: DType) -> bool:
    return dtype.kind is not Kind.BOOL


# ---- one operand ----


def _rounding(op: str) -> Any:
    """Integers are round already."""
    return lambda x: x if x.dtype.is_integer else unary(op, x)


def _to_decimals(x: Expr, decimals: int) -> Expr:
    if decimals == 0:
        return unary("round", x)
    ten = 10.0 ** abs(decimals)
    return unary("round", x / ten) * ten if decimals < 0 else unary("round", x * ten) / ten


pointwise("aten::abs", absolute)
pointwise("aten::neg", lambda x: unary("neg", x))
pointwise("aten::sign aten::sgn", lambda x: unary("sign", x) if _numeric(x.dtype) else x)
for _op in ("ceil", "floor", "round", "trunc"):
    pointwise(f"aten::{_op}", _rounding(_op), accept=_numeric)
pointwise("aten::round.decimals", _to_decimals)
pointwise("aten::frac", lambda x: x - trunc(x))
pointwise("aten::reciprocal", lambda x: unary("reciprocal", x), to="float")
pointwise("aten::sqrt", sqrt, to="float")
pointwise("aten::rsqrt", lambda x: unary("rsqrt", x), to="float")
pointwise("aten::deg2rad", lambda x: x * (math.pi / 180), to="float")
pointwise("aten::rad2deg", lambda x: x * (180 / math.pi), to="float")

# ---- sums and products ----


def _less(x: Expr, y: Expr, alpha: Any) -> Expr:
    """x - alpha y. The CPU adds -alpha y, and it is -alpha that must fit a signed type: 2³¹ does, -2³¹ does not."""
    kind = x.dtype
    if kind.kind is Kind.INT and kind.bits < 64 and isinstance(alpha, NumberParam):
        if alpha.equals(-kind.low):
            return x - const(kind.low, kind) * y
        if alpha.equals(kind.low):
            raise overflow_error(kind)
    return x - scaled(alpha, y)


pointwise("aten::add.Tensor", lambda x, y, alpha: x + scaled(alpha, y))
pointwise("aten::add.Scalar", lambda x, y, alpha: x + scaled(alpha, y), promote=_BOTH)
pointwise("aten::sub.Tensor", _less)
pointwise("aten::sub.Scalar", _less, promote=_BOTH)
pointwise("aten::rsub.Tensor", lambda x, y, alpha: _less(y, x, alpha))
pointwise("aten::rsub.Scalar", lambda x, y, alpha: _less(y, x, alpha), promote=_BOTH)
pointwise("aten::mul.Tensor", lambda x, y: x * y)
pointwise("aten::mul.Scalar", lambda x, y: x * y, promote=_BOTH)
pointwise("aten::addcmul", lambda x, a, b, value: x + scaled(value, a) * b, accept=_numeric)
pointwise("aten::addcdiv", lambda x, a, b, value: x + scaled(value, a) / b, accept=lambda dtype: dtype.is_float)


def _lerp(x: Expr, end: Expr, weight: Expr) -> Expr:
    """From the nearer end, so that weights 0 and 1 are exact."""
    return where(absolute(weight) < 0.5, x + weight * (end - x), end - (end - x) * (1.0 - weight))


pointwise("aten::lerp.Tensor aten::lerp.Scalar", _lerp)

# ---- quotients and remainders: integers by 0 give -1 and the dividend, where PyTorch's CPU raises ----


def _truncated(x: Expr, y: Expr) -> Expr:
    wide = opmath(x.dtype)
    return trunc(convert(x, wide) / convert(y, wide)) if wide.is_float else binary("truncdiv", x, y)


pointwise("aten::div.Tensor", lambda x, y: x / y, to="float")
pointwise("aten::div.Scalar", lambda x, y: x / y, to="float", promote=_BOTH)
pointwise("aten::floor_divide", binary_op("floordiv"), outputs=promoted_output)
pointwise("aten::floor_divide.Scalar", binary_op("floordiv"), promote=_BOTH)
pointwise("aten::remainder.Tensor", binary_op("remainder"), to="common")
pointwise("aten::remainder.Scalar aten::remainder.Scalar_Tensor", binary_op("remainder"), to="common", promote=_BOTH)
pointwise("aten::fmod.Tensor", binary_op("fmod"), to="common")
pointwise("aten::fmod.Scalar", binary_op("fmod"), to="common", promote=_BOTH)


@lowering("aten::div.Tensor_mode", "aten::div.Scalar_mode")
def div_mode(call: Call, self: Any, other: Any, rounding_mode: str | None) -> None:
    """True division, or rounded towards 0 or down."""
    kind = compute_type((self, other), _BOTH)
    call.pointwise = True
    other = replace(other, wraps=True) if isinstance(other, Number) else other  # a Scalar becomes a tensor first
    if rounding_mode is None:
        kind = opmath(kind if kind.is_float else call.outs[0].dtype if call.outs[0].dtype.is_float else float32)
        elementwise(call, call.outs, (self, other), lambda x, y: x / y, kind)
    elif rounding_mode == "trunc":
        elementwise(call, call.outs, (self, other), _truncated, opmath(kind))
    else:
        elementwise(call, call.outs, (self, other), binary_op("floordiv"), opmath(kind))


# ---- powers ----


def _power(x: Expr, y: Expr) -> Expr:
    """x^y; the exponents that PyTorch computes without a logarithm, too."""
    if not isinstance(y, NumberParam):
        return binary("pow", x, y)
    if y.equals(2):
        return x * x
    if y.equals(3):
        return x * x * x
    if x.dtype.is_float:
        if y.equals(0.5):
            return sqrt(x)
        if y.equals(-0.5):
            return unary("rsqrt", x)
        if y.equals(-1):
            return unary("reciprocal", x)
        if y.equals(-2):
            return 1.0 / (x * x)
    return binary("pow", x, y)


def _two_to_the(x: Expr, exponent: Expr) -> Expr:
    return x * convert(exp2(exponent if exponent.dtype.is_float else convert(exponent, x.dtype)), x.dtype)


pointwise("aten::pow.Tensor_Tensor", binary_op("pow"), accept=_numeric)
pointwise("aten::pow.Tensor_Scalar", _power, promote=_BOTH, accept=_numeric)
pointwise("aten::pow.Scalar", binary_op("pow"), promote=_BOTH, accept=_numeric)
pointwise("aten::hypot", binary_op("hypot"))


@lowering("aten::ldexp.Tensor")
def ldexp(call: Call, self: Any, other: Any) -> None:
    """self × 2^other."""
    call.pointwise = True
    kind = call.outs[0].dtype if call.outs[0].dtype.is_float else float32
    elementwise(call, call.outs, (self, other), _two_to_the, (opmath(kind), None))


# ---- the larger, the smaller, the nearest ----


def _unless_nan(op: str) -> Any:
    """The other one where one is NaN; of 0 and -0 the first, as the CPU does (of bfloat16 it gives the second)."""

    def formula(x: Expr, y: Expr) -> Expr:
        either = binary(op, x, y) if x.dtype is bfloat16 else binary(op, y, x)
        return where(is_nan(x), y, where(is_nan(y), x, either)) if x.dtype.is_float else either

    return formula


pointwise("aten::maximum", maximum, to="common")
pointwise("aten::minimum", minimum, to="common")
pointwise("aten::fmax", _unless_nan("max"), to="common")
pointwise("aten::fmin", _unless_nan("min"), to="common")


def _bound(x: Expr, bound: Any, name: str) -> Any:
    """The bound, None where it is beyond all numbers of the type. On the other side of them it is PyTorch's error."""
    kind = x.dtype
    if not (isinstance(bound, NumberParam) and kind.is_integer and kind.bits < 64 and clamp_takes_any_bound()):
        return bound
    number = bound.number
    assert number is not None
    below, above = number < kind.low, number > kind.high
    if above if name == "min" else below:
        type_name = C10_NAMES[CODE_OF[kind]]
        raise RuntimeError(f"Clamp {name} value {number.value:g} is outside the representable range of {type_name}")
    return None if below or above else bound


def _between(x: Expr, low: Any, high: Any) -> Expr:
    return clamped(x, _bound(x, low, "min"), _bound(x, high, "max"))


_BOUNDS: dict[str, Any] = {"to": "common", "accept": _numeric, "wraps": False}
pointwise("aten::clamp", _between, promote=(0, 1, 2), **_BOUNDS)
pointwise("aten::clamp.Tensor", clamped, to="common", accept=_numeric)
pointwise("aten::clamp_min", lambda x, low: _between(x, low, None), promote=_BOTH, **_BOUNDS)
pointwise("aten::clamp_min.Tensor", maximum, to="common")
pointwise("aten::clamp_max", lambda x, high: _between(x, None, high), promote=_BOTH, **_BOUNDS)
pointwise("aten::clamp_max.Tensor", minimum, to="common")
pointwise("aten::copysign.Tensor", binary_op("copysign"), to="float")
pointwise("aten::copysign.Scalar", binary_op("copysign"), to="float", promote=_BOTH)
pointwise("aten::nextafter", binary_op("nextafter"), to="common")
pointwise("aten::heaviside", lambda x, zero: where(is_zero(x), zero, convert(x > 0, x.dtype)), to="common")
