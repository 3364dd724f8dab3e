"""Sums over all elements and over columns take their inputs along."""

from __future__ import annotations

import pytest

from bringup.graph.fusion.steps import Rule
from tests.unit.fusion.fusing import COLUMNS, Rows, both_sizes, refusals
from tests.unit.graph_by_hand import Graph


def test_a_loss_reads_its_inputs_once(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    d = g("aten::sub.Tensor", g.input((n, COLUMNS)), g.input((n, COLUMNS)), 1.0)
    g.keep(g("aten::sum", g("aten::exp", d), None, shape=()))
    both_sizes(g, 1)


@pytest.mark.parametrize("symbolic", [False, True])
def test_the_parts_of_a_long_sum_compute_their_own_values(symbolic: bool) -> None:
    g = Graph()
    n = g.size("s0", 70000) if symbolic else 70000
    d = g("aten::sub.Tensor", g.input((n,)), g.input((n,)), 1.0)
    g.keep(g("aten::sum", g("aten::exp", d), None, shape=()))
    g.check(2)
    if symbolic:
        assert g.holds({"s0": 100001})
        g.check(2, {"s0": 100001})


def test_column_sums_of_a_product(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    p = g("aten::mul.Tensor", g.input((n, COLUMNS)), g.input((n, COLUMNS)))
    g.keep(g("aten::sum.dim_IntList", p, [0], False, None, shape=(COLUMNS,)))
    both_sizes(g, 1)


def test_column_sums_stay_apart_from_a_product_that_is_kept(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    p = g("aten::mul.Tensor", g.input((n, COLUMNS)), g.input((n, COLUMNS)))
    g.keep(p, g("aten::sum.dim_IntList", p, [0], False, None, shape=(COLUMNS,)))
    assert refusals(both_sizes(g, 2)) == {Rule.RECOMPUTE}
