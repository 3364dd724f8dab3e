"""Offloading in an FX graph: runs of neighbouring chosen nodes become one unit, so what is between them stays there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.fx import GraphModule, Node
from torch.fx.passes.split_module import split_module

from bringup.offloading.table import Selection, is_glue
from bringup.offloading.unit import Unit
from bringup.offloading.weights import Weights

#: They are no step of the program: a run of nodes goes on behind them.
_TRANSPARENT = ("placeholder", "get_attr", "output")


def runs_of(module: GraphModule, chosen: Selection) -> list[tuple[list[Node], tuple[str, ...]]]:
    """Returns the nodes of each unit and their ops: neighbours in the order of the program, which stays as it is."""
    runs: list[tuple[list[Node], list[str]]] = []
    pending: list[Node] = []  # glue, which joins the run only if a chosen node follows
    open_run = False
    for node in module.graph.nodes:
        if node.op in _TRANSPARENT:
            continue
        op = chosen.of_node(node, module)
        if op is not None and op.replacement is None:
            if not open_run:
                runs.append(([], []))
                open_run = True
            runs[-1][0].extend((*pending, node))
            runs[-1][1].append(op.name)
            pending = []
        elif open_run and is_glue(node):
            pending.append(node)
        else:
            pending, open_run = [], False
    return [(nodes, tuple(dict.fromkeys(ops))) for nodes, ops in runs]


def offload_graph(
    module: GraphModule, chosen: Selection, weights: Weights, min_flops: float, compiled: bool
) -> tuple[GraphModule, list[Unit]]:
    """Returns the graph with its units called in place of the nodes."""
    runs = runs_of(module, chosen)
    if not runs:
        return module, []
    place: dict[Node, int] = {node: 2 * n + 1 for n, (nodes, _) in enumerate(runs) for node in nodes}
    last = 0

    def part(node: Node) -> int:
        nonlocal last
        if node in place:
            last = place[node]
        elif node.op not in _TRANSPARENT:
            last += last % 2  # what follows a run on the CPU
        return last

    parts = {node: part(node) for node in module.graph.nodes}
    split = split_module(module, module, lambda node: parts[node], keep_original_order=True)
    units = []
    for number, (nodes, ops) in enumerate(runs):
        name = f"submod_{2 * number + 1}"
        body = split.get_submodule(name)
        title = str(nodes[0]) if len(nodes) == 1 else f"{nodes[0]} … {nodes[-1]}"
        unit = Unit(title, ops, body, weights, min_flops, _compiling(body) if compiled else None)
        setattr(split, name, _UnitModule(unit))
        units.append(unit)
    return split, units


class _UnitModule(nn.Module):
    """A unit as a module that a graph can call; the weights stay where the graph has them."""

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self.body = unit.body
        self._unit = unit

    def forward(self, *args: Any) -> Any:
        """Runs the unit."""
        return self._unit(*args)


def _compiling(body: nn.Module) -> Callable[..., Any]:
    """Returns what calls a unit's graph as kernels of the device: compiled when it is first used there."""
    from bringup.graph.compile.backend import Backend

    def call(state: dict[str, torch.Tensor], args: Any, kwargs: Any) -> Any:
        return functional_call(body, state, args, kwargs)

    return torch.compile(call, backend=Backend()) if hasattr(torch, "compile") else call
