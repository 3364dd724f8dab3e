"""Fusion: what is fused gives the same bits as two launches; what is not says which rule forbids it."""

import numpy as np
import pytest

from bringup.ir.bits import same_bits
from bringup.ir.cost import cost
from bringup.ir.fuse import Limits, Refusal, fuse, recompute_is_cheap, rename
from bringup.ir.interpret import run
from bringup.ir.kernel import Kernel, Loop
from bringup.ir.parser import parse
from bringup.ir.simplify import simplify
from bringup.ir.verify import verify
from tests.unit.ir.written_kernels import kernel

RNG = np.random.default_rng(0)
GRID = "grid i < n, j < m"
X, Y, Z = (f"{name}: float32[n, m] strides [m, 1]" for name in "xyz")
HEAD = "kernel k size n size m "
DOUBLE = parse(f"{HEAD} in {X} out {Y} {GRID} {{ store y[i, j] = (x[i, j] + x[i, j]) }}")
EXP = parse(f"{HEAD} in {X} out {Y} {GRID} {{ let t = exp(x[i, j]) store y[i, j] = (t * t) }}")
SQUARE = parse(f"{HEAD} in {Y} out {Z} {GRID} {{ store z[i, j] = (y[i, j] * y[i, j]) }}")
TRANSPOSE = parse(
    "kernel t size n size m in y: float32[n, m] strides [m, 1] out z: float32[m, n] strides [n, 1] "
    "grid a < m, b < n { store z[a, b] = y[b, a] }"
)
ROW_SUM = parse(
    f"{HEAD} in {Y} out z: float32[n] strides [1] grid i < n {{ reduce (s) over j < m lanes 32 "
    "{ init (float32(0.0)) value (y[i, j]) combine (a), (b) -> ((a + b)) } store z[i] = s }"
)
SHIFT = parse(
    f"{HEAD} in {Y} out {Z} {GRID} {{ store z[i, j] = "
    "(y[i, j - 1] if ((index(j - 1) >= index(0)) & (index(j - 1) < index(m))) else float32(7.0)) }"
)
ROW_MAX = parse(
    f"{HEAD} in {X} out y: float32[n] strides [1] grid i < n {{ reduce (s) over j < m lanes 32 "
    "{ init (float32(-inf)) value (x[i, j]) combine (a), (b) -> (max(a, b)) } store y[i] = s }"
)
SUBTRACT = parse(f"{HEAD} in {X} in y: float32[n] strides [1] out {Z} {GRID} {{ store z[i, j] = (x[i, j] - y[i]) }}")
BIAS = parse("kernel b size n in y: float32[n] strides [1] out z: float32[n] strides [1] grid q < n "
             "{ store z[q] = max(y[q], float32(0.5)) }")  # fmt: skip


def shape(kernel, name, sizes):
    return tuple(sizes[i.name] for i in kernel.buffer(name).shape)


def both_ways(producer, consumer, fused, sizes=None):
    sizes = sizes or {"n": 5, "m": 7}
    x = RNG.standard_normal((5, 7)).astype(np.float32)
    middle = np.zeros(shape(producer, "y", sizes), np.float32)
    apart, together = (np.zeros(shape(consumer, "z", sizes), np.float32) for _ in range(2))

    def launch(k: Kernel, arrays):
        run(k, {b.name: arrays[b.name] for b in k.buffers}, sizes)

    launch(producer, {"x": x, "y": middle})
    launch(consumer, {"x": x, "y": middle, "z": apart})
    launch(fused, {"x": x, "z": together})
    assert same_bits(apart, together, consumer.buffer("z").dtype)
    launch(simplify(fused), {"x": x, "z": together})
    assert same_bits(apart, together, consumer.buffer("z").dtype)


@pytest.mark.parametrize(
    ("producer", "consumer"),
    [
        (DOUBLE, SQUARE),
        (EXP, SQUARE),
        (EXP, TRANSPOSE),
        (EXP, ROW_SUM),
        (DOUBLE, ROW_SUM),
        (DOUBLE, SHIFT),
        (EXP, SHIFT),
        (ROW_MAX, SUBTRACT),
        (ROW_MAX, BIAS),
    ],
)
def test_fused_equals_unfused(producer, consumer):
    fused = fuse(producer, consumer, "y")
    assert isinstance(fused, Kernel), fused
    verify(fused)
    assert fused.buffer("y") is None
    both_ways(producer, consumer, fused)
    sizes = {"n": 50, "m": 70}
    apart = cost(producer).evaluate(sizes).read + cost(consumer).evaluate(sizes).read
    assert cost(fused).evaluate(sizes).read < apart
    assert cost(fused).evaluate(sizes).transcendentals == cost(producer).evaluate(sizes).transcendentals


def test_a_row_reduction_takes_its_row_along():
    fused = fuse(ROW_MAX, SUBTRACT, "y")
    assert [axis.name for axis in fused.axes] == ["i"]
    assert isinstance(fused.body[-1], Loop)


def test_a_chain_becomes_softmax():
    """max, exp(x - max), sum, divide: four kernels fuse to two, as the rules say (exp is not computed twice)."""
    numerator = parse(
        f"{HEAD} in {X} in y: float32[n] strides [1] out {Z} {GRID} {{ store z[i, j] = exp((x[i, j] - y[i])) }}"
    )
    first = fuse(ROW_MAX, numerator, "y")
    assert isinstance(first, Kernel)
    total = rename(ROW_SUM, {"y": "z", "z": "t"})
    assert fuse(first, total, "z").rule == 1


def test_contract_epilogue():
    product = rename(kernel("matmul"), {"c": "y"})
    relu = parse(
        "kernel scale size m size n in y: float32[m, n] strides [n, 1] out z: float32[m, n] strides [n, 1] "
        "grid p < m, q < n { store z[p, q] = (y[p, q] * float32(0.5)) }"
    )
    fused = fuse(product, relu, "y")
    assert isinstance(fused, Kernel)
    a, b = (RNG.standard_normal(s).astype(np.float16) for s in ((3, 9), (9, 4)))
    bias = RNG.standard_normal(4).astype(np.float32)
    middle, apart, together = (np.zeros((3, 4), np.float32) for _ in range(3))
    run(product, {"a": a, "b": b, "bias": bias, "y": middle})
    run(relu, {"y": middle, "z": apart})
    run(fused, {"a": a, "b": b, "bias": bias, "z": together})
    assert same_bits(apart, together, fused.buffer("z").dtype)


def test_refusals():
    def refused(rule, *arguments, **options):
        answer = fuse(*arguments, **options)
        assert isinstance(answer, Refusal), answer
        assert answer.rule == rule, answer
        assert answer.reason

    gather = rename(kernel("gather"), {"table": "y", "y": "z"})
    table = "float32[rows, m] strides [m, 1]"
    lookup = parse(
        f"kernel e size rows size m in x: {table} out y: {table} "
        "grid i < rows, j < m { store y[i, j] = exp(x[i, j]) }"
    )
    refused(2, lookup, gather, "y")  # rows are computed as often as they are looked up
    sliced = parse(f"{HEAD} in {X} out {Y} grid i < n {{ store y[i, 0] = x[i, 0] }}")
    refused(1, sliced, SQUARE, "y")
    broadcast = parse(f"{HEAD} in y: float32[n] strides [1] out {Z} {GRID} {{ store z[i, j] = (y[i] + y[i]) }}")
    one = "kernel k size n in x: float32[n] strides [1] out y: float32[n] strides [1] grid i < n"
    refused(2, parse(f"{one} {{ store y[i] = exp(x[i]) }}"), broadcast, "y")
    assert isinstance(fuse(parse(f"{one} {{ store y[i] = (x[i] + x[i]) }}"), broadcast, "y"), Kernel)
    refused(2, EXP, SQUARE, "y", users=2)
    assert isinstance(fuse(DOUBLE, SQUARE, "y", users=2), Kernel)
    refused(3, DOUBLE, SQUARE, "y", mutated=frozenset({"x"}))
    in_place = parse(f"{HEAD} in {Y} inout {X} {GRID} {{ store x[i, j] = y[i, j] }}")
    refused(3, DOUBLE, in_place, "y")
    refused(4, DOUBLE, rename(SQUARE, sizes={"n": "n2"}), "y")
    staged = parse(
        f"{HEAD} in {Y} out {Z} local s: float32[100] grid i < n, j < m {{ "
        "loop k < 100 parallel { store s[k] = y[i, j] } store z[i, j] = s[0] }"
    )
    refused(5, DOUBLE, staged, "y", limits=Limits(local_bytes=100))
    refused(6, DOUBLE, SQUARE, "y", limits=Limits(pointers=1))
    refused(1, DOUBLE, rename(DOUBLE, {"y": "z"}), "y")
    columns = parse(
        f"{HEAD} in y: float32[n] strides [1] out z: float32[m] strides [1] grid j < m {{ reduce (s) over i < n "
        "lanes 1 { init (float32(0.0)) value (y[i]) combine (a), (b) -> ((a + b)) } store z[j] = s }"
    )
    refused(1, ROW_MAX, columns, "y")


def test_cheapness():
    assert recompute_is_cheap(DOUBLE)
    assert not recompute_is_cheap(EXP)
    assert not recompute_is_cheap(ROW_MAX)
    assert not recompute_is_cheap(kernel("gather"))
    assert not recompute_is_cheap(kernel("dropout"))


def test_names_do_not_meet():
    consumer = parse(f"{HEAD} in {Y} out {Z} grid x < n, t < m {{ let i = y[x, t] store z[x, t] = (i + i) }}")
    both_ways(EXP, consumer, fuse(EXP, consumer, "y"))
