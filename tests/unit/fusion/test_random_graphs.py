"""Random graphs: chains of ops over views, broadcasts and reductions give the same bits fused and apart."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bringup.ir.dtypes import bfloat16, boolean, float32, int64
from bringup.ir.kernel import Contract, Kernel
from bringup.ir.simplify import simplify
from bringup.lowering.call import Launch, Tensor, dense_strides
from bringup.lowering.symbolic import hint_of, index_of
from bringup.targets.target import FusionLimits
from bringup.targets.toolchain import host_target
from tests.loops.compiled import Compiled, compile_kernels, compile_packed
from tests.unit.graph_by_hand import Graph, arguments

Choice = random.Random
Maker = Callable[[Graph, Tensor, list[Tensor], Choice], "Tensor | None"]
UNARY = ["aten::relu", "aten::exp", "aten::neg", "aten::sigmoid", "aten::abs"]
BINARY = ["aten::add.Tensor", "aten::sub.Tensor", "aten::mul.Tensor", "aten::maximum"]


def shape_of(t: Tensor) -> tuple[int, ...]:
    return tuple(hint_of(size) for size in t.shape)


def fits(a: Tensor, b: Tensor) -> bool:
    """True if two tensors broadcast (for all sizes, if for these: sizes of 2 and more are told apart by hints)."""
    pairs = zip(reversed(shape_of(a)), reversed(shape_of(b)))
    return a.dtype is b.dtype and all(x == y or 1 in (x, y) for x, y in pairs)


def alike(a: Tensor, b: Tensor) -> bool:
    """True if two tensors have one type and one shape, whatever the sizes are."""
    same = [index_of(x) for x in a.shape] == [index_of(x) for x in b.shape]
    return a.dtype is b.dtype and same


def unary(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    return g(rng.choice(UNARY), t)


def binary(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    other, op = rng.choice([u for u in pool if fits(u, t)]), rng.choice(BINARY)
    return g(op, t, other, 1.0) if op in BINARY[:2] else g(op, t, other)


def permuted(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    dims = list(range(t.ndim))
    rng.shuffle(dims)
    return t.permute(dims)


def reshaped(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    if not t.contiguous or t.ndim < 2:
        return None
    shape = (t.shape[0] * t.shape[1], *t.shape[2:])
    return Tensor(t.memory, t.dtype, shape, dense_strides(shape), contiguous=True, offset=t.offset)


def sliced(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    if not t.ndim:
        return None
    dim = rng.randrange(t.ndim)
    if shape_of(t)[dim] < 2:
        return None
    return t.select(dim, rng.randrange(2)) if rng.random() < 0.5 else t.narrow(dim, 1, t.shape[dim] - 1)


def copied(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    return g("aten::clone", t, None)


def reduced(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    if not t.ndim:
        return None
    dim, keep = rng.randrange(t.ndim), rng.random() < 0.6
    shape = tuple(1 if d == dim else size for d, size in enumerate(t.shape) if keep or d != dim)
    op = rng.choice(["aten::sum.dim_IntList", "aten::mean.dim", "aten::amax"])
    return g(op, t, [dim], keep, *([] if op == "aten::amax" else [None]), shape=shape)


def softmax(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    op = rng.choice(["aten::_softmax", "aten::_log_softmax"])
    return g(op, t, rng.randrange(t.ndim), False) if t.ndim else None


def normalized(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    if t.ndim < 2:
        return None
    row = (*t.shape[:-1], 1)
    outs = [(None, None), (row, None), (row, None)]
    made = g.many("aten::native_layer_norm", t, [t.shape[-1]], None, None, 1e-5, outs=outs)
    pool += made[1:]
    return made[0]


def product(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    matrices = [u for u in pool if u.ndim == t.ndim == 2 and u.dtype is t.dtype]
    others = [u for u in matrices if index_of(u.shape[0]) == index_of(t.shape[1])]
    if not others:
        return None
    other = rng.choice(others)
    return g("aten::mm", t, other, shape=(t.shape[0], other.shape[1]))


def overwritten(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    inputs = [u for u in g.inputs if alike(u, t)]
    if inputs:
        g.copy_into(rng.choice(inputs), t)
    return None


def concatenated(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    if not t.ndim:
        return None
    dim = rng.randrange(t.ndim)
    both = [t, rng.choice([u for u in pool if alike(u, t)])]
    rng.shuffle(both)
    shape = [size + size if d == dim else size for d, size in enumerate(t.shape)]
    return g.lists("aten::cat", both, dim, like=t, shape=shape)


def dropped(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    if not t.contiguous or not t.ndim:
        return None
    return g.many("aten::native_dropout", t, 0.5, True, outs=[(None, None), (None, boolean)])[0]


def looked_up(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    if t.ndim != 2 or not isinstance(t.shape[0], int) or t.shape[0] < 4:  # indices are 0 … 3
        return None
    where = g.input((5,), int64)
    return g("aten::index_select", t, 0, where, shape=(5, t.shape[1]))


def running(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    return g("aten::cumsum", t, rng.randrange(t.ndim), None) if t.ndim else None


def barrier(g: Graph, t: Tensor, pool: list[Tensor], rng: Choice) -> Tensor | None:
    if t.memory[0] == "temporary":
        g.opaque([t], [t])
    return None


MAKERS: list[Maker] = [
    *[unary] * 6,
    *[binary] * 6,
    permuted,
    *[reshaped] * 2,
    sliced,
    copied,
    *[reduced] * 3,
    softmax,
    normalized,
    product,
    overwritten,
    concatenated,
    dropped,
    looked_up,
    running,
    barrier,
]


def random_graph(rng: Choice, steps: int = 12) -> Graph:
    """A graph of a few steps over tensors of related shapes; some of its results are kept."""
    g = Graph()
    n, m, k = (
        g.size(f"s{number}", extent) if rng.random() < 0.4 else extent
        for number, extent in enumerate((rng.choice([2, 3, 5]), rng.choice([4, 20, 33]), rng.choice([2, 16])))
    )
    shapes = [(n, m), (n, m, k), (m,), (n, 1), (k, m), (n * m,), (m, n), (n, k, m)]
    pool = [g.input(rng.choice(shapes), rng.choice([float32, float32, bfloat16])) for _ in range(4)]
    for _ in range(steps):
        made = rng.choice(MAKERS)(g, rng.choice(pool[-6:]), pool, rng)
        if made is not None:
            pool.append(made)
    results = [t for t in pool if t.memory[0] == "temporary"]
    g.keep(*(t for t in results if rng.random() < 0.25), *results[-1:])
    return g


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    st.randoms(use_true_random=False),
    st.sampled_from([FusionLimits(), FusionLimits(pointers=5), FusionLimits(local_bytes=32)]),
)
def test_fused_and_apart_agree(rng: Choice, limits: FusionLimits) -> None:
    g = random_graph(rng)
    with np.errstate(all="ignore"):
        g.check(limits=limits)
        for other in (3, 7):
            sizes = {name: other + number for number, name in enumerate(g.trace.symbols)}
            if sizes and g.holds(sizes):
                g.check(sizes=sizes, limits=limits)


def compiled(kernels: list[Kernel]) -> dict[Kernel, Compiled]:
    """Each kernel as a target would run it; one library for those of the general emitter."""
    target, flags = host_target(), ("-O1",)
    found = dict(zip(kernels, compile_kernels([simplify(kernel) for kernel in kernels], target, flags)))
    for kernel in kernels:
        if any(isinstance(stmt, Contract) for stmt in kernel.body):
            packed = compile_packed(simplify(kernel), target, flags)
            if packed is not None:
                found[kernel] = packed
    return found


@pytest.mark.parametrize("first", [0, 8])
def test_compiled_kernels_agree_fused_and_apart(first: int) -> None:
    graphs = [random_graph(random.Random(seed)) for seed in range(first, first + 8)]
    for g in graphs:
        g.steps = [step for step in g.steps if isinstance(step, Launch)]
    programs = [(g, g.steps, g.fused(symbols=dict.fromkeys(g.trace.symbols, (2, None))).steps) for g in graphs]
    every = [step.kernel for _, apart, fused in programs for step in (*apart, *fused)]  # type: ignore[union-attr]
    made = compiled(list(dict.fromkeys(every)))  # type: ignore[arg-type]
    for g, apart, fused in programs:
        results = []
        for steps in (apart, fused):
            memories = g.arrays()
            for step in steps:
                assert isinstance(step, Launch)
                made[step.kernel].run(*arguments(step, memories, dict(g.trace.symbols)))  # type: ignore[index]
            results.append(memories)
        for memory in sorted(g.kept | {t.memory for t in g.inputs}):
            one, two = (memories[memory] for memories in results)
            same = (one == two) | ((one != one) & (two != two))
            assert same.all(), memory
