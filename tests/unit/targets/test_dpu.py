"""Kernels in the C of processors in memory, run by the simulator: bit for bit what the interpreter computes."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import numpy as np
import pytest

from bringup.ir.arguments import bind_sizes
from bringup.ir.dtypes import Array, DType, float32, float64, int32
from bringup.ir.expr import Expr, Number, unary
from bringup.ir.index import AxisVar, Size, evaluate_sizes
from bringup.ir.interpret import run
from bringup.ir.kernel import Axis, Kernel, SizeRange, Store, dense
from bringup.targets.registry import parse_target
from bringup.targets.target import CannotRender
from bringup.upmem.host import DpuSet
from tests.loops import random_kernel
from tests.loops.bits import ulp_distance
from tests.loops.compiled import launch_words
from tests.sweeps import swept_unless
from tests.unit.targets.c_kernels import KERNELS, PARAMS, SIZES, ULP, arrays_for

DPUS, TASKLETS = 3, 16


def run_on(
    dpus: DpuSet, kernel: Kernel, arrays: Mapping[str, Array], sizes: Mapping[str, int], params: Mapping[str, Number]
) -> None:
    """Runs a kernel, each DPU a third of the units, on copies of all arrays; what any DPU has changed comes back."""
    source = parse_target(f"dpu; tasklets={TASKLETS}").render(kernel)
    dpus.load(source.text, tasklets=TASKLETS)
    known = bind_sizes(kernel, arrays, sizes)
    words, at, held = list(launch_words(kernel, arrays, known, params)), (dpus.heap + 63) & -64, []
    for n, buffer in enumerate(kernel.buffers):
        array = arrays[buffer.name]
        low, high = np.lib.array_utils.byte_bounds(array) if array.size else (words[n], words[n])
        place, nbytes = at + low % 8, high - low
        words[n] += place - low
        at = (place + nbytes + 71) & -8
        if nbytes:
            bytes_of = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(low))
            padded = np.zeros((place + nbytes + 7 & -8) - (place & -8), np.uint8)
            padded[place % 8 : place % 8 + nbytes] = bytes_of
            dpus.broadcast(place & -8, padded)
            held.append((place, padded, bytes_of))
    units = evaluate_sizes(source.units, known)
    cuts = [units * n // DPUS for n in range(DPUS + 1)]
    if words:
        dpus.broadcast("bu_args", np.array([word & (1 << 64) - 1 for word in words], np.uint64))
    dpus.write("bu_range", np.array(list(pairwise(cuts)), np.int64))
    dpus.broadcast("bu_failure", np.zeros(3, np.int64))
    dpus.launch()
    for place, before, bytes_of in held:
        for after in dpus.read(place & -8, np.uint8, len(before)):
            changed = (after != before)[place % 8 : place % 8 + len(bytes_of)]
            bytes_of[changed] = after[place % 8 : place % 8 + len(bytes_of)][changed]
    failure = dpus.read("bu_failure", np.int64, 3)
    if failure[:, 0].any():
        raise IndexError("an index is out of range")


def index_error(action: Callable[[], None]) -> bool:
    try:
        action()
    except IndexError:
        return True
    return False


@pytest.fixture(scope="module")
def dpus() -> Iterator[DpuSet]:
    with DpuSet(DPUS) as made:
        yield made


@pytest.mark.parametrize("batch", swept_unless(range(2), range(40)))
def test_random_kernels(dpus: DpuSet, batch: int) -> None:
    ran = 0
    for seed in range(16 * batch, 16 * batch + 16):
        case = random_kernel.random_case(random.Random(seed))
        got, want = case.fresh_inputs(), case.fresh_inputs()
        try:
            failed = index_error(lambda: run_on(dpus, case.kernel, got, case.sizes, case.params))  # noqa: B023
        except CannotRender:
            continue
        ran += 1
        assert failed == index_error(lambda: run(case.kernel, want, case.sizes, case.params)), f"seed {seed}"  # noqa: B023
        for buffer in [] if failed else case.kernel.buffers:
            distance = ulp_distance(got[buffer.name], want[buffer.name], buffer.dtype)
            assert np.all(distance <= case.ulp), f"seed {seed}: {buffer.name} is {distance.max()} ulp off"
    assert ran >= 12


@pytest.mark.parametrize("name", swept_unless(sorted(KERNELS)[::6], sorted(KERNELS)))
def test_kernels_of_every_kind(dpus: DpuSet, name: str) -> None:
    kernel = KERNELS[name]
    known = {**SIZES, "n": 17, "m": 33}
    sizes = {size.name: known[size.name] for size in kernel.sizes}
    got, want = (arrays_for(kernel, sizes) for _ in range(2))
    failed = index_error(lambda: run_on(dpus, kernel, got, sizes, PARAMS))
    assert failed == index_error(lambda: run(kernel, want, sizes, PARAMS))
    for buffer in [] if failed else kernel.buffers:
        assert np.all(ulp_distance(got[buffer.name], want[buffer.name], buffer.dtype) <= ULP.get(name, 0)), buffer.name


def pointwise(dtype: DType, op: str) -> Kernel:
    n, i = Size("n"), AxisVar("i")
    x, y = dense("x", dtype, (n,), "in"), dense("y", dtype, (n,), "out")
    value = x[i] + x[i] if op == "double" else unary(op, x[i])
    body = (Store("y", (i,), value),)
    return Kernel("k", sizes=(SizeRange("n"),), buffers=(x, y), axes=(Axis("i", n),), body=body)


@pytest.mark.parametrize("dtype", [float32, float64])
def test_square_roots_are_those_of_the_processor(dpus: DpuSet, dtype: DType) -> None:
    """Digit by digit in integers, for a chip that has no instruction for them."""
    storage = dtype.storage
    bits = np.random.default_rng(0).integers(0, 1 << 63, 3000).astype(np.uint64).view(np.float64)
    special = np.array([0.0, -0.0, np.inf, np.nan, -1.0, 1e-45, 4.0, 2.0, 5e-324]).astype(storage)
    x = np.concatenate([np.abs(bits.view(storage)), special])
    arrays = {"x": x, "y": np.zeros_like(x)}
    run_on(dpus, pointwise(dtype, "sqrt"), arrays, {"n": x.size}, {})
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(arrays["y"], np.sqrt(x))


def test_neighbours_come_and_go_in_long_pieces(dpus: DpuSet) -> None:
    """48 tasklets with 250 elements each: the ends of their shares are words of two owners."""
    count = 12_000
    x = np.arange(count, dtype=np.int32)
    arrays = {"x": x, "y": np.zeros_like(x)}
    run_on(dpus, pointwise(int32, "double"), arrays, {"n": count}, {})
    np.testing.assert_array_equal(arrays["y"], 2 * x)
    reads, writes = (int(dpus.counters[f"dma_{what}"].sum()) for what in ("reads", "writes"))
    assert reads <= DPUS * TASKLETS * 5, "1,000 bytes by 512, and the words at both ends"
    assert writes <= DPUS * TASKLETS * 4


@pytest.mark.parametrize("tasklets", ["0", "25", "many"])
def test_tasklets_that_no_dpu_has_are_refused(tasklets: str) -> None:
    with pytest.raises(ValueError, match=f"tasklets={tasklets} is none of 1 … 24"):
        parse_target(f"dpu; tasklets={tasklets}")


def test_more_buffers_than_windows_are_refused() -> None:
    n, i = Size("n"), AxisVar("i")
    many = [dense(f"x{at}", int32, (n,), "in") for at in range(40)]
    value: Expr = many[0][i]
    for buffer in many[1:]:
        value = value + buffer[i]
    y = dense("y", int32, (n,), "out")
    kernel = Kernel(
        "k", sizes=(SizeRange("n"),), buffers=(*many, y), axes=(Axis("i", n),), body=(Store("y", (i,), value),)
    )
    with pytest.raises(CannotRender, match="41 buffers: WRAM has no room"):
        parse_target("dpu; tasklets=24").render(kernel)
