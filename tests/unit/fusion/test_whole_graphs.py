"""Fusion of whole graphs: shared kernels, the same result every time, nothing lost."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from bringup.graph import fusion
from bringup.ir.dtypes import int64
from bringup.ir.index import atoms
from bringup.ir.printer import kernel_text
from bringup.lowering.call import Tensor
from bringup.lowering.symbolic import IntLike
from tests.unit.fusion.fusing import COLUMNS, Rows, both_sizes, kernels, layer_norm
from tests.unit.graph_by_hand import Graph


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
