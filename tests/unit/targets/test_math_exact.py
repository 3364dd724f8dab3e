"""What the math prelude must get exactly right: rounding, remainders, fma, neighbours, halves, casts, masks."""

from __future__ import annotations

import itertools
import platform

import numpy as np
import pytest

from bringup.ir import arithmetic, dtypes
from bringup.ir.fused_multiply_add import fma
from bringup.targets.c.math_library import functions, typedefs
from bringup.targets.c.math_template import SCALARS
from bringup.targets.c.target import CTarget
from bringup.targets.toolchain import host_target
from tests.unit.targets.math_loops import NUMPY, Entry, Loops, same_bits

DTYPES = {"f32": dtypes.float32, "f64": dtypes.float64, "f16": dtypes.float16, "bf16": dtypes.bfloat16}
INTEGERS = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]
DTYPES |= {name: getattr(dtypes, SCALARS[name][:-2]) for name in INTEGERS}
FLOATS = ("f32", "f64")
UNARY = ["floor", "ceil", "trunc", "round", "sqrt", "abs", "sign", "rsqrt", "reciprocal"]
TESTS = ["isnan", "isinf", "isfinite", "signbit"]
BINARY = ["fmod", "remainder", "floordiv", "nextafter", "copysign", "min", "max"]
SPECIAL = [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, 2.5, -2.5, 3, 7, 5e-324, 1e-40, 1e300, 6.1e-5]
SPECIAL += [2.0**k for k in (7, 8, 15, 16, 22, 23, 24, 31, 32, 52, 53, 62, 63, 64)]
SPECIAL += [-(2.0**31), -(2.0**63), 65504, 65520]
ENTRIES: list[Entry] = [(op, t, (t,), t) for op in UNARY for t in FLOATS]
ENTRIES += [(op, t, (t,), t.replace("f", "i")) for op in TESTS for t in FLOATS]
ENTRIES += [(op, t, (t, t), t) for op in BINARY for t in FLOATS] + [("fma", t, (t, t, t), t) for t in FLOATS]
ENTRIES += [("nextafter", t, ("f32", "f32"), "f32") for t in ("f16", "bf16")]
ENTRIES += [("narrow", t, ("f32",), "f32") for t in ("f16", "bf16")]
ENTRIES += [(f"from_{t}", "f32", ("u16",), "f32") for t in ("f16", "bf16")]
ENTRIES += [("from_f32", t, ("f32",), "u16") for t in ("f16", "bf16")]
CASTS = [(a, b) for a, b in itertools.product([*FLOATS, *INTEGERS], repeat=2) if a != b and "f" in a[0] + b[0]]
ENTRIES += [(f"from_{source}", target, (source,), target) for source, target in CASTS]


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> list[Loops]:
    targets = [host_target()]
    if platform.machine() == "x86_64":
        targets += [CTarget(vector_bytes=32, isa="x86-64-v3"), CTarget(vector_bytes=16, fma=False, isa="x86-64")]
    folder = tmp_path_factory.mktemp("math")
    return [Loops(ENTRIES, target, max(target.vector_bytes, 16) // 4, folder) for target in targets]


def values(dtype: str, count: int, seed: int) -> np.ndarray:
    number = NUMPY[dtype]
    random = np.random.default_rng(seed)
    size = 8 * np.dtype(number).itemsize
    anything = random.integers(0, 2**size, count, dtype=np.uint64).astype(f"u{size // 8}").view(number)
    if dtype not in FLOATS:
        return anything
    with np.errstate(over="ignore"):
        return np.concatenate([anything, (random.uniform(-300, 300, count)).astype(number), np.array(SPECIAL, number)])


def check(loops: list[Loops], op: str, dtype: str, expected: np.ndarray, *inputs: np.ndarray) -> None:
    for library, form in itertools.product(loops, ("vector", "scalar")):
        got = library(form, op, dtype, *inputs)
        wrong = ~same_bits(got, expected)
        assert not wrong.any(), (form, [x[wrong][:3] for x in inputs], got[wrong][:3], expected[wrong][:3])


def pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    special = np.array(list(itertools.product(SPECIAL, repeat=2)))
    with np.errstate(over="ignore"):
        a = np.concatenate([values(dtype, 3000, 1), special[:, 0].astype(NUMPY[dtype])])
        b = np.concatenate([values(dtype, 3000, 2), special[:, 1].astype(NUMPY[dtype])])
    return a, b


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", UNARY)
def test_one_argument(op: str, dtype: str, loops: list[Loops]) -> None:
    x = values(dtype, 5000, 0)
    with np.errstate(all="ignore"):
        check(loops, op, dtype, arithmetic.unary(op, x, DTYPES[dtype]), x)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", TESTS)
def test_masks(op: str, dtype: str, loops: list[Loops]) -> None:
    x = values(dtype, 1000, 0)
    expected = arithmetic.unary(op, x, DTYPES[dtype]).astype(NUMPY[dtype.replace("f", "i")])
    for library in loops:
        assert np.array_equal(library("vector", op, dtype, x), -expected)
        assert np.array_equal(library("scalar", op, dtype, x), expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", BINARY)
def test_two_arguments(op: str, dtype: str, loops: list[Loops]) -> None:
    a, b = pairs(dtype)
    with np.errstate(all="ignore"):
        check(loops, op, dtype, arithmetic.binary(op, a, b, DTYPES[dtype]), a, b)


@pytest.mark.parametrize("dtype", FLOATS)
def test_fma(dtype: str, loops: list[Loops]) -> None:
    a, b = pairs(dtype)
    random = np.random.default_rng(3)
    with np.errstate(all="ignore"):
        near = -(a * b) * (1 + random.integers(-2, 3, len(a)) * np.finfo(NUMPY[dtype]).eps).astype(NUMPY[dtype])
        near = np.where(np.isinf(near), np.zeros_like(near), near)  # the reference gives NaN for 1e200 · 1e200 - inf
        for c in (values(dtype, len(a), 4)[: len(a)], near, np.zeros_like(a), np.roll(a, 7)):
            check(loops, "fma", dtype, fma(a, b, c, DTYPES[dtype]), a, b, c)


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_half_types(half: str, loops: list[Loops]) -> None:
    dtype, every = DTYPES[half], np.arange(65536, dtype=np.uint16)
    with np.errstate(all="ignore"):
        as_float = every.view(np.float16).astype(np.float32) if half == "f16" else dtypes.bfloat16_values(every)
        check(loops, f"from_{half}", "f32", as_float, every)
        steps = np.uint32([0, 1, 0xFFF, 0x1000, 0x7FFF, 0x8000])
        between = as_float.view(np.uint32)[:, None] + steps
        x = np.concatenate([between.ravel().view(np.float32), values("f32", 5000, 5)])
        rounded = dtypes.round_values(x, dtype)
        check(loops, "narrow", half, rounded, x)
        for library, form in itertools.product(loops, ("vector", "scalar")):
            bits = library(form, "from_f32", half, x)
            assert same_bits(library(form, f"from_{half}", "f32", bits), rounded).all()
        a, b = as_float, np.random.default_rng(6).permutation(as_float)
        for towards in (b, a, -a, np.full_like(a, np.inf), np.zeros_like(a)):
            check(loops, "nextafter", half, arithmetic.binary("nextafter", a, towards, dtype), a, towards)


@pytest.mark.parametrize(("source", "target"), CASTS)
def test_casts(source: str, target: str, loops: list[Loops]) -> None:
    x = values(source, 3000, 7)
    if source in FLOATS:
        with np.errstate(all="ignore"):
            x = np.concatenate([x, (np.random.default_rng(8).normal(size=3000) * 2.0**32).astype(x.dtype), x * 2**20])
    with np.errstate(all="ignore"):
        check(loops, f"from_{source}", target, arithmetic.cast(x, DTYPES[source], DTYPES[target]), x)


def test_only_what_is_needed() -> None:
    target = CTarget(vector_bytes=64)
    text = functions({("exp", "f32", 16)}, target)
    assert text == functions({("exp", "f32", 16)}, target)
    assert "bu_log" not in text
    assert text.count("bu_fma_f32x16(f32x16") == 1
    assert "f32x16 __attribute__" in typedefs(text)


def test_an_unknown_function_is_named() -> None:
    with pytest.raises(KeyError, match="no gamma for f32"):
        functions({("gamma", "f32", 16)}, CTarget())
