"""What tests of fusion share: both sizes of a graph, what is in the kernels, which rules refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bringup.graph.fusion import Fused
from bringup.graph.fusion.steps import Rule
from bringup.ir.kernel import Kernel, Store, statements
from bringup.lowering.call import Launch, Tensor
from bringup.lowering.symbolic import IntLike
from tests.unit.graph_by_hand import Graph

COLUMNS = 40

#: The number of rows of a graph.
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


def refusals(fused: Fused) -> set[Rule]:
    return {decision.rule for decision in fused.decisions if not decision.fused}
