"""The reference functions against mpmath, in ulps; and Philox against its C++ definition."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bringup.ir.dtypes import float16, float32, float64
from bringup.ir.functions import function, function_of_two
from bringup.ir.ops import BINARY, UNARY
from bringup.ir.philox import philox, philox_block

ROOT = Path(__file__).resolve().parents[3]
RANGES = {
    "log": (0, 50), "log2": (0, 50), "log10": (0, 50), "log1p": (-1, 50), "asin": (-1, 1), "acos": (-1, 1),
    "atanh": (-1, 1), "acosh": (1, 50), "erfinv": (-1, 1), "lgamma": (0.01, 50), "digamma": (0.01, 50),
    "erfc": (-3, 9),
}  # fmt: skip
FUNCTIONS = [name for name, op in UNARY.items() if op.transcendental]


def ulps(got, exact, dtype):
    spacing = np.spacing(np.maximum(np.abs(exact.astype(dtype.compute)), np.finfo(dtype.compute).tiny))
    return np.abs(got.astype(np.longdouble) - exact) / spacing.astype(np.longdouble)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_one(name):
    mpmath = pytest.importorskip("mpmath")
    special = {"lgamma": lambda v: mpmath.loggamma(v).real, "exp2": lambda v: mpmath.power(2, v)}
    special |= {"log2": lambda v: mpmath.log(v, 2), "gamma": mpmath.gamma}
    exact = special.get(name) or getattr(mpmath, name)
    low, high = RANGES.get(name, (-20, 20))
    with mpmath.workdps(40):
        for dtype, allowed in ((float32, 0.501), (float64, 10 if name == "lgamma" else 4)):
            x = np.random.default_rng(1).uniform(low, high, 60).astype(dtype.compute)
            expected = np.array([np.longdouble(mpmath.nstr(exact(mpmath.mpf(float(v))), 25)) for v in x])
            got = function(name, x, dtype)
            assert got.dtype == dtype.compute
            error = ulps(got, expected, dtype)
            if name in ("lgamma", "digamma"):
                error = np.where(np.abs(expected) < 1, error * np.abs(expected), error)  # ulps of 1 near the roots
            assert error.max() <= allowed


def test_special_values():
    inf, nan = np.inf, np.nan
    expected = {
        "lgamma": [(0.0, inf), (-1.0, inf), (-inf, inf), (inf, inf)],
        "digamma": [(0.0, -inf), (-0.0, inf), (-1.0, nan), (inf, inf), (-0.5, 0.03648997397857652)],
        "erfinv": [(1.0, inf), (-1.0, -inf), (2.0, nan), (0.0, 0.0)],
        "log": [(0.0, -inf), (-1.0, nan)],
        "exp": [(-inf, 0.0), (1000.0, inf)],
    }
    with np.errstate(all="ignore"):
        for name, pairs in expected.items():
            got = function(name, np.array([x for x, _ in pairs]), float64)
            np.testing.assert_allclose(got, [y for _, y in pairs], rtol=1e-12)
        assert np.isnan(function("erf", np.float64([nan]), float64))[0]


def test_functions_of_two():
    assert {name for name, op in BINARY.items() if op.transcendental} == {"pow", "atan2", "hypot"}
    a, b = np.float32([2.0, -8.0, 0.0]), np.float32([0.5, 3.0, 0.0])
    np.testing.assert_allclose(function_of_two("pow", a, b, float32), [2**0.5, -512, 1], rtol=1e-7)
    assert function_of_two("hypot", np.float32([3e38]), np.float32([1e38]), float32)[0] < np.inf
    assert function_of_two("atan2", np.float32([1]), np.float32([0]), float16).dtype == np.float32


def test_philox_known_answers():
    """Of Random123's kat_vectors: counter and key all zeros, all ones, and pi."""
    ones = np.uint64(2**64 - 1)
    assert [int(x) for x in philox_block(ones, ones, ones)] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    block, offset = np.uint64(0x85A308D3243F6A88), np.uint64(0x0370734413198A2E)
    found = [int(x) for x in philox_block(np.uint64(0x299F31D0A4093822), offset, block)]
    assert found == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_philox_draws_like_the_core(tmp_path):
    library = tmp_path / "philox.so"
    source = ROOT / "tests/unit/philox_shim.cpp"  # includes the core's file
    includes = [f"-I{ROOT / 'bringup/csrc'}", f"-I{ROOT / 'bringup/include'}"]
    command = ["g++", "-std=c++20", "-O1", "-DBRINGUP_SIMD=", "-fPIC", "-shared", *includes]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    core = ctypes.CDLL(str(library))
    key, begin = (2**63 + 12345, 9), 2**34 - 4
    out = np.empty(34, np.uint32)
    core.u32(*(ctypes.c_uint64(v) for v in (*key, 2 * begin, out.size)), ctypes.c_void_p(out.ctypes.data))
    for bits, drawn in ((32, out), (64, out.view(np.uint64))):
        first = 2 * begin if bits == 32 else begin
        counters = np.uint64(first) + np.arange(drawn.size, dtype=np.uint64)
        assert np.array_equal(philox(np.uint64(key[0]), np.uint64(key[1]), counters, bits), drawn)
