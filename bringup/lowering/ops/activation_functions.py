"""Activation functions and their backwards: a line per op. Gradients come first, as in PyTorch's schemas."""

from __future__ import annotations

from typing import Any

from bringup.ir.dtypes import DType
from bringup.ir.expr import Expr, Fma, const
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, Number, NumberParam, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.formulas import (
    INV_SQRT_2PI,
    SQRT_2_OVER_PI,
    SQRT_HALF,
    absolute,
    clamped,
    erf,
    exp,
    expm1,
    log1p,
    log_sigmoid,
    maximum,
    scaled,
    sigmoid,
    tanh,
    where,
)
from bringup.lowering.output_layout import promoted_output
from bringup.lowering.registry import lowering, new_output, pointwise
from bringup.lowering.scalar_types import opmath


def _numeric(dtype: DType) -> bool:
    return dtype.is_float or dtype.is_integer


def _zero(x: Expr) -> Expr:
    return const(0, x.dtype)


# ---- with a corner ----

pointwise("aten::relu", lambda x: maximum(x, _zero(x)), accept=_numeric)
pointwise("aten::threshold", lambda x, limit, value: where(x <= limit, value, x))
pointwise("aten::threshold_backward", lambda g, x, limit: where(x <= limit, 0, g))
pointwise("aten::hardtanh", clamped, to="common", promote=(0,))
pointwise("aten::hardtanh_backward", lambda g, x, low, high: where((x <= low) | (x >= high), 0, g))
pointwise("aten::leaky_relu", lambda x, slope: where(x > 0, x, x * slope))
pointwise("aten::leaky_relu_backward", lambda g, x, slope, _: where(x > 0, g, g * slope))
pointwise("aten::_prelu_kernel", lambda x, weight: where(x > 0, x, weight * x))
pointwise(
    "aten::_prelu_kernel_backward",
    lambda g, x, weight: (where(x > 0, g, weight * g), where(x > 0, 0, x * g)),
)
pointwise("aten::hardshrink", lambda x, lambd: where((x >= -lambd) & (x <= lambd), 0, x))
pointwise("aten::softshrink", lambda x, lambd: where(x > lambd, x - lambd, where(x < -lambd, x + lambd, x * 0.0)))
pointwise(
    "aten::hardshrink_backward aten::softshrink_backward",
    lambda g, x, lambd: where((x >= -lambd) & (x <= lambd), 0, g),
)


def _clamped_to_6(x: Expr) -> Expr:
    return clamped(x + 3.0, const(0, x.dtype), const(6, x.dtype))


pointwise("aten::hardsigmoid", lambda x: _clamped_to_6(x) / 6.0)
pointwise("aten::hardsigmoid_backward", lambda g, x: where((x > -3.0) & (x < 3.0), g * (1.0 / 6.0), 0))
pointwise("aten::hardswish", lambda x: x * _clamped_to_6(x) / 6.0)
pointwise(
    "aten::hardswish_backward",
    lambda g, x: where(x <= -3.0, 0, where(x < 3.0, g * (x / 3.0 + 0.5), g)),
)

# ---- exponential ----


def _elu(x: Expr, alpha: Expr, scale: Expr, input_scale: Expr) -> Expr:
    return where(x < 0, expm1(scaled(input_scale, x)) * scaled(scale, alpha), scaled(scale, x))


def _elu_backward(g: Expr, alpha: Expr, scale: Expr, input_scale: Expr, is_result: bool, x: Expr) -> Expr:
    negative = scaled(scale, alpha)
    slope = x + negative if is_result else exp(scaled(input_scale, x)) * negative
    return where(x <= 0, g * scaled(input_scale, slope), g * scale)


def _celu(x: Expr, alpha: NumberParam) -> Expr:
    if alpha.equals(0):
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return where(x > 0, x, alpha * expm1(x / alpha))


def _softplus(x: Expr, beta: Expr, threshold: Expr) -> Expr:
    z = scaled(beta, x)
    return where(z > threshold, x, log1p(exp(z)) / beta)


def _softplus_backward(g: Expr, x: Expr, beta: Expr, threshold: Expr) -> Expr:
    z = scaled(beta, x)
    return where(z > threshold, g, g * sigmoid(z))


def _mish_gate(x: Expr) -> Expr:
    """tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2); from 20 up it is 1 in every type."""
    e = exp(clamped(x, None, const(20.0, x.dtype)))
    n = e * (e + 2.0)
    return n / (n + 2.0)


def _mish_backward(k: KernelBuilder, g: Expr, x: Expr) -> Expr:
    gate = k.let(_mish_gate(x))
    return g * (gate + x * sigmoid(x) * (1.0 - gate * gate))


def _silu_backward(k: KernelBuilder, g: Expr, x: Expr) -> Expr:
    s = k.let(sigmoid(x))
    return g * s * (1.0 + x * (1.0 - s))


pointwise("aten::elu", _elu)
pointwise("aten::elu_backward", _elu_backward)
pointwise("aten::celu", _celu)
pointwise("aten::sigmoid", sigmoid, to="float")
pointwise("aten::sigmoid_backward", lambda g, y: g * (1.0 - y) * y)
pointwise("aten::tanh_backward", lambda g, y: g * (1.0 - y * y))
pointwise("aten::silu", lambda x: x / (1.0 + exp(-x)))
pointwise("aten::silu_backward", _silu_backward, builder=True)
pointwise("aten::mish", lambda x: x * _mish_gate(x))
pointwise("aten::mish_backward", _mish_backward, builder=True)
pointwise("aten::softplus", _softplus)
pointwise("aten::softplus_backward", _softplus_backward)


def _log_sigmoid_outputs(x: Any) -> list[Any]:
    """Contiguous, as on the CPU; PyTorch's meta kernel keeps the order of dimensions."""
    return [new_output(x[2], x[3])] * 2


@lowering("aten::log_sigmoid_forward", outputs=_log_sigmoid_outputs)
def log_sigmoid_forward(call: Call, self: Tensor) -> None:
    """log(sigmoid(x)); the second output, which only the CPU's own backward reads, is e^-|x| where it has elements."""
    elementwise(call, call.outs[:1], (self,), log_sigmoid, opmath(self.dtype))
    if call.outs[1].numel != 0:
        elementwise(call, call.outs[1:], (self,), lambda x: exp(-absolute(x)), opmath(self.dtype))


@lowering("aten::log_sigmoid_backward")
def log_sigmoid_backward(call: Call, grad_output: Tensor, self: Tensor, buffer: Tensor) -> None:
    """g × sigmoid(-x)."""

    def formula(k: KernelBuilder, g: Expr, x: Expr) -> Expr:
        e = k.let(exp(-absolute(x)))
        return g * where(x < 0, 1.0, e) / (1.0 + e)

    call.pointwise = True
    elementwise(call, call.outs, (grad_output, self), formula, opmath(self.dtype), builder=True)


@lowering("aten::rrelu_with_noise_backward")
def rrelu_with_noise_backward(
    call: Call, g: Tensor, self: Tensor, noise: Tensor, low: Number, high: Number, training: bool, _: bool
) -> None:
    """The noise is the slope in training, the middle of its range otherwise."""
    call.pointwise = True
    if training:
        elementwise(call, call.outs, (g, noise), lambda g, noise: g * noise, opmath(self.dtype))
        return
    operands = (g, self, low, high)
    elementwise(call, call.outs, operands, lambda g, x, a, b: where(x > 0, g, g * ((a + b) * 0.5)), opmath(self.dtype))


@lowering("aten::native_dropout_backward", "aten::_masked_scale", outputs=promoted_output)
def masked_scale(call: Call, self: Tensor, mask: Tensor, scale: Number) -> None:
    """Scaled where the mask holds, 0 elsewhere."""
    wide = opmath(call.outs[0].dtype)  # that of the scale where integers are masked
    call.pointwise = True
    elementwise(call, call.outs, (self, mask, scale), lambda x, m, by: x * convert(m, wide) * by, (wide, None, wide))


# ---- gelu ----

_CUBE = 0.044715


def _gelu(x: Expr, approximate: str) -> Expr:
    if approximate not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")
    if approximate == "tanh":
        return 0.5 * x * (1.0 + tanh(SQRT_2_OVER_PI * (x + _CUBE * (x * x * x))))
    half = const(0.5, x.dtype)  # as a fused multiply-add (1 + erf) / 2 is one of 57 instructions less
    return x * Fma(half, erf(x * SQRT_HALF), half)


def _gelu_backward(k: KernelBuilder, g: Expr, x: Expr, approximate: str) -> Expr:
    if approximate != "tanh":
        density = exp(x * x * -0.5) * INV_SQRT_2PI
        return g * (0.5 * (1.0 + erf(x * SQRT_HALF)) + x * density)
    square = k.let(x * x)
    t = k.let(tanh(SQRT_2_OVER_PI * (x + _CUBE * (square * x))))
    inner = SQRT_2_OVER_PI * (1.0 + 3 * _CUBE * square)
    return g * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner)


pointwise("aten::gelu", _gelu)
pointwise("aten::gelu_backward", _gelu_backward, builder=True)

# ---- gated linear units: one half of a dimension gates the other ----


def _halves(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    dim = dim % x.ndim
    half = x.shape[dim] // 2
    return x.narrow(dim, 0, half), x.narrow(dim, half, half)


def _glu_backward(k: KernelBuilder, g: Expr, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    s = k.let(sigmoid(b))
    return g * s, g * a * s * (1.0 - s)


@lowering("aten::glu")
def glu(call: Call, self: Tensor, dim: int) -> None:
    """a × sigmoid(b)."""
    elementwise(call, call.outs, _halves(self, dim), lambda a, b: a * sigmoid(b), opmath(self.dtype))


@lowering("aten::glu_backward")
def glu_backward(call: Call, grad_output: Tensor, self: Tensor, dim: int) -> None:
    """Both halves of the gradient in one kernel."""
    operands = (grad_output, *_halves(self, dim))
    elementwise(call, _halves(call.outs[0], dim), operands, _glu_backward, opmath(self.dtype), builder=True)


def _outputs_like_first(first: tuple[Any, ...], *_: object) -> list[tuple[str, int, Any, Any]]:
    """An output with the layout of the first argument where that is dense, else contiguous."""
    _, _, code, sizes, strides, _ = first
    step = 1
    for stride, size in sorted(zip(strides, sizes)):
        if size != 1 and stride != step:
            return [new_output(code, sizes)]
        step *= size
    return [("new", code, sizes, strides)]


@lowering("aten::glu_jvp", outputs=_outputs_like_first)
def glu_jvp(call: Call, glu: Tensor, x: Tensor, dx: Tensor, dim: int) -> None:
    """da × sigmoid(b) + glu × (1 - sigmoid(b)) × db."""

    def formula(k: KernelBuilder, y: Expr, b: Expr, da: Expr, db: Expr) -> Expr:
        s = k.let(sigmoid(b))
        return da * s + y * (db - s * db)

    operands = (glu, _halves(x, dim)[1], *_halves(dx, dim))
    elementwise(call, call.outs, operands, formula, opmath(x.dtype), builder=True)
