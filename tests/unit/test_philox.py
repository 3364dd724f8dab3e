"""The random numbers of bringup: known answers of Philox4x32-10, a NumPy reference, and no dependence on the split.

Raw draws are the core's, what becomes of them on the host is host_draws.py's.
"""

import ctypes
import math
import shutil
import subprocess
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float32, float64

from bringup.lowering.ops import host_draws

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests/unit/philox_shim.cpp"
DTYPES = {"u32": "u4", "u64": "u8", "uniform_f32": "f4", "uniform_f64": "f8", "normal_f32": "f4", "normal_f64": "f8"}
DTYPES |= {"exponential_f32": "f4", "exponential_f64": "f8"}
F32 = np.float32
LOG_ULP, SINCOS_ULP = 0.9, 1.8  # measured 0.82 and 1.73; host_draws.py promises these

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def build(folder: Path, *flags: str) -> ctypes.CDLL:
    library = folder / "philox.so"
    includes = [f"-I{ROOT / 'bringup/csrc'}", f"-I{ROOT / 'bringup/include'}"]
    command = ["g++", "-std=c++20", *flags, "-fPIC", "-shared", *includes, str(SOURCE), "-o", str(library)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="session")
def philox(tmp_path_factory):
    return build(tmp_path_factory.mktemp("philox"), "-O3", "-ffp-contract=off")


def fill(library, name, seed, offset, begin, count):
    if name == "u32":
        out = np.empty(count, "u4")
        arguments = [ctypes.c_uint64(v) for v in (seed, offset, begin, count)]
        library.u32(*arguments, ctypes.c_void_p(out.ctypes.data))
        return out
    draws = host_draws.Draws(seed, offset, begin - begin % 2, count + begin % 2)
    kind, _, width = name.partition("_")
    made = getattr(host_draws, kind)(draws, {"f32": float32, "f64": float64}[width]) if width else draws.double_words()
    assert made.dtype == DTYPES[name]
    return made[begin % 2 :]


# ---- the reference: straight from the definition in philox.h ----


def reference_blocks(seed, offset, first, blocks):
    index = np.uint64(first) + np.arange(blocks, dtype=np.uint64)
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [index & mask, index >> shift, np.full(blocks, offset & 0xFFFFFFFF, np.uint64)]
    c.append(np.full(blocks, offset >> 32, np.uint64))
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> shift) ^ c[1] ^ np.uint64(key[0]), p1 & mask, (p0 >> shift) ^ c[3] ^ np.uint64(key[1]), p0 & mask]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, 1).astype(np.uint32)


@lru_cache(maxsize=64)
def reference_u32(seed, offset, begin, count):
    first, last = begin >> 2, (begin + count + 3) >> 2
    return reference_blocks(seed, offset, first, last - first).reshape(-1)[begin - 4 * first :][:count]


def reference_u64(seed, offset, begin, count):
    x = reference_u32(seed, offset, 2 * begin, 2 * count).astype(np.uint64)
    return x[0::2] | x[1::2] << np.uint64(32)


def horner(x, *coefficients):
    y = F32(coefficients[0])
    for coefficient in coefficients[1:]:
        y = y * x + F32(coefficient)
    return y


LOG = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1)
LOG += (2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)


def reference_log(x):
    bits = x.view(np.int32)
    e = (bits - np.int32(0x3F3504F3)) >> 23
    m = (bits - (e << 23)).view(F32) - F32(1)
    e, z = e.astype(F32), m * m
    y = horner(m, *LOG) * m * z + e * F32(-2.12194440e-4) - F32(0.5) * z
    return (m + y) + e * F32(0.693359375)


def reference_sincos(turn):
    quadrant = (turn + np.uint32(0x20000000)) >> np.uint32(30)
    rest = (turn - (quadrant << np.uint32(30))).view(np.int32)
    x = rest.astype(F32) * F32(2.0**-30)
    tail = (rest - rest.astype(F32).astype(np.int32)).astype(F32) * F32(2.0**-30)
    z = x * x
    s = horner(z, -0.00460483739, 0.0796814114, -0.645963609) * z + F32(-4.37113883e-08)
    s = x * F32(1.57079637) + (x * s + tail * F32(1.57079637))
    c = horner(z, 0.000905604567, -0.020861119, 0.253669381) * z * z + (F32(1) - F32(1.23370051) * z)
    sine = np.choose(quadrant, [s, c, -s, -c])
    return sine, np.choose(quadrant, [c, -s, -c, s])


def unit(x):
    return x.astype(F32) * F32(2.0**-32) + F32(2.0**-33)


def reference(name, seed, offset, begin, count):
    even, padded = begin - begin % 2, count + begin % 2 + (begin + count) % 2
    if name == "u32":
        return reference_u32(seed, offset, begin, count)
    if name == "u64":
        return reference_u64(seed, offset, begin, count)
    if name == "uniform_f32":
        return (reference_u32(seed, offset, begin, count) >> np.uint32(8)).astype(F32) * F32(2.0**-24)
    if name == "uniform_f64":
        return (reference_u64(seed, offset, begin, count) >> np.uint64(11)).astype("f8") * 2.0**-53
    if name == "exponential_f32":
        return np.maximum(-reference_log(unit(reference_u32(seed, offset, begin, count))), F32(2.0**-25))
    if name == "exponential_f64":
        y = reference_u64(seed, offset, begin, count) >> np.uint64(11)
        return np.maximum(-np.log((y + np.uint64(1)).astype("f8") * 2.0**-53), 2.0**-54)
    if name == "normal_f32":
        x = reference_u32(seed, offset, even, padded)
        radius = np.sqrt(F32(-2) * reference_log(unit(x[0::2])))
        sine, cosine = reference_sincos(np.ascontiguousarray(x[1::2]))
    else:
        y = reference_u64(seed, offset, even, padded) >> np.uint64(11)
        radius = np.sqrt(-2 * np.log((y[0::2] + np.uint64(1)).astype("f8") * 2.0**-53))
        angle = 2 * math.pi * (y[1::2].astype("f8") * 2.0**-53)
        sine, cosine = np.sin(angle), np.cos(angle)
    return np.stack([radius * cosine, radius * sine], 1).reshape(-1)[begin - even :][:count]


# ---- tests ----

PI = (0x299F31D0A4093822, 0x0370734413198A2E, 0x85A308D3243F6A88)  # seed, offset, block: digits of pi
ONES = (2**64 - 1,) * 3


@pytest.mark.parametrize(
    ("counter", "answer"),
    [
        ((0, 0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (ONES, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (PI, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers_of_random123(philox, counter, answer):
    out = np.empty(4, np.uint32)
    philox.block(*map(ctypes.c_uint64, counter), ctypes.c_void_p(out.ctypes.data))
    assert " ".join(f"{v:08x}" for v in out) == answer
    assert " ".join(f"{v:08x}" for v in reference_blocks(*counter, 1)[0]) == answer


@pytest.mark.parametrize("name", DTYPES)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    offset=st.integers(0, 2**64 - 1),
    begin=st.one_of(st.integers(0, 70), st.integers(0, 2**62), st.integers(2**34 - 300, 2**34)),
    count=st.integers(0, 600),
)
def test_equals_numpy(philox, name, seed, offset, begin, count):
    ours, expected = fill(philox, name, seed, offset, begin, count), reference(name, seed, offset, begin, count)
    if name in ("normal_f64", "exponential_f64"):  # libm against NumPy's own log, sin and cos
        np.testing.assert_allclose(ours, expected, rtol=1e-14, atol=1e-15)
    else:
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("name", DTYPES)
@settings(max_examples=25, deadline=None)
@given(begin=st.integers(0, 2**40), cuts=st.lists(st.integers(0, 900), max_size=8), seed=st.integers(0, 2**64 - 1))
def test_any_split_gives_the_same_numbers(philox, name, begin, cuts, seed):
    edges = [0, *sorted(cuts), 900]
    parts = [fill(philox, name, seed, 7, begin + a, b - a) for a, b in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(parts), fill(philox, name, seed, 7, begin, 900))


def test_runs_longer_than_one_call_of_the_kernel(philox):
    count = 4 * 65536 * 2 + 5  # kRun blocks per call, twice, and a rest
    np.testing.assert_array_equal(fill(philox, "u32", 1, 2, 3, count), reference_u32(1, 2, 3, count))


def test_every_instruction_set_gives_the_same_bits(philox, tmp_path):
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    variants = {"plain": ["-O1"], "setup": ["-O2"]}
    if " avx2 " in cpu:
        variants["avx2"] = ["-O3", "-mavx2"]
    for variant, flags in variants.items():
        folder = tmp_path / variant
        folder.mkdir()
        library = build(folder, *flags, *([] if variant == "setup" else ["-DBRINGUP_SIMD="]))
        words = [fill(lib, "u32", 11, 12, 1, 200_003) for lib in (philox, library)]
        np.testing.assert_array_equal(*words, err_msg=variant)


def ks_distance(sample, cdf):
    sample = np.sort(sample.astype("f8"))
    steps = np.arange(sample.size + 1) / sample.size
    expected = cdf(sample)
    return max(np.max(steps[1:] - expected), np.max(expected - steps[:-1]))


CDF = {
    "uniform": lambda x: x,
    "normal": lambda x: 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "exponential": lambda x: 1 - np.exp(-x),
}
MOMENTS = {"uniform": (0.5, 1 / 12), "normal": (0, 1), "exponential": (1, 1)}


@pytest.mark.parametrize("name", [name for name in DTYPES if "_" in name])
def test_distribution(philox, name):
    n, kind = 200_000, name.split("_")[0]
    sample = fill(philox, name, 2024, 1, 0, n).astype("f8")
    mean, variance = MOMENTS[kind]
    assert abs(sample.mean() - mean) < 5 * math.sqrt(variance / n)
    assert abs(sample.var() - variance) < 0.02 * variance
    assert ks_distance(sample, CDF[kind]) < 1.95 / math.sqrt(n)  # p = 0.001
    assert abs(np.corrcoef(sample[0::2], sample[1::2])[0, 1]) < 5 / math.sqrt(n / 2)  # the two of a pair
    assert np.isfinite(sample).all()
    if kind == "uniform":
        assert sample.min() >= 0
        assert sample.max() < 1
    if kind == "exponential":
        assert sample.min() > 0


def ulp_error(value, exact):
    # An ulp of the exact value; below 2^-30 (sin near pi, log near 1) a fixed one, finer than any normal needs.
    spacing = np.spacing(np.maximum(np.abs(exact), 2.0**-30).astype(F32)).astype("f8")
    return np.max(np.abs(value.astype("f8") - exact) / spacing)


def test_log_error():
    special = np.array([0, 1, 2, 3, 2**31, 2**32 - 1, 2**32 - 128, 2**32 - 129, 3037000499], np.uint32)
    x = unit(np.concatenate([special, np.random.default_rng(0).integers(0, 2**32, 2_000_000, np.uint32)]))
    x = np.concatenate([x, F32(1) - np.arange(70_000, dtype=F32) * F32(2.0**-24)])
    out = host_draws.log_f32(x)
    assert np.isfinite(out).all()
    assert out.max() == 0
    assert out.min() > -22.9
    assert 0.2 < ulp_error(out, np.log(x.astype("f8"))) < LOG_ULP


def test_sincos_error():
    special = np.arange(0, 2**32, 2**29, dtype=np.uint64)
    turn = np.concatenate([(special + d) % 2**32 for d in (0, 1, 2, 255, 2**32 - 1)]).astype(np.uint32)
    turn = np.concatenate([turn, np.random.default_rng(1).integers(0, 2**32, 2_000_000, np.uint32)])
    sine, cosine = host_draws.sincos_f32(turn)
    # Exact by symmetry: reduce in integers, so that float64's own pi does not spoil the reference.
    quadrant = ((turn.astype("i8") + 2**29) >> 30) & 3
    rest = (turn - (quadrant << 30).astype(np.uint32)).view(np.int32).astype("f8") * (2 * math.pi / 2**32)
    s, c = np.sin(rest), np.cos(rest)
    assert ulp_error(sine, np.choose(quadrant, [s, c, -s, -c])) < SINCOS_ULP
    assert ulp_error(cosine, np.choose(quadrant, [c, -s, -c, s])) < SINCOS_ULP
    assert np.max(np.abs(sine.astype("f8") ** 2 + cosine.astype("f8") ** 2 - 1)) < 4e-7
