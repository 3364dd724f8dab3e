"""Pointwise lowerings against PyTorch's CPU: every op of the tables, in all dtypes, with NaN, infinities and zeros."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from bringup.lowering.call import NoKernel
from tests.unit.lowering.interpreted import call_op, check, find, interpret

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 1e-6, -3.5)


def agree(overload: str, *arguments: Any) -> None:
    """As ``check``; float64 and results of integers, which have no better reference, to nearly the last bit."""
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    if any(t.dtype in (torch.float16, torch.bfloat16, torch.float32) for t in tensors):
        check(overload, *arguments)
        return
    op = find(overload)
    schema = op._schema.arguments
    expected = call_op(op, [*arguments, *(a.default_value for a in schema[len(arguments) :])])
    for got, cpu in zip(interpret(overload, *arguments), expected if isinstance(expected, tuple) else (expected,)):
        tight = {torch.float64: 1e-13, torch.float32: 3e-6}.get(got.dtype, 0.0)
        torch.testing.assert_close(got, cpu, rtol=tight, atol=tight, equal_nan=True)
        assert torch.equal(got.signbit(), cpu.signbit()) or bool(cpu.isnan().any())


def sample(dtype: torch.dtype, low: float = -4, high: float = 4, seed: int = 0) -> torch.Tensor:
    """Numbers of a range; floats begin with the special ones."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(24, generator=generator) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(
            int(max(low, 0 if dtype == torch.uint8 else low)), int(high) + 1, (24,), generator=generator
        ).to(dtype)
    values = torch.rand(36, generator=generator, dtype=torch.float64) * (high - low) + low
    values[: len(SPECIAL)] = torch.tensor(SPECIAL, dtype=torch.float64)
    return values.to(dtype)


ANY = "sign sgn isnan isinf isposinf isneginf signbit logical_not nan_to_num"
NUMERIC = "abs neg ceil floor round trunc relu"
TO_FLOAT = """exp exp2 expm1 log log1p log2 log10 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc
    erfinv lgamma digamma sqrt rsqrt reciprocal deg2rad rad2deg angle sinc logit sigmoid special_entr i0 special_i0e
    special_i1 special_i1e"""
WIDE_ONLY = """special_erfcx special_log_ndtr special_ndtri special_airy_ai special_bessel_j0 special_bessel_j1
    special_bessel_y0 special_bessel_y1 special_modified_bessel_i0 special_modified_bessel_i1
    special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0
    special_scaled_modified_bessel_k1 special_spherical_bessel_j0"""
FLOAT_ONLY = "frac hardsigmoid hardswish silu mish log_sigmoid_forward"


@pytest.mark.parametrize("name", f"{ANY} {NUMERIC} {TO_FLOAT} {WIDE_ONLY} {FLOAT_ONLY}".split())
def test_one_operand(name: str) -> None:
    dtypes: list[torch.dtype] = [torch.float32, torch.float64]
    dtypes += [] if name in WIDE_ONLY.split() else [torch.bfloat16, torch.float16]
    dtypes += [] if name in FLOAT_ONLY.split() else [torch.int64, torch.int8, torch.uint8]
    dtypes += [torch.bool] if name in f"{ANY} {TO_FLOAT}".split() else []
    for dtype in dtypes:
        low, high = (0, 1) if "ndtri" in name else (-4, 4)
        x = sample(dtype, low, high)
        agree(f"aten::{name}", x[1:] if name == "signbit" else x)  # the IR's NaN has no sign


def test_a_long_range_of_special_functions() -> None:
    x = torch.linspace(-40, 40, 81, dtype=torch.float64)
    names = "special_erfcx special_log_ndtr special_airy_ai special_bessel_j0 special_bessel_y1 special_i0e"
    for name in f"{names} special_scaled_modified_bessel_k1".split():
        expected = find(f"aten::{name}")(x)
        torch.testing.assert_close(interpret(f"aten::{name}", x)[0], expected, rtol=1e-11, atol=1e-13, equal_nan=True)


@pytest.mark.parametrize("kind", "chebyshev_t chebyshev_u chebyshev_v chebyshev_w hermite_h hermite_he".split())
def test_polynomials_of_any_degree(kind: str) -> None:
    family, _, letter = kind.partition("_")
    for dtype in (torch.float32, torch.float64):
        n = torch.tensor([-1, 0, 1, 2, 3, 7, 8, 9, 12, 20], dtype=dtype)
        for x in (-1.0, 1.0, 0.0, 0.3, -0.8, 1.2, -1.5):
            for shifted in ("", "shifted_") if family == "chebyshev" else ("",):
                name = f"aten::special_{shifted}{family}_polynomial_{letter}.x_scalar"
                expected = find(name)(x, n)
                tight = 2e-5 if dtype == torch.float32 else 1e-12
                torch.testing.assert_close(interpret(name, x, n)[0], expected, rtol=tight, atol=tight)
    assert interpret("aten::special_hermite_polynomial_h.n_scalar", torch.tensor([1.0]), 200)[0].isnan().all()


SAME_TYPE = "maximum minimum fmax fmin heaviside"


@pytest.mark.parametrize(
    "overload",
    [
        *("add.Tensor", "mul.Tensor", "div.Tensor", "atan2", "copysign.Tensor", "xlogy.Tensor", "special_xlog1py"),
        *("eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor"),
        *("logical_and", "logical_or", "logical_xor", *SAME_TYPE.split()),
    ],
)
def test_two_operands_of_any_type(overload: str) -> None:
    for dtype in (*FLOATS, *INTEGERS, torch.bool):
        y = sample(dtype, seed=1)[1:] if overload.startswith("copysign") else sample(dtype, seed=1)
        agree(f"aten::{overload}", sample(dtype)[: len(y)], y.roll(7))


@pytest.mark.parametrize(
    "overload", "sub.Tensor rsub.Tensor floor_divide remainder.Tensor fmod.Tensor pow.Tensor_Tensor".split()
)
def test_two_operands_of_numeric_types(overload: str) -> None:
    for dtype in (*FLOATS, *INTEGERS):
        y = sample(dtype, 1 if not dtype.is_floating_point else -4, seed=1)
        agree(f"aten::{overload}", sample(dtype), y.roll(5) if dtype.is_floating_point else y)


@pytest.mark.parametrize("overload", ["hypot", "nextafter", "logaddexp", "logaddexp2"])
def test_two_floats(overload: str) -> None:
    for dtype in FLOATS:
        agree(f"aten::{overload}", sample(dtype), sample(dtype, seed=1).roll(7))


def test_integers_bits_and_divisors() -> None:
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        x, y = sample(dtype, -100, 100), sample(dtype, -100, 100, seed=1)
        info = torch.iinfo(dtype)
        x[:2], y[:2] = torch.tensor([info.max, info.max - 1]), torch.tensor([info.max // 2, info.max])
        for overload in ("gcd", "lcm", "bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor"):
            agree(f"aten::{overload}", x, y)
        for overload in ("bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor", "__lshift__.Tensor"):
            agree(f"aten::{overload}", x, sample(dtype, -2, 70, seed=2))
        agree("aten::bitwise_not", x)
        for op in ("bitwise_left_shift", "bitwise_right_shift"):
            agree(f"aten::{op}.Tensor_Scalar", x, 2)
            agree(f"aten::{op}.Scalar_Tensor", 5, sample(dtype, 0, 3))
        for op in ("and", "or", "xor"):
            agree(f"aten::bitwise_{op}.Scalar", x, 5)
            agree(f"aten::bitwise_{op}.Scalar_Tensor", 5, x)
    agree("aten::bitwise_and.Tensor", sample(torch.bool), sample(torch.int8))
    # The longest run of Euclid's algorithm: neighbours in Fibonacci's sequence.
    agree("aten::gcd", torch.tensor([7540113804746346429]), torch.tensor([4660046610375530309]))


NUMBERED = [
    *("add.Scalar", "sub.Scalar", "rsub.Scalar", "mul.Scalar", "div.Scalar", "floor_divide.Scalar", "remainder.Scalar"),
    *("fmod.Scalar", "pow.Tensor_Scalar", "clamp_min", "clamp_max", "copysign.Scalar", "xlogy.Scalar_Other"),
    *("special_xlog1py.other_scalar", "eq.Scalar", "ne.Scalar", "lt.Scalar", "le.Scalar", "gt.Scalar", "ge.Scalar"),
]


@pytest.mark.parametrize("overload", NUMBERED)
def test_a_tensor_and_a_number(overload: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        for number in (2, 3, 0.5, 2.7):
            agree(f"aten::{overload}", sample(dtype), number)


def test_a_number_and_a_tensor() -> None:
    for dtype in (torch.float32, torch.float16, torch.int64):
        agree("aten::pow.Scalar", 2.5, sample(dtype))
        agree("aten::remainder.Scalar_Tensor", 7, sample(dtype, 1, 4).abs() + 1)
        agree("aten::xlogy.Scalar_Self", 1.5, sample(dtype))
        agree("aten::special_xlog1py.self_scalar", 1.5, sample(dtype))


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -0.5, -1, -2, 0, 1, 1.7])
def test_powers_that_need_no_logarithm(exponent: float) -> None:
    for dtype in FLOATS:
        agree("aten::pow.Tensor_Scalar", sample(dtype)[5:], exponent)


def test_halves_compare_with_the_rounded_number() -> None:
    """0.1 is not a bfloat16: PyTorch rounds it before it compares."""
    x = torch.tensor([0.1, 0.2], dtype=torch.bfloat16)
    assert interpret("aten::eq.Scalar", x, 0.1)[0].tolist() == [True, False]
    agree("aten::remainder.Scalar", x * 10, 0.1)


def test_type_promotion() -> None:
    i8, i64, half, single = (sample(t) for t in (torch.int8, torch.int64, torch.float16, torch.float32))
    zero_dim = torch.tensor(3.5, dtype=torch.float64)
    for pair in ((i8, i64), (i8, half[:24]), (half, single), (i8, zero_dim), (half, zero_dim), (zero_dim, i64)):
        agree("aten::add.Tensor", *pair)
        agree("aten::maximum", *pair)
        agree("aten::lt.Tensor", *pair)
    agree("aten::add.Tensor", i8, 2.5)  # wrapped numbers
    agree("aten::mul.Tensor", half, 3)
    agree("aten::div.Tensor", i8, 2)
    agree("aten::add.Tensor", sample(torch.bool), True)
    agree("aten::mul.Tensor", sample(torch.bool), 2)


@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
def test_division_modes(mode: str | None) -> None:
    for dtype in (*FLOATS, torch.int32, torch.uint8):
        x, y = sample(dtype, -40, 40), sample(dtype, 1, 7, seed=1)
        agree("aten::div.Tensor_mode", x, y, mode)
        agree("aten::div.Scalar_mode", x, 3, mode)


def test_three_operands() -> None:
    for dtype in (*FLOATS, torch.int32):
        x, y, z = (sample(dtype, seed=seed).roll(seed) for seed in range(3))
        for value in (1, 2):
            agree("aten::addcmul", x, y, z, value)
        agree("aten::clamp", x, -1, 2)
        agree("aten::clamp", x, None, 1.5)
        agree("aten::clamp.Tensor", x, y, z)
        agree("aten::clamp.Tensor", x, None, z)
        agree("aten::where.self", sample(torch.bool).repeat(2)[: len(x)], x, y)
        agree("aten::masked_fill.Scalar", x, sample(torch.bool).repeat(2)[: len(x)], 3)
        agree("aten::masked_fill.Tensor", x, sample(torch.bool).repeat(2)[: len(x)], torch.tensor(3, dtype=dtype))
        if dtype.is_floating_point:
            agree("aten::addcdiv", x, y, z, 0.5)
            for weight in (0.3, 0.8):
                agree("aten::lerp.Scalar", x, y, weight)
            agree("aten::lerp.Tensor", x, y, sample(dtype, 0, 1).roll(3))
    agree("aten::where.self", sample(torch.bool), sample(torch.int8), sample(torch.float16)[:24])
    agree("aten::nan_to_num", sample(torch.float16), 1.5, 2.0, -2.0)
    agree("aten::ldexp.Tensor", sample(torch.float32)[:24], sample(torch.int32))


def test_decimals_gamma_and_zeta() -> None:
    for decimals in (0, 2, -1):
        agree("aten::round.decimals", sample(torch.float32, -400, 400), decimals)
    for n in range(4):
        agree("aten::polygamma", n, sample(torch.float64, -3.6, 9))
        agree("aten::polygamma", n, sample(torch.float32, 0.5, 9))
    agree("aten::special_zeta", sample(torch.float64, 1, 6), sample(torch.float64, 0, 9, seed=1))
    agree("aten::special_zeta", torch.full((4,), 3.0).double(), torch.tensor([-2.5, -100.3, -1.0, 0.0]).double())
    agree("aten::mvlgamma", sample(torch.float32, 2, 5)[12:], 3)
    for dtype in (torch.float64, torch.float32, torch.float16):
        agree("aten::frexp.Tensor", torch.cat([sample(dtype), torch.tensor([1e-40, 1e-310, 3e4]).to(dtype)]))
    agree("aten::logit", sample(torch.float32, 0, 1), 0.1)
    for eps in (None, 0.1):
        agree("aten::logit_backward", sample(torch.float32, seed=1)[12:], sample(torch.float32, 0, 1)[12:], eps)


ACTIVATIONS: list[tuple[str, tuple[Any, ...]]] = [
    ("threshold", (0.5, 2.0)),
    ("hardtanh", (-1.0, 2.0)),
    ("leaky_relu", (0.1,)),
    ("hardshrink", (0.5,)),
    ("softshrink", (0.5,)),
    ("elu", (1.0, 1.0, 1.0)),
    ("elu", (1.5, 1.2, 0.7)),
    ("celu", (1.3,)),
    ("softplus", (1.0, 20.0)),
    ("softplus", (2.0, 5.0)),
    ("gelu", ("none",)),
    ("gelu", ("tanh",)),
]
GRADIENTS: list[tuple[str, tuple[Any, ...]]] = [
    *((name, ()) for name in ("sigmoid_backward", "tanh_backward", "silu_backward", "mish_backward")),
    *((name, ()) for name in ("hardsigmoid_backward", "hardswish_backward")),
    ("threshold_backward", (0.5,)),
    ("hardtanh_backward", (-1.0, 2.0)),
    ("leaky_relu_backward", (0.1, False)),
    ("hardshrink_backward", (0.5,)),
    ("softshrink_backward", (0.5,)),
    ("softplus_backward", (2.0, 5.0)),
    ("gelu_backward", ("none",)),
    ("gelu_backward", ("tanh",)),
]


@pytest.mark.parametrize(("name", "rest"), ACTIVATIONS)
def test_activations(name: str, rest: tuple[Any, ...]) -> None:
    for dtype in FLOATS:
        x = sample(dtype, -8, 8)
        agree(f"aten::{name}", x[3:] if name == "gelu" else x, *rest)  # the CPU's gelu(inf) depends on its vectors
    if name in ("threshold", "hardtanh"):
        agree(f"aten::{name}", sample(torch.int64, -8, 8), *rest)


@pytest.mark.parametrize(("name", "rest"), GRADIENTS)
def test_gradients_of_activations(name: str, rest: tuple[Any, ...]) -> None:
    # The CPU has 1/6 of float32 in its float64 hardsigmoid_backward.
    for dtype in (d for d in FLOATS if name != "hardsigmoid_backward" or d != torch.float64):
        x = sample(dtype, -8, 8, seed=1)[3:]
        agree(f"aten::{name}", sample(dtype)[12:].repeat(2)[: len(x)], x, *rest)


def test_gradients_with_their_own_arguments() -> None:
    for dtype in FLOATS:
        g, x = sample(dtype)[12:], sample(dtype, -8, 8, seed=1)[12:]
        for is_result in (False, True):
            y = torch.nn.functional.elu(x, 1.5) if is_result else x
            agree("aten::elu_backward", g, 1.5, 1.0, 1.0, is_result, y)
        agree("aten::log_sigmoid_backward", g, x, (-x.abs()).exp())
        agree("aten::_prelu_kernel", x, torch.tensor([0.25], dtype=dtype))
        agree("aten::_prelu_kernel_backward", g, x, torch.tensor([0.25], dtype=dtype))
        for training in (False, True):
            agree("aten::rrelu_with_noise_backward", g, x, sample(dtype, 0, 1, seed=2)[12:], 0.1, 0.3, training, False)
        agree("aten::native_dropout_backward", g, x > 0, 1.25)
        table = sample(dtype)[12:].reshape(4, 6)
        for dim in (0, -1):
            agree("aten::glu", table, dim)
            agree("aten::glu_backward", torch.ops.aten.glu(table, dim) * 2, table, dim)


def test_layouts() -> None:
    x = torch.randn(4, 6, 5, 3)
    for view in (x, x.permute(3, 1, 0, 2), x[:, ::2, 1:4], x.to(memory_format=torch.channels_last), x[0, 0, 0, 0]):
        check("aten::exp", view)
        check("aten::mul.Tensor", view, view)
        check("aten::add.Tensor", view, torch.randn(view.shape[-1:]))
        check("aten::where.self", view > 0, view, torch.tensor(2.0))
    for empty in (torch.randn(0), torch.randn(3, 0, 2)):
        check("aten::exp", empty)
        check("aten::add.Tensor", empty, torch.randn(1))
    check("aten::add.Tensor", torch.randn(3, 1), torch.randn(1, 4))
    check("aten::add.Tensor", torch.randn(4).expand(3, 4), torch.randn(3, 1))


def test_a_type_that_the_op_does_not_take_has_no_kernel() -> None:
    truth = [torch.empty(2, dtype=torch.bool)]
    for overload in ("aten::abs", "aten::floor", "aten::relu", "aten::neg"):
        with pytest.raises(NoKernel):
            interpret(overload, torch.tensor([True, False]), outputs=truth)
