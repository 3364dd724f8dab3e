"""Ops over rows (norms, softmax, losses) with what is before and behind them."""

from __future__ import annotations

from bringup.ir.dtypes import boolean, int64
from bringup.ir.kernel import Loop, Reduce, statements
from bringup.targets.target import FusionLimits
from tests.unit.fusion.fusing import COLUMNS, Rows, both_sizes, kernels, layer_norm, stores
from tests.unit.graph_by_hand import Graph


def test_residual_and_layer_norm(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    s = g("aten::add.Tensor", g.input((n, COLUMNS)), g.input((n, COLUMNS)), 1.0)
    y, *_ = layer_norm(g, s)
    g.keep(y)
    (kernel,) = kernels(both_sizes(g, 1))
    assert not kernel.locals, "a sum is cheap: computed in every pass"
    assert len(stores(kernel)) == 1, "nobody wants mean and deviation"
    g.keep(s)
    (kernel,) = kernels(both_sizes(g, 1))
    assert [buffer.role for buffer in kernel.buffers].count("inout") == 1, "kept rows are read back"


def test_a_dear_prologue_is_kept_for_the_passes_over_its_row(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    y, *_ = layer_norm(g, g("aten::gelu", g.input((n, COLUMNS)), "none"))
    g.keep(y)
    (kernel,) = kernels(both_sizes(g, 1))
    assert [local.shape for local in kernel.locals] == [(COLUMNS,)]
    (kernel,) = kernels(both_sizes(g, 1, limits=FusionLimits(local_bytes=64)))
    assert not kernel.locals
    assert "inout" in [buffer.role for buffer in kernel.buffers]


def test_softmax_with_what_is_around_it(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    x = g("aten::mul.Tensor", g.input((n, COLUMNS)), 0.125)
    p = g("aten::_softmax", g("aten::add.Tensor", x, g.input((n, COLUMNS)), 1.0), -1, False)
    outs = [(None, None), (None, boolean)]
    y, mask = g.many("aten::native_dropout", p, 0.5, True, outs=outs)
    g.keep(p, mask, g("aten::mul.Tensor", y, g.input((n, COLUMNS))))
    (kernel,) = kernels(both_sizes(g, 1))
    assert sum(isinstance(stmt, Loop) for stmt in statements(kernel.body)) == 1, "one loop stores all three"


def test_softmax_over_a_middle_dimension(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    x = g("aten::mul.Tensor", g.input((n, 8, 20)), 0.5)
    g.keep(g("aten::exp", g("aten::_softmax", x, 1, False)))
    both_sizes(g, 1)


def test_a_norm_written_by_hand(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    x = g.input((n, COLUMNS))
    d = g("aten::sub.Tensor", x, g("aten::mean.dim", x, [-1], True, None, shape=(n, 1)), 1.0)
    v = g("aten::mean.dim", g("aten::pow.Tensor_Scalar", d, 2.0), [-1], True, None, shape=(n, 1))
    r = g("aten::rsqrt", g("aten::add.Tensor", v, 1e-5, 1.0))
    g.keep(g("aten::mul.Tensor", g("aten::mul.Tensor", d, r), g.input((COLUMNS,))))
    (kernel,) = kernels(both_sizes(g, 1))
    shape = [type(stmt) for stmt in kernel.body if isinstance(stmt, (Reduce, Loop))]
    assert shape == [Reduce, Reduce, Loop]
    assert not kernel.locals


def test_row_sum_and_divide(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    x = g.input((n, COLUMNS))
    g.keep(g("aten::div.Tensor", x, g("aten::sum.dim_IntList", x, [-1], True, None, shape=(n, 1))))
    both_sizes(g, 1)


def test_cross_entropy_computes_only_the_logarithms_it_wants(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    x = g("aten::_log_softmax", g.input((n, COLUMNS)), 1, False)
    outs = [((), None), ((), None)]
    g.keep(*g.many("aten::nll_loss_forward", x, g.input((n,), int64), None, 1, -100, outs=outs))
    first, _ = kernels(both_sizes(g, 2))
    assert not any(isinstance(stmt, Loop) for stmt in statements(first.body)), "one element of each row"
    assert not first.locals


def test_embedding_and_layer_norm(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    e = g("aten::embedding", g.input((4, COLUMNS)), g.input((n,), int64), -1, False, False, shape=(n, COLUMNS))
    y, *_ = layer_norm(g, g("aten::add.Tensor", e, g.input((n, COLUMNS)), 1.0))
    g.keep(y)
    both_sizes(g, 1)


def test_a_kept_index_of_a_kept_row(rows: Rows) -> None:
    """Scores, the best of them, and what stands there: places that are values which the same kernel made."""
    g = Graph()
    n = rows(g)
    scores = g("aten::_softmax", g.input((n, COLUMNS)), -1, False)
    best = g("aten::argmax", scores, -1, True, shape=(n, 1), dtype=int64)
    found = g("aten::gather", g("aten::exp", scores), 1, best, False, shape=(n, 1))
    g.keep(best, found, scores)
    both_sizes(g, 1)
    g.kept -= {scores.memory, best.memory}
    both_sizes(g, 1)
