"""Integer inference: the NumPy reference is exact; lowerings, compiled C and the ops in torch's words give its bits."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bringup.graph.quantize.ops  # noqa: F401  defines the ops
from bringup.ir.dtypes import Array
from bringup.lowering.call import NoKernel
from bringup.lowering.ops import quantized_reference as reference
from bringup.targets.c.target import CTarget
from tests.unit.lowering.interpreted import interpret
from tests.unit.targets.c_contract_cases import HOST, assert_same_bits, within

INT32 = st.integers(-(2**31), 2**31 - 1)


# ---- the reference against exact numbers ----
@given(st.floats(2.0**-60, 2.0**29))
def test_a_factor_has_31_bits(real: float) -> None:
    multiplier, shift = reference.multiplier_and_shift(real)
    if real < 2.0**-33:
        assert multiplier * 2**31 * 2 <= 2**shift  # every int32 becomes 0
        return
    assert 2**30 <= multiplier < 2**31
    assert 1 <= shift <= 63
    error = abs(Fraction(multiplier, 2**shift) - Fraction(real))
    assert error <= Fraction(real) / 2**31


@pytest.mark.parametrize(
    ("real", "pair"),
    [
        (0.0, (0, 1)),
        (-1.0, (0, 1)),
        (math.nan, (0, 1)),
        (5e-324, (0, 1)),
        (1.0, (2**30, 30)),
        (1.0 - 2.0**-53, (2**30, 30)),  # rounds up to 1
        (0.5 + 2.0**-32, (2**30 + 1, 31)),  # halves up
        (2.0**30 - 1, (2**31 - 2, 1)),
        (2.0**30, (2**31 - 1, 1)),
        (math.inf, (2**31 - 1, 1)),
    ],
)
def test_factors_at_the_edges(real: float, pair: tuple[int, int]) -> None:
    assert reference.multiplier_and_shift(real) == pair


@given(INT32, st.floats(2.0**-40, 2.0**29), st.integers(-128, 127))
def test_requantize_rounds_the_exact_product_with_halves_up(total: int, real: float, zero: int) -> None:
    multiplier, shift = reference.multiplier_and_shift(real)
    exact = math.floor(Fraction(total * multiplier, 2**shift) + Fraction(1, 2)) + zero
    assert reference.requantize(total, multiplier, shift, zero, -128, 127) == max(-128, min(127, exact))


@given(st.integers(-127, 127), st.integers(-127, 127), st.floats(1e-6, 1e3), st.floats(1e-6, 1e3))
def test_a_sum_is_within_half_a_step_of_the_real_one(a: int, b: int, a_scale: float, b_scale: float) -> None:
    y_scale = max(a_scale, b_scale) * 3
    factors = reference.add_factors(a_scale, b_scale, y_scale)
    found = reference.add(np.int8([a]), np.int8([b]), 3, -5, *factors, 7, -128, 127)
    exact = ((a - 3) * a_scale + (b + 5) * b_scale) / y_scale + 7
    assert abs(int(found[0]) - exact) <= 0.5 + 1e-6 or int(found[0]) in (-128, 127)


# ---- lowerings (in NumPy) and torch's ops against the reference ----
def both(name: str, *arguments: Any) -> list[list[torch.Tensor]]:
    """What the lowering gives, and what the op gives in torch's own ops."""
    in_torch = getattr(torch.ops.bringup, name)(*arguments)
    found = [in_torch] if isinstance(in_torch, torch.Tensor) else list(in_torch)
    return [interpret(f"bringup::{name}", *arguments), found]


def integers(*shape: int, dtype: torch.dtype = torch.int8, seed: int = 0) -> torch.Tensor:
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max + 1, shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def layer(weight: torch.Tensor, x_zero: int, seed: int = 0, bias: bool = True) -> tuple[torch.Tensor, ...]:
    """(bias, multipliers, shifts) for a weight, from the reference."""
    rng = np.random.default_rng(seed)
    channels = weight.shape[0]
    scales = rng.uniform(1e-3, 1e-2, channels).astype(np.float32)
    start = reference.integer_bias(
        weight.numpy(), rng.normal(size=channels).astype(np.float32) if bias else None, scales, 0.02, x_zero
    )
    return tuple(torch.from_numpy(part) for part in (start, *reference.factors(scales, 0.02, 0.05)))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 40, 7), (5, 3, 33), (9, 64, 1)])
def test_linear(rows: int, depth: int, columns: int, dtype: torch.dtype) -> None:
    x, weight = integers(rows, depth, dtype=dtype), integers(columns, depth, seed=1)
    vectors = layer(weight, -4)
    info = torch.iinfo(dtype)
    result = (3 if dtype is torch.int8 else 120, info.min, info.max)
    expected = reference.linear(x.numpy(), weight.numpy(), *(v.numpy() for v in vectors), *result)
    assert expected.min() < expected.max() or expected.size == 1
    for (found,) in both("quantized_linear", x, weight, *vectors, *result, dtype):
        assert found.dtype is dtype
        np.testing.assert_array_equal(found.numpy(), expected)


GEOMETRIES = [
    ((2, 3, 9, 7), (4, 3, 3, 2), (1, 1), (0, 0), (1, 1), 1),
    ((1, 1, 11, 10), (5, 1, 10, 4), (2, 2), (5, 1), (1, 1), 1),
    ((2, 6, 8, 8), (6, 1, 3, 3), (1, 2), (1, 1), (1, 1), 6),
    ((1, 4, 9, 9), (6, 2, 3, 3), (1, 1), (2, 2), (2, 2), 2),
    ((2, 3, 12), (4, 3, 5), (3,), (2,), (1,), 1),
    ((1, 8, 4, 4), (3, 8, 1, 1), (1, 1), (0, 0), (1, 1), 1),
]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize(("shape", "filters", "stride", "padding", "dilation", "groups"), GEOMETRIES)
def test_convolution(
    shape: Any, filters: Any, stride: Any, padding: Any, dilation: Any, groups: int, dtype: torch.dtype, last: bool
) -> None:
    x, weight = integers(*shape, dtype=dtype), integers(*filters, seed=1)
    if last and len(shape) == 4:
        x = x.to(memory_format=torch.channels_last)
    x_zero = 17 if dtype is torch.int8 else 140
    vectors = layer(weight, x_zero if dtype is torch.int8 else x_zero - 128)
    result = (-9, -100, 100)
    window = [list(part) for part in (stride, padding, dilation)]
    given_arrays = (x.numpy(), weight.numpy(), *(v.numpy() for v in vectors))
    expected = reference.convolution(*given_arrays, x_zero, *result, *window, groups)
    assert expected.min() < expected.max()
    for (found,) in both("quantized_convolution", x, weight, *vectors, x_zero, *result, torch.int8, *window, groups):
        np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("scale_type", [torch.float32, torch.float64])
def test_what_follows_from_weights(scale_type: torch.dtype) -> None:
    weight = integers(70, 3, 2, 2)
    generator = torch.Generator().manual_seed(2)
    scales = torch.rand(70, generator=generator, dtype=scale_type) * 1e-2
    scales[:4] = torch.tensor([0.0, 1e-30, 1e30, 2.0**-40], dtype=scale_type)
    bias = torch.randn(70, generator=generator)
    bias[2:4] = torch.tensor([1e30, -1e30])
    for given_bias in (bias, None):
        numbers = None if given_bias is None else given_bias.numpy()
        with np.errstate(divide="ignore"):
            expected = reference.integer_bias(weight.numpy(), numbers, scales.double().numpy(), 0.1, -7)
        for (found,) in both("quantized_bias", weight, given_bias, scales, 0.1, -7):
            np.testing.assert_array_equal(found.numpy(), expected, strict=True)
    expected_pair = reference.factors(scales.double().numpy(), 0.1, 3e-3)
    for found in both("quantized_factors", scales, 0.1, 3e-3):
        for one, other in zip(found, expected_pair, strict=True):
            np.testing.assert_array_equal(one.numpy(), other, strict=True)


def test_factors_of_every_size() -> None:
    exact = [m * 2.0**e for e in range(-70, 40) for m in (1.0, 1.25, 2 - 2.0**-52, 1 + 2.0**-30, 1 + 2.0**-31)]
    scales = torch.tensor([*exact, math.inf, math.nan, -1.0], dtype=torch.float64)
    expected = reference.factors(scales.numpy(), 1.0, 1.0)
    for found in both("quantized_factors", scales, 1.0, 1.0):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.numpy(), other, strict=True)


def test_sums_and_requantize() -> None:
    a, b = integers(5, 40), integers(1, 40, dtype=torch.uint8)
    numbers = (3, 130, *reference.add_factors(0.02, 0.7, 0.3), -5, -128, 127)
    expected = reference.add(a.numpy(), b.numpy(), *numbers)
    for (found,) in both("quantized_add", a, b, *numbers, torch.int8):
        np.testing.assert_array_equal(found.numpy(), expected)
    total = integers(300, dtype=torch.int32) // 1000
    scaled = (-1234, *reference.multiplier_and_shift(1e-4), 7, 0, 255)
    expected = reference.requantize(total.numpy().astype(np.int64) - 1234, *scaled[1:])
    for (found,) in both("requantize", total, *scaled, torch.uint8):
        np.testing.assert_array_equal(found.numpy(), expected)


def test_other_types_are_refused() -> None:
    x, weight = integers(2, 4, dtype=torch.int16), integers(3, 4)
    vectors = layer(weight, 0)
    with pytest.raises(TypeError, match=r"int8 and uint8, not torch\.int16"):
        torch.ops.bringup.quantized_linear(x, weight, *vectors, 0, -128, 127, torch.int8)
    with pytest.raises(NoKernel, match="int8 and uint8, not int16"):
        interpret("bringup::quantized_linear", x, weight, *vectors, 0, -128, 127, torch.int8)


# ---- compiled C against the interpreter: sums of 8-bit products in int32, packed ----
X86 = HOST.isa.startswith("x86-64-v")
TARGETS = [
    HOST,
    *(CTarget(vector_bytes=size, isa="x86-64-v3" if X86 else HOST.isa) for size in ((32, 16, 0) if X86 else (0,))),
]
EPILOGUE = (
    "int8(min(max((shr(((int64((acc + c[{n}])) * int64(m[{n}])) + shl(int64(1), (int64(s[{n}]) - int64(1)))), "
    "int64(s[{n}])) + int64(-3)), int64(-128)), int64(127)))"
)


def eight_bits(*shape: int, dtype: Any = np.int8, seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape, dtype)


def per_channel(count: int) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    return {
        "c": rng.integers(-(2**20), 2**20, count, dtype=np.int32),
        "m": rng.integers(2**30, 2**31, count, dtype=np.int64).astype(np.int32),
        "s": rng.integers(36, 44, count, dtype=np.int32),
    }


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("lanes", [1, 32])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_packed_matrix_products(target: CTarget, lanes: int, dtype: str) -> None:
    text = f"""kernel product size rows size n size k
      in a: {dtype}[rows, k] strides [k, 1] in b: {dtype}[n, k] strides [k, 1]
      in c: int32[n] strides [1] in m: int32[n] strides [1] in s: int32[n] strides [1]
      out y: int8[rows, n] strides [n, 1]
      grid i < rows, j < n
      {{ contract acc over p < k lanes {lanes} = a[i, p] by b[j, p]
        store y[i, j] = {EPILOGUE.format(n="j")} }}"""
    for rows, k, n in [(1, 40, 5), (3, 9, 33), (14, 800, 40), (2, 0, 3)]:
        kind = np.dtype(dtype)
        arrays = {"a": eight_bits(rows, k, dtype=kind), "b": eight_bits(n, k, dtype=kind, seed=1)}
        arrays |= per_channel(n) | {"y": np.zeros((rows, n), np.int8)}
        assert_same_bits(text, arrays, target=target, parts=2)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_packed_convolutions_with_a_zero_point_at_the_edge(target: CTarget, last: bool) -> None:
    h, w = "2*u + r - 1", "v + q - 2"
    image, result = ("[ci*h*w, h*w, w, 1]", "[co*oh*ow, oh*ow, ow, 1]")
    if last:
        image, result = ("[ci*h*w, 1, w*ci, ci]", "[co*oh*ow, 1, ow*co, co]")
    text = f"""kernel conv {" ".join(f"size {name}" for name in "nb ci h w co oh ow kh kw".split())}
      in x: int8[nb, ci, h, w] strides {image} in f: int8[co, ci, kh, kw] strides [ci*kh*kw, kh*kw, kw, 1]
      in c: int32[co] strides [1] in m: int32[co] strides [1] in s: int32[co] strides [1]
      out y: int8[nb, co, oh, ow] strides {result}
      grid b < nb, o < co, u < oh, v < ow
      {{ contract acc over e < ci, r < kh, q < kw lanes 1 = f[o, e, r, q]
          by (x[b, e, {h}, {w}] if ({within(h, "h")} & {within(w, "w")}) else int8(-77))
        store y[b, o, u, v] = {EPILOGUE.format(n="o")} }}"""
    size = {"nb": 2, "ci": 3, "h": 9, "w": 11, "co": 6, "kh": 3, "kw": 4}
    size |= {"oh": (size["h"] + 2 - size["kh"]) // 2 + 1, "ow": size["w"] + 4 - size["kw"] + 1}
    shapes = {"x": ("nb", "ci", "h", "w"), "f": ("co", "ci", "kh", "kw"), "y": ("nb", "co", "oh", "ow")}
    arrays = {name: eight_bits(*(size[d] for d in dims), seed=n) for n, (name, dims) in enumerate(shapes.items())}
    if last:
        for name in "xy":
            arrays[name] = np.ascontiguousarray(arrays[name].transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert_same_bits(text, arrays | per_channel(size["co"]), size, target=target, parts=3)
