"""Hand-written kernels in C against the interpreter: each construct, vector path and target, any cut of units."""

import itertools
import random

import numpy as np
import pytest

from bringup.ir.arguments import bind_sizes
from bringup.ir.parser import parse
from bringup.ir.printer import kernel_text
from bringup.ir.verify import verify
from bringup.targets.c.host_cpu import march_target
from bringup.targets.c.plan import plan
from bringup.targets.c.render import render
from bringup.targets.c.target import CTarget
from bringup.targets.toolchain import host_target
from tests.loops.compiled import compile_kernels, disagreement
from tests.unit.targets.c_kernels import KERNELS, PARAMS, SIZES, ULP, arrays_for

TARGETS = {
    "host": host_target(),
    "v3": march_target("x86-64-v3", lambda march: frozenset()),
    "scalar": CTarget(vector_bytes=0, fma=False),
}
COUNTS = (0, 1, 15, 16, 17, 33, 300)


@pytest.fixture(scope="module", params=TARGETS)
def compiled(request):
    built = compile_kernels(list(KERNELS.values()), TARGETS[request.param])
    return dict(zip(KERNELS, built))


def copies(kernel, sizes, params, seed=0):
    return arrays_for(kernel, sizes, seed), arrays_for(kernel, sizes, seed), sizes, params


def sizes_of(kernel, n, m):
    known = {**SIZES, "n": n, "m": m}
    return {size.name: known[size.name] for size in kernel.sizes}


@pytest.mark.parametrize("name", KERNELS)
def test_verified(name):
    verify(KERNELS[name])


@pytest.mark.parametrize("name", KERNELS)
def test_agrees_with_the_interpreter(compiled, name):
    kernel = KERNELS[name]
    lows = [size.low for size in kernel.sizes if size.name == "m"]
    for n in COUNTS:
        for m in [m for m in (0, 1, 31, 32, 70) if m >= lows[0]] if lows else (0,):
            sizes = sizes_of(kernel, n, m)
            found = disagreement(compiled[name], *copies(kernel, sizes, PARAMS), ulp=ULP.get(name, 0))
            assert not found, f"n={n} m={m}: {found}\n{kernel_text(kernel)}"


@pytest.mark.parametrize("name", ["add_float32", "rows_float32", "columns_float16", "one_of_each", "staged", "scanned"])
def test_any_cut_of_the_units_gives_the_same(compiled, name):
    kernel, rng = KERNELS[name], random.Random(name)
    sizes = sizes_of(kernel, 40_000 if name == "add_float32" else 40 if name == "staged" else 300, 40)
    units = compiled[name].count(bind_sizes(kernel, arrays_for(kernel, sizes), sizes))
    assert units > 1
    places = sorted({0, units, *(rng.randint(0, units) for _ in range(6))})
    ranges = list(itertools.pairwise(places))
    rng.shuffle(ranges)
    assert not disagreement(compiled[name], *copies(kernel, sizes, PARAMS), ranges=ranges)


def test_plans():
    styles = {name: plan(kernel, CTarget(vector_bytes=64)).style for name, kernel in KERNELS.items()}
    assert styles["add_float32"] == styles["columns_float32"] == styles["private"] == "grid"
    assert styles["rows_float32"] == styles["softmax_rows"] == styles["staged"] == "rows"
    assert plan(KERNELS["add_float32"], CTarget(vector_bytes=0)).style == "scalar"
    assert plan(KERNELS["nested_order"], CTarget()).style == "rows"


def test_the_text_is_the_same_each_time():
    for name in ("softmax_rows", "mixed", "indexed"):
        assert render(KERNELS[name], TARGETS["host"]) == render(KERNELS[name], TARGETS["host"])


CHECKED = parse(
    "kernel checked size n size rows in t: float32[rows] strides [1] in at: int64[n] strides [1] "
    "inout y: float32[n] strides [1] grid i < n { store y[i] = t[asindex(at[i], rows, check)] if (at[i] < int64(100)) }"
)


@pytest.mark.parametrize("target", TARGETS)
def test_an_index_out_of_range_is_reported_and_the_rest_runs(target):
    (kernel,) = compile_kernels([CHECKED], TARGETS[target])
    t, at = np.float32([1, 2, 3]), np.arange(20) % 3
    at[5] = 1000  # behind a guard: not checked
    y = np.zeros(20, np.float32)
    kernel.run({"t": t, "at": at, "y": y})
    assert y[5] == 0
    at[17] = -4
    with pytest.raises(IndexError, match="index -4 is out of bounds for a dimension of 3"):
        kernel.run({"t": t, "at": at, "y": y})
    good = np.arange(20) != 5
    good[17] = False
    np.testing.assert_array_equal(y[good], t[at[good]])


def test_an_index_into_nothing_touches_nothing():
    (kernel,) = compile_kernels([CHECKED], TARGETS["host"])
    with pytest.raises(IndexError):
        kernel.run({"t": np.zeros(0, np.float32), "at": np.zeros(20, np.int64), "y": np.zeros(20, np.float32)})


def test_in_place_element_for_element():
    (kernel,) = compile_kernels([KERNELS["add_float32"]], TARGETS["host"])
    x, z = np.arange(1000, dtype=np.float32), np.full(1000, 3, np.float32)
    expected = (x + z) * x
    kernel.run({"x": x, "z": z, "y": x})
    np.testing.assert_array_equal(x, expected)
