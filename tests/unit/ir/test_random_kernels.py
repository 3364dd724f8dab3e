"""Properties over random kernels: every part of the IR agrees with every other."""

import numpy as np
import pytest
from hypothesis import given, settings

from bringup.ir.cost import cost
from bringup.ir.interpret import run
from bringup.ir.parser import parse
from bringup.ir.printer import kernel_text
from bringup.ir.simplify import simplify
from bringup.ir.verify import VerifyError, verify
from tests.loops.bad_kernels import bad_kernels
from tests.loops.bits import same_bits
from tests.loops.interpret_scalar import run_scalar
from tests.loops.random_kernel import cases

SOME = settings(max_examples=80, deadline=None)
BAD = list(bad_kernels())


def outcome(runs, kernel, case):
    arrays = case.fresh_inputs()
    runs(kernel, arrays, case.sizes, case.params)
    return arrays


def assert_same(kernel, left, right):
    for buffer in kernel.buffers:
        assert same_bits(left[buffer.name], right[buffer.name], buffer.dtype), buffer.name


@given(cases())
@SOME
def test_verified_and_read_back(case):
    verify(case.kernel)
    assert parse(kernel_text(case.kernel)) == case.kernel


@given(cases(functions=True))
@SOME
def test_vectorised_and_scalar_runs_agree(case):
    assert_same(case.kernel, outcome(run, case.kernel, case), outcome(run_scalar, case.kernel, case))


@given(cases(functions=True))
@SOME
def test_simplify_keeps_every_bit(case):
    simple = simplify(case.kernel)
    verify(simple)
    assert parse(kernel_text(simple)) == simple
    assert_same(case.kernel, outcome(run, case.kernel, case), outcome(run, simple, case))


@given(cases())
@SOME
def test_cost_bounds_what_happens(case):
    counts = run_scalar(case.kernel, case.fresh_inputs(), case.sizes, case.params)
    numbers = cost(case.kernel).evaluate(case.sizes)
    sizes = {buffer.name: buffer.dtype.size for buffer in case.kernel.buffers}
    read = sum(sizes[name] for name, _ in counts.read)
    written = sum(sizes[name] for name, _ in counts.written)
    assert counts.flops <= numbers.flops
    assert counts.transcendentals <= numbers.transcendentals
    assert read <= numbers.read
    assert written <= numbers.written


@pytest.mark.parametrize("bad", BAD, ids=[bad.what for bad in BAD])
def test_bad_kernels_are_rejected(bad):
    with pytest.raises(VerifyError) as caught:
        verify(bad.kernel)
    assert caught.value.rule == bad.rule
    if caught.value.stmt is not None:
        assert "\n-->" in str(caught.value)


def test_the_same_seed_gives_the_same_arrays():
    import random

    from tests.loops.random_kernel import random_case

    one, two = random_case(random.Random(3)), random_case(random.Random(3))
    assert all(
        np.array_equal(one.inputs[k], two.inputs[k], equal_nan=one.inputs[k].dtype.kind == "f") for k in one.inputs
    )
