"""What stays apart, and by which rule."""

from __future__ import annotations

from bringup.compile.kernels import ForeignKernel
from bringup.graph.fusion import fuse_steps
from bringup.graph.fusion.steps import Rule
from bringup.ir.index import Int
from bringup.lowering.call import Launch, Tensor
from bringup.targets.target import FusionLimits
from tests.unit.fusion.fusing import COLUMNS, Rows, both_sizes, refusals
from tests.unit.graph_by_hand import Graph


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
    assert refusals(g.check(2)) == {Rule.SIZES}


def test_pointers_are_limited() -> None:
    g = Graph()
    x = g.input((6, COLUMNS))
    for _ in range(5):
        x = g("aten::add.Tensor", x, g.input((6, COLUMNS)), 1.0)
    g.keep(x)
    assert refusals(g.check(3, limits=FusionLimits(pointers=4))) == {Rule.LIMITS}
    for step in g.fused(limits=FusionLimits(pointers=4)).steps:
        assert isinstance(step, Launch)
        assert len(step.buffers) <= 4


def test_a_target_says_what_is_cheap_and_how_long_kernels_are() -> None:
    g = Graph()
    scale = g("aten::reciprocal", g.input((COLUMNS,)))
    g.keep(g("aten::mul.Tensor", g.input((6, COLUMNS)), scale))
    assert refusals(g.check(2)) == {Rule.RECOMPUTE}
    g.check(1, limits=FusionLimits(slow=frozenset()))
    assert refusals(g.check(2, limits=FusionLimits(slow=frozenset(), statements=0))) == {Rule.LIMITS}


def test_a_dear_value_is_not_computed_again_for_a_broadcast(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    scale = g("aten::exp", g.input((COLUMNS,)))
    g.keep(g("aten::mul.Tensor", g.input((n, COLUMNS)), scale))
    assert Rule.RECOMPUTE in refusals(both_sizes(g, 2))


def test_row_reductions_and_column_reductions_share_no_kernel(rows: Rows) -> None:
    g = Graph()
    n = rows(g)
    x = g.input((n, COLUMNS))
    row = g("aten::sum.dim_IntList", x, [1], True, None, shape=(n, 1))
    column = g("aten::sum.dim_IntList", x, [0], True, None, shape=(1, COLUMNS))
    g.keep(g("aten::add.Tensor", row, column, 1.0, shape=(n, COLUMNS)))
    assert Rule.LOOPS in refusals(both_sizes(g, 2))


def test_one_grid_point_does_not_do_all_the_work() -> None:
    g = Graph()
    x = g.input((1 << 15,))
    total = g("aten::sum", x, None, shape=())
    g.keep(g("aten::div.Tensor", x, total))
    assert refusals(g.check(2)) <= {Rule.LOOPS, Rule.RECOMPUTE}


def test_rows_that_are_columns_stay_apart() -> None:
    """One gather instead of another is fine, three instead of one are not."""
    g = Graph()
    x = g("aten::mul.Tensor", g("aten::add.Tensor", g.input((40, 48)), g.input((40, 48)), 1.0), g.input((40, 48)))
    g.keep(g("aten::clone", x.permute([1, 0]), 0, shape=(48, 40)))
    assert refusals(g.check(2)) == {Rule.LOOPS}


def test_a_step_in_between_keeps_its_neighbours_apart(rows: Rows) -> None:
    """exp → mm → add, and exp → add: exp and add in one kernel would wait for each other."""
    g = Graph()
    n = rows(g)
    x = g("aten::exp", g.input((n, 40)))
    m = g("aten::mm", x, g.input((40, 40)), shape=(n, 40))
    g.opaque([m], [m])
    g.keep(g("aten::add.Tensor", x, m, 1.0))
    assert Rule.ORDER in refusals(both_sizes(g, 4))
