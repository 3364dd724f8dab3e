"""Kernels that no vector emitter takes become C loops: every construct, type and function, and random kernels."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import pytest

from bringup.graph.bare_metal.static_program import with_sizes
from bringup.ir.dtypes import Array, float16
from bringup.ir.expr import const
from bringup.ir.kernel import Kernel
from tests.loops.random_kernel import random_case
from tests.riscv.emitting import FAMILIES, MACHINES, Trial, run_trials, text_trial
from tests.unit.targets.c_kernels import KERNELS, PARAMS, SIZES, ULP, arrays_for

COUNT = 30
families = pytest.mark.parametrize("family", FAMILIES)


def written_trial(kernel: Kernel, n: int, m: int) -> Trial:
    """A kernel of the C emitter's tests, its sizes written in."""
    sizes = {"n": n, "m": m, **SIZES}
    arrays = arrays_for(kernel, sizes)
    params = {param.name: const(PARAMS[param.name], param.dtype) for param in kernel.params}
    fixed = with_sizes(kernel, {size.name: sizes[size.name] for size in kernel.sizes}, params)
    return Trial(fixed, {name: _flat(array) for name, array in arrays.items()}, ulp=ULP.get(kernel.name, 0))


def _flat(array: Array) -> Array:
    """The whole memory behind a view (NumPy puts an object in between)."""
    memory: Any = array
    while memory.base is not None:
        memory = memory.base
    flat: Array = memory.reshape(-1)
    return flat


def random_trial(seed: int, functions: bool) -> Trial:
    case = random_case(random.Random(seed), functions)
    params = {param.name: const(case.params[param.name], param.dtype) for param in case.kernel.params}
    kernel = with_sizes(case.kernel, case.sizes, params)
    return Trial(kernel, {name: _flat(array) for name, array in case.inputs.items()}, ulp=case.ulp)


@functools.cache
def trials() -> list[Trial]:
    """Every construct and type, then random kernels, some of them with functions."""
    written = [written_trial(kernel, n, m) for kernel, (n, m) in zip(KERNELS.values(), itertools.cycle(_SIZES))]
    return [*written, *(random_trial(seed, seed % 3 == 0) for seed in range(COUNT))]


_SIZES = ((37, 5), (1, 1), (5, 37), (16, 3))


@families
@pytest.mark.parametrize("isa", ["rv64gc", "rv64gcv"])
def test_loops(isa: str, family: str) -> None:
    chosen = trials() if family == "zig" else trials()[:: 3 if isa == "rv64gc" else 7]
    # QEMU 7.2 gives up on vfcvt.rtz, which clang makes of conversions to integers.
    machines = ["interpreter"] if isa == "rv64gcv" else MACHINES
    program = run_trials(chosen, isa, family, machines=machines)
    assert sum(one.how.startswith("loops") for one in program.kernels.rendered) > len(chosen) * 0.8


def test_half_floats_of_a_core_that_has_them() -> None:
    """Conversions are one instruction, and the numbers those of the longer way."""
    halves = [trial for trial in trials() if any(buffer.dtype is float16 for buffer in trial.kernel.buffers)]
    assert len(halves) > 3
    run_trials(halves, "rv64gc_zfh", "zig", machines=["interpreter"])


_CLAMPED = (
    "kernel clamped in x: float32[200] strides [1] out y: float32[200] strides [1] grid i < 200 "
    "{{ store y[i] = min(max(x[i], float32({})), float32({})) }}"
)


@pytest.mark.parametrize("isa", ["rv64gc", "rv32imfc", "rv32imc"])
def test_clamping_keeps_nan_and_zeros(isa: str) -> None:
    """Whatever the bounds: those that are zeros of either sign, infinite, NaN or in the wrong order, too."""
    bounds = [("0.0", "6.0"), ("-0.0", "1.0"), ("-1.0", "0.0"), ("-1.0", "-0.0"), ("-inf", "inf"), ("nan", "1.0")]
    bounds += [("1.0", "nan"), ("2.0", "-2.0"), ("0.0", "0.0"), ("-1.0", "1.0")]
    run_trials([text_trial(_CLAMPED.format(*pair)) for pair in bounds], isa, "zig", machines=["interpreter"])


def test_loops_of_wide_vectors() -> None:
    """Eight registers of the shortest vectors at once: the other form of loops that a program may have."""
    run_trials(trials()[::2], "rv64gcv", "zig", machines=["interpreter"], vector_bytes=128)
