"""Chains of pointwise ops become one kernel, through views, broadcasts and half types."""

from __future__ import annotations

import pytest

from bringup.ir.dtypes import bfloat16, boolean, float16
from bringup.ir.index import FloorDiv, Mod
from bringup.lowering.call import Launch
from tests.unit.fusion.fusing import COLUMNS, Rows, both_sizes, kernels, stores
from tests.unit.graph_by_hand import Graph


def test_a_chain_is_one_kernel_without_its_middle(rows: Rows) -> None:
    g = Graph()
    x = g.input((rows(g), COLUMNS))
    y = g("aten::exp", g("aten::mul.Tensor", g("aten::relu", x), x))
    g.keep(y)
    (kernel,) = kernels(both_sizes(g, 1))
    assert {buffer.role for buffer in kernel.buffers} == {"in", "out"}
    assert len(kernel.buffers) == 2
    assert len(kernel.axes) == 1, "equal contiguous tensors stay one long axis"


def test_the_flat_kernel_takes_the_axes_of_the_broadcast_one(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    x = g("aten::relu", g.input((n, COLUMNS)))
    y = g("aten::add.Tensor", x, g.input((COLUMNS,)), 1.0)
    g.keep(g("aten::exp", y))
    (kernel,) = kernels(both_sizes(g, 1))
    assert len(kernel.axes) == 2
    indices = [index for buffer in stores(kernel) for index in buffer.indices]
    assert not any(isinstance(index, (FloorDiv, Mod)) for index in indices)


@pytest.mark.parametrize("dims", [[1, 0, 2], [2, 1, 0], [0, 2, 1]])
def test_permuted_views(rows: Rows, dims: list[int]) -> None:
    g = Graph()
    n = rows(g)
    x = g("aten::relu", g.input((n, 4, 10)))
    view = x.permute(dims)
    g.keep(g("aten::exp", view, shape=view.shape))
    both_sizes(g, 1)


def test_reshape_between(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    x = g("aten::add.Tensor", g.input((n, 4, 10)), g.input((10,)), 1.0)
    flat = x.view((n, 40), (40, 1))
    g.keep(g("aten::mul.Tensor", flat, g.input((40,))))
    (kernel,) = kernels(both_sizes(g, 1))
    assert len(kernel.axes) == 3


def test_slices_are_computed_where_they_are_read(rows: Rows) -> None:
    """A gated unit: two halves of one result meet."""
    g = Graph()
    n = rows(g)
    x = g("aten::exp", g.input((n, 96)))
    left, right = x.narrow(1, 0, 48), x.narrow(1, 48, 48)
    g.keep(g("aten::mul.Tensor", left, right, shape=(n, 48)))
    both_sizes(g, 1)


def test_functions_are_not_cut_into_short_rows(rows: Rows) -> None:
    for op, expected in (("aten::exp", 2), ("aten::neg", 1)):
        g = Graph()
        n = rows(g)
        g.keep(g("aten::add.Tensor", g(op, g.input((n, 10))), g.input((10,)), 1.0))
        both_sizes(g, expected)


def test_halves_and_bools_are_rounded_as_in_memory(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    for dtype in (float16, bfloat16):
        x = g.input((n, COLUMNS), dtype)
        y = g("aten::mul.Tensor", g("aten::exp", x), x)
        truth = g("aten::gt.Tensor", y, x, dtype=boolean)
        g.keep(g("aten::where.self", truth, y, x, dtype=dtype))
    both_sizes(g, 1)  # small kernels of one shape


def test_a_producer_with_several_users_is_stored_only_if_needed(rows: Rows) -> None:
    g = Graph()
    x = g.input((rows(g), COLUMNS))
    y = g("aten::exp", x)
    z = g("aten::mul.Tensor", g("aten::sin", y), g("aten::cos", y))
    g.keep(z)
    (kernel,) = kernels(both_sizes(g, 1))
    assert len(stores(kernel)) == 1
    g.keep(y)
    (kernel,) = kernels(both_sizes(g, 1))
    assert len(stores(kernel)) == 2
    assert {buffer.role for buffer in kernel.buffers} == {"in", "out"}


def test_siblings_read_their_input_once(rows: Rows) -> None:
    g = Graph()
    x = g.input((rows(g), COLUMNS))
    g.keep(g("aten::exp", x), g("aten::sin", x))
    (kernel,) = kernels(both_sizes(g, 1))
    assert len(kernel.buffers) == 3


def test_optimizer_steps(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    for _ in range(3):
        p, grad, m, v = (g.input((n, COLUMNS)) for _ in range(4))
        m2 = g("aten::add.Tensor", g("aten::mul.Tensor", m, 0.9), g("aten::mul.Tensor", grad, 0.1), 1.0)
        v2 = g("aten::addcmul", g("aten::mul.Tensor", v, 0.99), grad, grad, 0.01)
        root = g("aten::add.Tensor", g("aten::sqrt", g("aten::abs", v2)), 1e-8, 1.0)
        new = g("aten::addcdiv", p, m2, root, -0.001)
        for old, fresh in ((m, m2), (v, v2), (p, new)):
            g.copy_into(old, fresh)
    fused = both_sizes(g, 1)
    (kernel,) = kernels(fused)
    assert len(kernel.buffers) == 12, "one update is four tensors, changed where they lie"
    assert fused.origins == (tuple(range(len(g.steps))),)


def test_random_numbers_stay_those_of_their_call(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    x = g.input((n, COLUMNS))
    outs = [(None, None), (None, boolean)]
    y, mask = g.many("aten::native_dropout", x, 0.5, True, outs=outs)
    z, other = g.many("aten::native_dropout", g("aten::exp", y), 0.25, True, outs=outs)
    g.keep(z, mask, other)
    (step,) = both_sizes(g, 1).steps
    assert isinstance(step, Launch)
    named = [given for given in step.params if isinstance(given, str)]
    assert sorted(named) == ["offset:0", "offset:1", "seed:0", "seed:1"]


@pytest.mark.parametrize("pads", [[1, 2], [0, 3]])
def test_two_axes_over_one_stride_stay_two_axes(pads: list[int]) -> None:
    """A column of 4 padded to rows of 4: both axes of the padded grid step by 1 through the column."""
    g = Graph()
    x = g.input((4, 1))
    g.keep(g("aten::exp", x))
    g.keep(g("aten::constant_pad_nd", x, pads, 0.0, shape=(4, 4)))
    both_sizes(g, 2)
