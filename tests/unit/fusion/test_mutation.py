"""Inputs that are written to: the old value where it is wanted, the new one afterwards."""

from __future__ import annotations

from bringup.graph.fusion.steps import Rule
from tests.unit.fusion.fusing import COLUMNS, Rows, both_sizes, kernels, refusals
from tests.unit.graph_by_hand import Graph


def test_a_write_to_an_input_joins_its_producer(rows: Rows) -> None:
    g = Graph()
    x = g.input((rows(g), COLUMNS))
    g.copy_into(x, g("aten::add.Tensor", g("aten::mul.Tensor", x, 0.5), x, 1.0))
    (kernel,) = kernels(both_sizes(g, 1))
    assert [buffer.role for buffer in kernel.buffers] == ["inout"]


def test_nobody_sees_the_new_value_too_early(rows: Rows) -> None:
    """The transposed reader wants the old input, other points of it: it stays out of the kernel that overwrites it."""
    g = Graph()
    n = rows(g)
    x, y = g.input((n, n)), g.input((n, n))
    old = g("aten::exp", x.permute([1, 0]), shape=(n, n))
    new = g("aten::mul.Tensor", g("aten::add.Tensor", x, old, 1.0), y)
    g.copy_into(x, new)
    g.keep(g("aten::sin", x))
    fused = both_sizes(g, 2)
    assert Rule.ORDER in refusals(fused)


def test_a_value_is_not_computed_after_its_input_changed() -> None:
    g = Graph()
    x = g.input((6, COLUMNS))
    y = g("aten::mul.Tensor", x, 0.5)
    g.copy_into(x, g.input((6, COLUMNS)))
    g.keep(g("aten::sum.dim_IntList", y, [0], False, None, shape=(COLUMNS,)))
    g.check()
