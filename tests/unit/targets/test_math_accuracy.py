"""How many ulps each function of the math prelude is off, measured; the same bits in every form and on every CPU."""

from __future__ import annotations

import ctypes
import itertools
import platform
import subprocess

import numpy as np
import pytest

from bringup.ir import functions as reference
from bringup.ir.dtypes import float64
from bringup.targets.c.target import CTarget
from bringup.targets.toolchain import host_target
from tests.unit.targets.math_loops import Loops, same_bits

#: The largest error that was seen, rounded up; ops.py permits 2 (erfinv, lgamma, digamma: 4).
ULPS = {
    "exp": (0.9, 1.1), "exp2": (0.95, 1.0), "expm1": (1.6, 1.1), "log": (0.9, 0.9), "log1p": (0.9, 0.6),
    "log2": (1.7, 0.6), "log10": (1.1, 0.6), "sin": (1.6, 0.9), "cos": (1.6, 0.9), "tan": (1.5, 1.3),
    "asin": (1.6, 1.7), "acos": (1.2, 1.2), "atan": (1.9, 1.6), "sinh": (1.7, 1.8), "cosh": (1.4, 1.5),
    "tanh": (1.5, 0.8), "asinh": (0.51, 0.6), "acosh": (0.51, 0.6), "atanh": (0.51, 0.6), "erf": (1.8, 1.1),
    "erfc": (0.51, 1.9), "erfinv": (0.51, 3.0), "lgamma": (0.51, 4.0), "digamma": (0.51, 4.0),
    "pow": (0.51, 0.8), "atan2": (1.8, 1.8), "hypot": (0.51, 1.3),
}  # fmt: skip
BINARY = ("pow", "atan2", "hypot")
SLOW = ("erf", "erfc", "erfinv", "lgamma", "digamma")  # the reference is a Python loop
SPECIAL = [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, -2, 0.5, -0.5, 3, -3, 1e-300, 1e300, 5e-324, 1e-40, 2.5]
ENTRIES = [(op, t, (t,) * (1 + (op in BINARY)), t) for op in ULPS for t in ("f32", "f64")]
BITS = {"f32": (np.float32, np.uint32, 23, -126), "f64": (np.float64, np.uint64, 52, -1022)}


def targets() -> list[CTarget]:
    if platform.machine() != "x86_64":
        return [host_target()]
    return [host_target(), CTarget(vector_bytes=32, isa="x86-64-v3"), CTarget(vector_bytes=16, fma=False, isa="x86-64")]


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> list[Loops]:
    folder = tmp_path_factory.mktemp("math")
    return [Loops(ENTRIES, target, max(target.vector_bytes, 16) // 4, folder) for target in targets()]


@pytest.fixture(scope="module")
def long_double(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The C library's functions in long double, for arrays of double."""
    if np.finfo(np.longdouble).nmant < 63:
        pytest.skip("long double is no wider than double here")
    path = tmp_path_factory.mktemp("reference") / "reference.c"
    loop = "long double *y, long n) {{ for (long i = 0; i < n; i++) y[i] = {0}l("
    one = "void {0}(const double *x, " + loop + "x[i]); }}\n"
    two = "void {0}(const double *x, const double *z, " + loop + "x[i], z[i]); }}\n"
    names = [op for op in ULPS if op not in ("erfinv", "digamma")]
    text = "".join((two if op in BINARY else one).format(op) for op in names)
    path.write_text("#include <math.h>\n" + text.replace("void ", "void r_"))
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", f"{path}.so", str(path), "-lm"], check=True)
    return ctypes.CDLL(f"{path}.so")


def points(dtype: str, count: int, seed: int) -> np.ndarray:
    """Every exponent, both signs, the usual ranges, and the special values."""
    number, bits, _, _ = BITS[dtype]
    random = np.random.default_rng(seed)
    anything = random.integers(0, 2 ** (8 * number().itemsize), count, dtype=np.uint64).astype(bits).view(number)
    usual = np.ldexp(random.uniform(1, 2, count) * random.choice([-1, 1], count), random.integers(-30, 30, count))
    near = [random.uniform(-a, a, count) for a in (1, 10, 100, 750)] + [1 + random.uniform(-1e-3, 1e-3, count)]
    with np.errstate(over="ignore"):
        return np.concatenate([anything, *(part.astype(number) for part in (usual, *near, np.array(SPECIAL)))])


def ulps(got: np.ndarray, exact: np.ndarray, dtype: str) -> np.ndarray:
    """The error in units of the last place of the exact value, which has more digits; wrong NaN, inf, sign: inf."""
    number, _, digits, smallest = BITS[dtype]
    rounded = exact.astype(number)
    exponent = np.maximum(np.frexp(exact)[1] - 1, smallest)
    error = np.abs(got.astype(exact.dtype) - exact) / np.ldexp(exact.dtype.type(1), exponent - digits)
    error = np.where(np.isfinite(rounded) & np.isfinite(got), error, np.where(same_bits(got, rounded), 0, np.inf))
    largest = np.isinf(got) & (np.abs(exact) > 0.9999999 * np.finfo(number).max) & np.isfinite(rounded)
    error = np.where(largest, 1, error)
    return np.where((got == 0) & (rounded == 0) & (np.signbit(got) != np.signbit(rounded)), np.inf, error)


def absolute_near_roots(
    op: str, error: np.ndarray, got: np.ndarray, exact: np.ndarray, x: np.ndarray, one: float
) -> np.ndarray:
    """lgamma and digamma: below 1 in ulps of 1; for negative x in ulps of what reflection subtracts."""
    if op not in ("lgamma", "digamma"):
        return error
    size = np.ones(len(x))
    if op == "lgamma":
        below = np.isfinite(x) & (x < 0) & (np.abs(x) < 1e300)
        size[below] = np.maximum(1, np.abs(reference.function("lgamma", -x[below].astype(np.float64), float64)))
    small = np.isfinite(exact) & np.isfinite(got) & (np.abs(exact) < size)
    return np.where(small, np.abs(got - exact).astype(np.float64) / (one * size), error)


def worst(op: str, error: np.ndarray, *inputs: np.ndarray) -> float:
    at = int(np.argmax(error))
    print(f"{op}: {error[at]:.3f} ulp at {[repr(x[at]) for x in inputs]}")
    return float(error[at])


@pytest.mark.parametrize("op", [op for op in ULPS if op not in BINARY])
def test_float32(op: str, loops: list[Loops]) -> None:
    x = points("f32", {"erfinv": 2000, "digamma": 3000}.get(op, 20000 if op in SLOW else 150000), seed=1)
    with np.errstate(all="ignore"):
        exact = reference.function(op, x.astype(np.float64), float64)
        got = loops[0]("vector", op, "f32", x)
        error = absolute_near_roots(op, ulps(got, exact, "f32"), got, exact, x, 2.0**-23)
        assert worst(op, error, x) <= ULPS[op][0]


@pytest.mark.parametrize("op", [op for op in ULPS if op not in (*BINARY, "erfinv", "digamma")])
def test_float64(op: str, loops: list[Loops], long_double: ctypes.CDLL) -> None:
    x = points("f64", 3000 if op == "lgamma" else 20000, seed=2)
    exact = np.empty(len(x), np.longdouble)
    getattr(long_double, f"r_{op}")(*(ctypes.c_void_p(a.ctypes.data) for a in (x, exact)), ctypes.c_long(len(x)))
    with np.errstate(all="ignore"):
        got = loops[0]("vector", op, "f64", x)
        error = absolute_near_roots(op, ulps(got, exact, "f64"), got, exact, x, 2.0**-52)
        assert worst(op, error, x) <= ULPS[op][1]


@pytest.mark.parametrize("op", ["erfinv", "digamma"])
def test_float64_by_mpmath(op: str, loops: list[Loops]) -> None:
    mpmath = pytest.importorskip("mpmath")
    random = np.random.default_rng(3)
    x = np.concatenate([random.uniform(-1, 1, 300), 1 - 2.0 ** -random.uniform(1, 53, 100)])
    if op == "digamma":
        x = np.concatenate([x, random.uniform(-9, 30, 300), 10.0 ** random.uniform(-10, 10, 100)])
    exact = np.empty(len(x), np.longdouble)
    with mpmath.workdps(40):
        for i, value in enumerate(x):
            y = getattr(mpmath, op)(mpmath.mpf(float(value)))
            exact[i] = np.longdouble(float(y)) + np.longdouble(float(y - mpmath.mpf(float(y))))
    got = loops[0]("vector", op, "f64", x)
    error = absolute_near_roots(op, ulps(got, exact, "f64"), got, exact, x, 2.0**-52)
    assert worst(op, error, x) <= ULPS[op][1]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("op", BINARY)
def test_two_arguments(op: str, dtype: str, loops: list[Loops], long_double: ctypes.CDLL) -> None:
    count = 20000
    pairs = np.array(list(itertools.product(SPECIAL, SPECIAL)))
    random = np.random.default_rng(4)
    more = [(random.uniform(0, 10, count), random.uniform(-100, 100, count))]
    more += [(np.exp(random.uniform(-3, 3, count)), random.uniform(-200, 200, count))]
    more += [(random.integers(-50, 50, count), random.integers(-20, 20, count)), (pairs[:, 0], pairs[:, 1])]
    number = BITS[dtype][0]
    with np.errstate(all="ignore"):
        a = np.concatenate([points(dtype, count, 5), *(part[0].astype(number) for part in more)])
        b = np.concatenate([points(dtype, count, 6), *(part[1].astype(number) for part in more)])
        wide = [v.astype(np.float64) for v in (a, b)]
        exact = np.empty(len(a), np.longdouble)
        addresses = (ctypes.c_void_p(v.ctypes.data) for v in (*wide, exact))
        getattr(long_double, f"r_{op}")(*addresses, ctypes.c_long(len(a)))
        got = loops[0]("vector", op, dtype, a, b)
        assert worst(op, ulps(got, exact, dtype), a, b) <= ULPS[op][dtype == "f64"]


@pytest.mark.parametrize(("op", "dtype"), [(op, dtype) for op, dtype, _, _ in ENTRIES])
def test_same_bits_in_every_form(op: str, dtype: str, loops: list[Loops]) -> None:
    inputs = [points(dtype, 1500, seed) for seed in ((7, 8) if op in BINARY else (7,))]
    expected = loops[0]("vector", op, dtype, *inputs)
    for library, form in itertools.product(loops, ("vector", "scalar")):
        differs = ~same_bits(library(form, op, dtype, *inputs), expected)
        assert not differs.any(), [x[differs][:3] for x in inputs]
