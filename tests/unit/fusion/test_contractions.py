"""Matrix products and convolutions: what joins them in front and behind."""

from __future__ import annotations

from bringup.ir.contraction_form import recognise
from bringup.ir.dtypes import bfloat16, float32
from bringup.ir.kernel import Contract
from tests.unit.fusion.fusing import COLUMNS, Rows, both_sizes, kernels, stores
from tests.unit.graph_by_hand import Graph


def test_epilogues_of_a_matrix_product(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    m = g("aten::mm", g.input((n, 24)), g.input((24, COLUMNS)), shape=(n, COLUMNS))
    h = g("aten::add.Tensor", m, g.input((COLUMNS,)), 1.0)
    y = g("aten::add.Tensor", g("aten::gelu", h, "none"), g.input((n, COLUMNS)), 1.0)
    g.keep(h, y)
    (kernel,) = kernels(both_sizes(g, 1))
    form = recognise(kernel)
    assert form is not None
    assert form.rows.affine is not None
    assert form.columns.affine is not None
    assert len(stores(kernel)) == 2


def test_heads_are_stored_transposed(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    bias, a, b = g.input((COLUMNS,)), g.input((n, 24)), g.input((24, COLUMNS))
    m = g("aten::addmm", bias, a, b, 1.0, 1.0, shape=(n, COLUMNS))
    by_head = m.view((n, 5, 8), (COLUMNS, 8, 1)).permute([1, 0, 2])
    g.keep(g("aten::clone", by_head, 0, shape=(5, n, 8)))
    (kernel,) = kernels(both_sizes(g, 1))
    assert recognise(kernel) is not None


def test_convolution_scale_and_activation(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    x, w, b = g.input((n, 3, 8, 8)), g.input((5, 3, 3, 3)), g.input((5,))
    options = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    c = g("aten::convolution_overrideable", x, w, b, *options, shape=(n, 5, 8, 8))
    g.keep(g("aten::relu", g("aten::mul.Tensor", c, g.input((5, 1, 1)))))
    (kernel,) = kernels(both_sizes(g, 1))
    assert recognise(kernel) is not None


def test_an_operand_of_the_epilogue_comes_along(rows: Rows) -> None:
    """What is added to a product is made at the same point; what is multiplied is not."""
    g = Graph()
    n = rows(g)
    added = g("aten::mul.Tensor", g.input((n, COLUMNS)), 0.5)
    m = g("aten::addmm", added, g.input((n, 24)), g.input((24, COLUMNS)), 1.0, 1.0, shape=(n, COLUMNS))
    g.keep(m, added)
    (kernel,) = kernels(both_sizes(g, 1))
    assert recognise(kernel) is not None


def test_only_conversions_go_into_factors(rows: Rows) -> None:
    for op, expected in (("aten::clone", 1), ("aten::exp", 2)):
        g = Graph()
        n = rows(g)
        half = g.input((n, 24), bfloat16)
        x = g(op, half, None, dtype=float32) if op == "aten::clone" else g(op, half, dtype=float32)
        g.keep(g("aten::mm", x, g.input((24, COLUMNS)), shape=(n, COLUMNS)))
        # With 32 lanes both factors must lie along k: from nine rows on there is one lane.
        if op == "aten::clone" and g.trace.guards:
            continue
        fused = both_sizes(g, expected)
        assert any(isinstance(stmt, Contract) for stmt in kernels(fused)[-1].body)


def test_batch_norm_goes_into_the_convolution(rows: Rows) -> None:
    """The scale of a channel is expensive, but one value for all positions: computed before the loop over them."""
    g = Graph()
    n = rows(g)
    x, w = g.input((n, 8, 8, 8)), g.input((8, 8, 3, 3))
    options = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    c = g("aten::convolution_overrideable", x, w, *options, shape=(n, 8, 8, 8))
    scale = g("aten::mul.Tensor", g("aten::rsqrt", g("aten::abs", g.input((8, 1, 1)))), g.input((8, 1, 1)))
    y = g("aten::add.Tensor", g("aten::mul.Tensor", c, scale), g.input((8, 1, 1)), 1.0)
    g.keep(g("aten::relu", g("aten::add.Tensor", y, x, 1.0)))
    if g.trace.symbols:
        g.check(1)  # how many steps a value serves is a question of the sizes at hand
    else:
        (kernel,) = kernels(both_sizes(g, 1))
        assert recognise(kernel) is not None


def test_the_square_of_a_norm_is_computed_by_the_norm(rows: Rows) -> None:
    """The sum is in memory anyway: the product's kernel does not store its square beside it."""
    g = Graph()
    n = rows(g)
    m = g("aten::mm", g.input((n, 24)), g.input((24, COLUMNS)), shape=(n, COLUMNS))
    x = g("aten::add.Tensor", m, g.input((n, COLUMNS)), 1.0)
    v = g("aten::mean.dim", g("aten::pow.Tensor_Scalar", x, 2.0), [-1], True, None, shape=(n, 1))
    r = g("aten::rsqrt", g("aten::add.Tensor", v, 1e-5, 1.0))
    g.keep(x, g("aten::mul.Tensor", x, r))
    product, _ = kernels(both_sizes(g, 2))
    assert len(stores(product)) == 1
