"""Fusion of launches: which chains become one kernel, which rule keeps others apart, and the same bits always."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest

from bringup.graph import fusion
from bringup.graph.fusion import Fused, Limits, fuse_steps
from bringup.ir.dtypes import bfloat16, boolean, float16, float32, int64
from bringup.ir.index import FloorDiv, Int, Mod, atoms
from bringup.ir.kernel import Contract, Kernel, Loop, Reduce, Store, statements
from bringup.ir.printer import kernel_text
from bringup.lowering.call import ForeignKernel, Launch, Tensor
from bringup.lowering.symbolic import IntLike
from bringup.targets.c_contract_form import recognise
from tests.unit.graph_by_hand import Graph

COLUMNS = 40


@pytest.fixture(params=["static", "symbolic"])
def rows(request: pytest.FixtureRequest) -> Callable[[Graph], IntLike]:
    """The number of rows: 6, or a size of the graph that is 6 in this call."""
    return lambda g: g.size("s0", 6) if request.param == "symbolic" else 6


Rows = Callable[[Graph], IntLike]


def both_sizes(g: Graph, expected: int, **options: Any) -> Fused:
    """Checks the graph as it was traced and, if it has sizes, for other ones."""
    for sizes in (dict.fromkeys(g.trace.symbols, 9), dict.fromkeys(g.trace.symbols, 2)):
        if sizes and g.holds(sizes):
            g.check(expected, sizes, **options)
    return g.check(expected, **options)


def kernels(fused: Fused) -> list[Kernel]:
    found = []
    for step in fused.steps:
        assert isinstance(step, Launch)
        assert isinstance(step.kernel, Kernel)
        found.append(step.kernel)
    return found


def stores(kernel: Kernel) -> list[Store]:
    return [stmt for stmt in statements(kernel.body) if isinstance(stmt, Store)]


def layer_norm(g: Graph, x: Tensor) -> list[Tensor]:
    n, width = x.shape
    outs = [((n, width), None), ((n, 1), None), ((n, 1), None)]
    return g.many("aten::native_layer_norm", x, [width], g.input((width,)), g.input((width,)), 1e-5, outs=outs)


def refusals(fused: Fused) -> set[int]:
    return {decision.rule for decision in fused.decisions if not decision.fused}


# ---- pointwise ----


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


# ---- rows ----


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
    (kernel,) = kernels(both_sizes(g, 1, limits=Limits(local_bytes=64)))
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


# ---- contractions ----


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
    """The scale of a channel is dear, but one value for all positions: computed before the loop over them."""
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


# ---- reductions ----


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
    assert refusals(both_sizes(g, 2)) == {2}


# ---- mutation ----


def test_a_write_to_an_input_joins_its_producer(rows: Rows) -> None:
    g = Graph()
    x = g.input((rows(g), COLUMNS))
    g.copy_into(x, g("aten::add.Tensor", g("aten::mul.Tensor", x, 0.5), x, 1.0))
    (kernel,) = kernels(both_sizes(g, 1))
    assert [buffer.role for buffer in kernel.buffers] == ["inout"]


def test_nobody_sees_the_new_value_too_early(rows: Rows) -> None:
    """The transposed reader wants the old input, other points of it: it is no part of the kernel that overwrites it."""
    g = Graph()
    n = rows(g)
    x, y = g.input((n, n)), g.input((n, n))
    old = g("aten::exp", x.permute([1, 0]), shape=(n, n))
    new = g("aten::mul.Tensor", g("aten::add.Tensor", x, old, 1.0), y)
    g.copy_into(x, new)
    g.keep(g("aten::sin", x))
    fused = both_sizes(g, 2)
    assert 3 in refusals(fused)


def test_a_value_is_not_computed_after_its_input_changed() -> None:
    g = Graph()
    x = g.input((6, COLUMNS))
    y = g("aten::mul.Tensor", x, 0.5)
    g.copy_into(x, g.input((6, COLUMNS)))
    g.keep(g("aten::sum.dim_IntList", y, [0], False, None, shape=(COLUMNS,)))
    g.check()


# ---- what stays apart, and why ----


def test_steps_that_are_no_kernels_are_barriers(rows: Rows) -> None:
    g = Graph()
    x = g.input((rows(g), COLUMNS))
    y = g("aten::exp", x)
    g.opaque([y], [y])
    z = g("aten::sin", y)
    g.keep(z)
    both_sizes(g, 3)
    unrelated = g("aten::cos", g.input((3,)))
    g.keep(unrelated)
    both_sizes(g, 4)


def test_foreign_kernels_are_barriers() -> None:
    g = Graph()
    x = g.input((6, COLUMNS))
    y = g("aten::exp", x)
    foreign = ForeignKernel("theirs", "", (), (), Int(1), Int(1), Int(1))
    g.steps.append(Launch(foreign, (y,), (), ()))
    g.keep(g("aten::sin", y))
    fused = fuse_steps(g.steps, g.kept)
    assert [step.kernel.name for step in fused.steps if isinstance(step, Launch)] == ["exp", "theirs", "sin"]


def test_sizes_that_are_equal_by_chance_do_not_count() -> None:
    g = Graph()
    a, b = g.size("a", 6), g.size("b", 6)
    x = g("aten::exp", g.input((a, COLUMNS)))
    same = Tensor(x.memory, x.dtype, (b, COLUMNS), (COLUMNS, 1))
    g.keep(g("aten::sin", same, shape=(b, COLUMNS)), x)
    assert refusals(g.check(2)) == {4}


def test_pointers_are_limited() -> None:
    g = Graph()
    x = g.input((6, COLUMNS))
    for _ in range(5):
        x = g("aten::add.Tensor", x, g.input((6, COLUMNS)), 1.0)
    g.keep(x)
    assert refusals(g.check(3, limits=Limits(pointers=4))) == {6}
    for step in g.fused(limits=Limits(pointers=4)).steps:
        assert isinstance(step, Launch)
        assert len(step.buffers) <= 4


def test_a_dear_value_is_not_computed_again_for_a_broadcast(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    scale = g("aten::exp", g.input((COLUMNS,)))
    g.keep(g("aten::mul.Tensor", g.input((n, COLUMNS)), scale))
    assert 2 in refusals(both_sizes(g, 2))


def test_row_reductions_and_column_reductions_share_no_kernel(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    x = g.input((n, COLUMNS))
    row = g("aten::sum.dim_IntList", x, [1], True, None, shape=(n, 1))
    column = g("aten::sum.dim_IntList", x, [0], True, None, shape=(1, COLUMNS))
    g.keep(g("aten::add.Tensor", row, column, 1.0, shape=(n, COLUMNS)))
    assert 1 in refusals(both_sizes(g, 2))


def test_one_grid_point_does_not_do_all_the_work() -> None:
    g = Graph()
    x = g.input((1 << 15,))
    total = g("aten::sum", x, None, shape=())
    g.keep(g("aten::div.Tensor", x, total))
    assert refusals(g.check(2)) <= {1, 2}


def test_rows_that_are_columns_stay_apart() -> None:
    """One gather instead of another is fine, three instead of one are not."""
    g = Graph()
    x = g("aten::mul.Tensor", g("aten::add.Tensor", g.input((40, 48)), g.input((40, 48)), 1.0), g.input((40, 48)))
    g.keep(g("aten::clone", x.permute([1, 0]), 0, shape=(48, 40)))
    assert refusals(g.check(2)) == {1}


def test_a_step_in_between_keeps_its_neighbours_apart(rows: Rows) -> None:
    """exp → mm → add, and exp → add: exp and add in one kernel would wait for each other."""
    g = Graph()
    n = rows(g)
    x = g("aten::exp", g.input((n, 40)))
    m = g("aten::mm", x, g.input((40, 40)), shape=(n, 40))
    g.opaque([m], [m])
    g.keep(g("aten::add.Tensor", x, m, 1.0))
    assert 3 in refusals(both_sizes(g, 4))


# ---- the whole ----


def block(g: Graph, x: Tensor, n: IntLike) -> Tensor:
    """A layer of a transformer, without its attention."""
    y, *_ = layer_norm(g, x)
    h = g("aten::addmm", g.input((80,)), y, g.input((COLUMNS, 80)), 1.0, 1.0, shape=(n, 80))
    f = g("aten::gelu", h, "none")
    f = g("aten::addmm", g.input((COLUMNS,)), f, g.input((80, COLUMNS)), 1.0, 1.0, shape=(n, COLUMNS))
    return g("aten::add.Tensor", x, f, 1.0)


def test_layers_share_their_kernels(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    x = g.input((n, COLUMNS))
    for _ in range(4):
        x = block(g, x, n)
    g.keep(x)
    fused = both_sizes(g, 12)
    assert len({kernel_text(kernel) for kernel in kernels(fused)}) == 3


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(fusion.__path__)])
def test_examples_in_the_sources(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"bringup.graph.fusion.{name}")).failed == 0


def test_fusion_is_deterministic_and_leaves_no_guards(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    g.keep(block(g, g.input((n, COLUMNS)), n))
    guards = list(g.trace.guards)
    one, two = g.fused(), g.fused()
    assert [kernel_text(k) for k in kernels(one)] == [kernel_text(k) for k in kernels(two)]
    assert (one.decisions, one.origins) == (two.decisions, two.origins)
    assert g.trace.guards == guards


def test_what_is_not_fused_is_the_launch_that_was_given() -> None:
    g = Graph()
    g.keep(g("aten::exp", g.input((3,))), g("aten::sum", g.input((5000, 3)), None, shape=()))
    fused = g.check(2)
    assert all(any(step is given for given in g.steps) for step in fused.steps)
    assert fused.origins == ((0,), (1,))


def test_dead_steps_disappear_unless_they_check_indices() -> None:
    g = Graph()
    x = g.input((6, COLUMNS))
    g("aten::exp", x)
    g.keep(g("aten::sin", x))
    (kernel,) = kernels(g.check(1))
    assert kernel.name.endswith("sin")
    g = Graph()
    table, where = g.input((4, COLUMNS)), g.input((6,), int64)
    g("aten::embedding", table, where, -1, False, False, shape=(6, COLUMNS))
    g.check(1)


def test_kernels_have_no_names_that_the_language_lacks(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    g.keep(block(g, g.input((n, COLUMNS)), n))
    for kernel in kernels(g.fused()):
        assert ":" not in "".join(size.name for size in kernel.sizes)
        assert not any(":" in getattr(atom, "name", "") for axis in kernel.axes for atom in atoms(axis.extent))
