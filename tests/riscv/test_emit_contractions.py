"""Contractions as scalar tiles and as vector assembly: the bits of the interpreter, whatever the shape and layout."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping

import numpy as np
import pytest

from bringup.ir.dtypes import float32, int8, int32, uint8
from bringup.ir.expr import Binary, Expr, Name, const
from bringup.ir.index import AxisVar, Index, Int
from bringup.ir.kernel import Axis, Block, Buffer, Contract, Kernel, Let, Store
from tests.riscv.emit_values import random_value
from tests.riscv.emitting import FAMILIES, Trial, TrialMaker, run_trials

COUNT = 32
ACC = Name("acc", float32)
isas = pytest.mark.parametrize("isa", ["rv64gc", "rv64gcv"])
families = pytest.mark.parametrize("family", FAMILIES)


def _extent(rng: random.Random) -> int:
    return rng.choice([1, 2, 3, rng.randint(4, 9), rng.randint(10, 70), rng.randint(10, 70), rng.randint(100, 600)])


def _finish(rng: random.Random, maker: TrialMaker, at: Mapping[str, tuple[Index, int]], out: str) -> Block:
    """What follows the sums: usual layers, or any arithmetic on the sum and tensors of fewer dimensions."""
    store = tuple(index for index, _ in at.values())

    def extra(name: str, *axes: str) -> Expr:
        shape = [at[axis][1] for axis in axes]
        return maker.buffer(name, shape)[tuple(at[axis][0] for axis in axes)]

    rows, columns = list(at)[-2:]
    form = rng.randrange(6)
    if form == 0:
        return (Store(out, store, ACC),)
    if form == 1:
        biased = ACC + extra("bias", rng.choice([rows, columns]))
        return (Let("t", biased), Store(out, store, Binary("max", Name("t", float32), const(0.0, float32))))
    if form == 2:
        low = Binary("max", ACC, const(-1.0, float32))
        return (Store(out, store, Binary("min", low, const(1.0, float32)) * 2.0 + extra("residual", *at)),)
    leaves = [ACC, extra("bias", columns), extra("scale", rows), extra("residual", *at), extra("one")]
    value = random_value(rng, rng.sample(leaves, rng.randint(1, 5)), rng.randint(1, 3))
    return (Let("t", value), Store(out, store, random_value(rng, [ACC, Name("t", float32)], 1)))


def matrix_trial(rng: random.Random) -> Trial:
    """A batch of matrix products; either factor may be a constant, transposed, or shared by the batch."""
    maker = TrialMaker(rng, special=rng.choice([0.0, 0.0, 0.01]), constant=0.4)
    batch, rows, columns, depth = rng.choice([1, 1, 2, 5]), _extent(rng), _extent(rng), rng.randint(1, 70)
    while rows * columns * depth * batch > 60_000:
        batch, rows, depth = 1, rows // 2 + 1, depth // 2 + 1
    e, i, j, p = map(AxisVar, "eijp")
    lone = [rng.random() < 0.4 for _ in range(2)]  # the same matrix for the whole batch
    a = maker.buffer("a", [rows, depth] if lone[0] else [batch, rows, depth])
    b = maker.buffer("b", [depth, columns] if lone[1] else [batch, depth, columns])
    maker.buffer("y", [batch, rows, columns], "out")
    sums = Contract(
        "acc",
        (Axis("p", Int(depth), "reduce"),),
        a[(i, p) if lone[0] else (e, i, p)],
        b[(p, j) if lone[1] else (e, p, j)],
    )
    after = _finish(rng, maker, {"e": (e, batch), "i": (i, rows), "j": (j, columns)}, "y")
    axes = (Axis("e", Int(batch)), Axis("i", Int(rows)), Axis("j", Int(columns)))
    return maker.trial(Kernel("matrix", buffers=tuple(maker.buffers), axes=axes, body=(sums, *after)))


def vector_trial(rng: random.Random) -> Trial:
    """A matrix times a vector."""
    maker = TrialMaker(rng, constant=0.5)
    rows, depth = _extent(rng), rng.choice([rng.randint(1, 70), 391])
    i, p = AxisVar("i"), AxisVar("p")
    a, v = maker.buffer("a", [rows, depth]), maker.buffer("v", [depth])
    bias = maker.buffer("bias", [rows])
    maker.buffer("y", [rows], "out", dense=rng.random() < 0.5)
    sums = Contract("acc", (Axis("p", Int(depth), "reduce"),), a[i, p], v[p])
    body = (sums, Store("y", (i,), Binary("max", ACC + bias[i], const(0.0, float32))))
    return maker.trial(Kernel("vector", buffers=tuple(maker.buffers), axes=(Axis("i", Int(rows)),), body=body))


def convolution_trial(rng: random.Random) -> Trial:
    """A convolution over one or two dimensions of space, in groups, strided, dilated; channels first or last."""
    maker = TrialMaker(rng, special=rng.choice([0.0, 0.0, 0.005]), constant=0.5)
    dims = rng.choice([1, 2, 2, 2])
    groups, filters = rng.choice([1, 1, 1, 2, 5]), rng.randint(1, 9)
    channels = 1 if groups == 5 else rng.randint(1, 9)
    filters = rng.choice([1, 2]) if groups == 5 else filters
    batch = rng.choice([1, 1, 1, 2])
    taps = [rng.choice([1, 2, 3, 3]) for _ in range(dims)]
    if rng.random() < 0.2:
        taps = [1] * dims
    strides = [rng.choice([1, 1, 2, 3]) for _ in range(dims)]
    dilations = [rng.choice([1, 1, 1, 2]) for _ in range(dims)]
    outputs = [rng.choice([1, rng.randint(2, 12), rng.randint(2, 30 if d == dims - 1 else 6)]) for d in range(dims)]
    inputs = [
        (n - 1) * s + (k - 1) * d + 1 + rng.randint(0, 2) for n, s, k, d in zip(outputs, strides, taps, dilations)
    ]
    g, b, o, c = map(AxisVar, "gboc")
    u = [AxisVar(f"u{d}") for d in range(dims)]
    r = [AxisVar(f"r{d}") for d in range(dims)]
    dense = rng.random() < 0.7
    x = maker.buffer("x", [batch, groups, channels, *inputs], dense=dense)
    f = maker.buffer("f", [groups, filters, channels, *taps], dense=dense)
    maker.buffer("y", [batch, groups, filters, *outputs], "out", dense=dense)
    place = [at * s + hit * d for at, s, hit, d in zip(u, strides, r, dilations)]
    sums = Contract(
        "acc",
        (Axis("c", Int(channels), "reduce"), *(Axis(axis.name, Int(k), "reduce") for axis, k in zip(r, taps))),
        f.at(g, o, c, *r),
        x.at(b, g, c, *place),
    )
    where = {"b": (b, batch), "g": (g, groups), "o": (o, filters)}
    where |= {axis.name: (axis, n) for axis, n in zip(u, outputs)}
    after = _finish(rng, maker, where, "y")
    axes = tuple(Axis(name, Int(n)) for name, (_, n) in where.items())
    return maker.trial(Kernel("convolution", buffers=tuple(maker.buffers), axes=axes, body=(sums, *after)))


def again_trial(rng: random.Random) -> Trial:
    """A matrix product whose factors are read once more after it, where they lie."""
    maker = TrialMaker(rng, constant=0.7)
    rows, columns, depth = _extent(rng), _extent(rng), rng.randint(2, 20)
    i, j, p = map(AxisVar, "ijp")
    a, b = maker.buffer("a", [rows, depth]), maker.buffer("b", [depth, columns])
    maker.buffer("y", [rows, columns], "out")
    sums = Contract("acc", (Axis("p", Int(depth), "reduce"),), a[i, p], b[p, j])
    store = Store("y", (i, j), random_value(rng, [ACC * 2.0, a[i, 1], b[0, j]], 2) + rng.choice([a[i, 0], b[1, j]]))
    axes = (Axis("i", Int(rows)), Axis("j", Int(columns)))
    return maker.trial(Kernel("again", buffers=tuple(maker.buffers), axes=axes, body=(sums, store)))


def byte_trial(rng: random.Random) -> Trial:
    """A matrix product of bytes with the largest numbers there are: two sums share a register, the lower one negative
    or not, and nothing of it reaches the other."""
    maker = TrialMaker(rng, constant=0.5)
    rows, columns, depth = _extent(rng) % 50 + 1, _extent(rng) % 50 + 1, rng.choice([1, 2, 9, 300])
    i, j, p = map(AxisVar, "ijp")
    generator, dtype = np.random.default_rng(rng.getrandbits(32)), rng.choice([int8, int8, uint8])

    def factor(name: str, shape: list[int]) -> Buffer:
        extremes = generator.choice([dtype.low, dtype.high, 0, 1], shape[0] * shape[1])
        return maker.buffer(name, shape, dtype=dtype, dense=True, values=extremes.astype(dtype.storage))

    a, b = factor("a", [rows, depth]), factor("b", [depth, columns])
    maker.buffer("y", [rows, columns], "out", dtype=int32)
    sums = Contract("acc", (Axis("p", Int(depth), "reduce"),), a[i, p], b[p, j])
    total: Expr = Name("acc", int32)
    if rng.random() < 0.5:
        total = total * maker.buffer("m", [rows], dtype=int32)[i]
    axes = (Axis("i", Int(rows)), Axis("j", Int(columns)))
    body = (sums, Store("y", (i, j), total))
    return maker.trial(Kernel("bytes", buffers=tuple(maker.buffers), axes=axes, body=body))


@functools.cache
def _trials(kind: str) -> list[Trial]:
    makers = {
        "matrix": [matrix_trial, matrix_trial, vector_trial, again_trial],
        "convolution": [convolution_trial],
        "bytes": [byte_trial],
    }
    rng = random.Random(kind)
    return [rng.choice(makers[kind])(rng) for _ in range(COUNT)]


@isas
@families
@pytest.mark.parametrize("kind", ["matrix", "convolution"])
def test_contractions(kind: str, family: str, isa: str) -> None:
    chosen = _trials(kind) if family == "zig" else _trials(kind)[::2]  # gcc takes longer
    program = run_trials(chosen, isa, family)
    how = [one.how for one in program.kernels.rendered]
    assert sum("sums in registers" in one or "rows at once" in one for one in how) > len(how) / 2, how
    if isa == "rv64gcv":
        assert sum("vectors" in one for one in how) > len(how) / 2, how


@families
@pytest.mark.parametrize("isa", ["rv64gc", "rv32imfc"])
def test_bytes_two_in_a_register(isa: str, family: str) -> None:
    program = run_trials(_trials("bytes"), isa, family, machines=["interpreter"])
    in_pairs = sum("two in each" in one.how for one in program.kernels.rendered)
    assert in_pairs > COUNT / 2 if isa == "rv64gc" else in_pairs == 0
