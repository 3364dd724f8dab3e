"""What depends on constants only is computed once, when a model is exported: its results become constants.

A view of a constant costs nothing when the model runs, so it stays a view.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from bringup.graph.passes import Facts

#: A folded tensor may be this many times as large as the parameters it is made of; small ones always may be folded.
GROWTH = 4
SMALL = 1 << 16


def fold_constants(graph: Graph, facts: Facts) -> None:
    """What depends on constants only is computed once and becomes a constant."""
    constants = facts.constants or {}
    folding = _Folding(graph, facts.fixed)
    folding.evaluate()
    made = folding.rewrite()
    graph.eliminate_dead_code()
    left: dict[str, Tensor] = {}
    for node in list(graph.nodes):
        if node.op == "placeholder" and (node.name in constants or node.name in made):
            if node.users or node.name in facts.state:
                left[node.name] = made[node.name] if node.name in made else constants[node.name]
            else:
                graph.erase_node(node)
    facts.constants = left


class _Folding:
    def __init__(self, graph: Graph, constants: Mapping[str, Tensor]) -> None:
        self._graph, self._constants = graph, constants
        self._values: dict[Node, Any] = {}
        #: Storage → the node that made it.
        self._makers: dict[int, Node] = {}
        #: Bytes of parameters that a node's value is made of.
        self._weight: dict[Node, int] = {}

    def evaluate(self) -> None:
        """Values of all nodes that follow from constants, by ordinary ops on the device."""
        for node in self._graph.nodes:
            if node.op == "placeholder" and node.name in self._constants:
                value: Any = self._constants[node.name]
                self._weight[node] = value.numel() * value.itemsize
            elif node.op == "call_function" and self._is_constant(node):
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: self._values[n])
                value = node.target(*args, **kwargs)
                self._weight[node] = sum(self._weight[n] for n in node.all_input_nodes)
            else:
                continue
            self._values[node] = value
            if isinstance(value, Tensor):
                self._makers.setdefault(value.untyped_storage()._cdata, node)

    def _is_constant(self, node: Node) -> bool:
        if not all(n in self._values for n in node.all_input_nodes):
            return False
        if node.target is operator.getitem:
            return True
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
            return False
        symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
        if any(isinstance(value, symbolic) for value in torch.utils._pytree.tree_leaves(node.meta.get("val"))):
            return False
        return torch.Tag.nondeterministic_seeded not in target.tags

    def rewrite(self) -> dict[str, Tensor]:
        """Puts placeholders in the place of computed constants."""
        wanted: dict[Node, None] = {}
        for node in self._graph.nodes:
            if node not in self._values and node.op != "placeholder":
                for source in node.all_input_nodes:
                    if source in self._values:
                        self._want(source, wanted)
        first = next(iter(self._graph.nodes))
        made: dict[str, Tensor] = {}
        for node in wanted:
            with self._graph.inserting_before(first):
                placeholder = self._graph.placeholder(f"folded_{node.name}")
            placeholder.meta = {key: node.meta[key] for key in ("val", "called") if key in node.meta}
            node.replace_all_uses_with(placeholder)
            made[placeholder.name] = _laid_out(self._values[node], node.meta["val"])
        return made

    def _want(self, node: Node, wanted: dict[Node, None]) -> None:
        """Notes which computed constant a use needs: behind views it is what they show."""
        if node.op == "placeholder" or node in wanted:
            return
        value = self._values[node]
        own = isinstance(value, Tensor) and self._makers.get(value.untyped_storage()._cdata) is node
        if own and self._weight[node] > 0:
            nbytes = value.numel() * value.itemsize
            if nbytes <= max(SMALL, GROWTH * self._weight[node]):
                wanted[node] = None
                return
        for source in node.all_input_nodes:
            self._want(source, wanted)


def _laid_out(value: Tensor, traced: Tensor) -> Tensor:
    """The value with the strides that the graph was traced with."""
    strides = tuple(int(stride) for stride in traced.stride())
    if value.stride() == strides:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)
