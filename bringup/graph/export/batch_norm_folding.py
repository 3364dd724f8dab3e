"""A batch norm in evaluation becomes part of the weights of the convolution or linear layer before it.

``(conv(x, w, b) - mean) * scale + shift`` is ``conv(x, w * scale, (b - mean) * scale + shift)``: nothing is left of it
when the model runs. The new weights are computed in float64 and rounded once, so the error against float64 stays what
it was; the bits do not, because products are rounded elsewhere. So this is a choice of the target, and of the user.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from bringup.graph.passes import Facts

_aten = torch.ops.aten
#: Types whose norms are folded: halves are widened around a norm, which is not the same.
_DTYPES = (torch.float32, torch.float64)


def fold_batch_norms(graph: Graph, facts: Facts) -> None:
    """A batch norm in evaluation becomes part of the weights before it, where the target or the user wants that.

    The new weights are ops on constants. A norm with other statistics stays.
    """
    constants = {name: facts.names.get(name, name) for name in facts.fixed}
    fixed = _fixed_nodes(graph, constants)
    folded = 0
    for node in list(graph.nodes):
        norm = _norm_after(node, fixed)
        if norm is not None:
            _Folding(graph, node).fold(norm, constants)
            folded += 1
    graph.eliminate_dead_code()
    facts.folded_norms += folded


@dataclass(frozen=True)
class _Norm:
    """The nodes of a norm behind a layer: (layer - mean) * scale + shift."""

    last: Node
    mean: Node
    scale: Node
    shift: Node | None


def _fixed_nodes(graph: Graph, constants: Mapping[str, str]) -> set[Node]:
    """Nodes whose values follow from constants alone."""
    fixed: set[Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            known = node.name in constants
        else:
            known = node.op == "call_function" and bool(node.all_input_nodes) and fixed.issuperset(node.all_input_nodes)
        if known:
            fixed.add(node)
    return fixed


def _norm_after(node: Node, fixed: set[Node]) -> _Norm | None:
    """The norm of a layer's result, if nothing else reads it; None if it is another node or cannot be folded."""
    if node.target not in (_aten.convolution.default, _aten.addmm.default, _aten.mm.default):
        return None
    weights = [node.args[1], node.args[2]] if node.target is _aten.convolution.default else _linear(node)
    if node in fixed or not all(one is None or one in fixed for one in weights):
        return None
    if node.target is _aten.convolution.default and node.args[6] and node.args[8] != 1:
        return None  # a transposed one with groups: its weights do not have the channels in one dimension
    if node.target is _aten.addmm.default and (node.kwargs or node.args[0].meta["val"].ndim != 1):  # type: ignore[union-attr]
        return None
    centred = _only_user(node, _aten.sub.Tensor, fixed)
    scaled = None if centred is None else _only_user(centred[0], _aten.mul.Tensor, fixed)
    if centred is None or scaled is None or node.meta["val"].dtype not in _DTYPES:
        return None
    shifted = _only_user(scaled[0], _aten.add.Tensor, fixed)
    parts = [centred[1], scaled[1], *([shifted[1]] if shifted else [])]
    if not all(_of_channels(part, node) for part in parts):
        return None
    return _Norm((shifted or scaled)[0], centred[1], scaled[1], shifted[1] if shifted else None)


def _linear(node: Node) -> list[Any]:
    """The matrix and the bias of a product."""
    return [node.args[2], node.args[0]] if node.target is _aten.addmm.default else [node.args[1], None]


def _only_user(node: Node, op: Any, fixed: set[Node]) -> tuple[Node, Node] | None:
    """The one node that reads a node, if it is ``op(node, constant)``, and that constant."""
    users = list(node.users)
    if len(users) != 1 or users[0].target is not op or users[0].kwargs or len(users[0].args) != 2:
        return None
    first, second = users[0].args
    return (users[0], second) if first is node and isinstance(second, Node) and second in fixed else None


def _of_channels(part: Node, layer: Node) -> bool:
    """Whether a constant has one number for each channel of a layer's result."""
    made, shown = layer.meta["val"], part.meta["val"]
    channel = 1 if layer.target is _aten.convolution.default else made.ndim - 1
    behind = made.ndim - channel - 1
    return tuple(shown.shape) == (made.shape[channel], *(1 for _ in range(behind))) and shown.dtype == made.dtype


class _Folding:
    """Writes the ops that compute one layer's new weights."""

    def __init__(self, graph: Graph, layer: Node) -> None:
        self.graph, self.layer = graph, layer
        self.dtype: torch.dtype = layer.meta["val"].dtype
        self.mode = getattr(layer.meta["val"], "fake_mode", None) or contextlib.nullcontext()

    def fold(self, norm: _Norm, constants: Mapping[str, str]) -> None:
        """The layer with scaled weights gives what the norm gave."""
        layer, call = self.layer, self.call
        is_convolution = layer.target is _aten.convolution.default
        given: list[Any] = [layer.args[1], layer.args[2]] if is_convolution else _linear(layer)
        weight, bias = given
        with self.graph.inserting_before(norm.last):  # all of its constants are there by then
            mean, scale = (call(_aten.view.default, self.wide(one), [-1]) for one in (norm.mean, norm.scale))
            across = scale
            if is_convolution:
                channel = 1 if layer.args[6] else 0
                dims = range(weight.meta["val"].ndim)
                across = call(_aten.view.default, scale, [-1 if d == channel else 1 for d in dims])
            new_weight = self.narrow(call(_aten.mul.Tensor, self.wide(weight), across))
            centred = call(_aten.neg.default, mean) if bias is None else call(_aten.sub.Tensor, self.wide(bias), mean)
            new_bias = call(_aten.mul.Tensor, centred, scale)
            if norm.shift is not None:
                new_bias = call(_aten.add.Tensor, new_bias, call(_aten.view.default, self.wide(norm.shift), [-1]))
            new_bias = self.narrow(new_bias)
            if is_convolution:
                args = (layer.args[0], new_weight, new_bias, *layer.args[3:])
                made = self.graph.call_function(_aten.convolution.default, args)
            else:
                x = layer.args[1 if layer.target is _aten.addmm.default else 0]
                made = self.graph.call_function(_aten.addmm.default, (new_bias, x, new_weight))
        made.meta = dict(layer.meta)
        called = next((constants[n.name] for n in _ancestors(weight) if n.name in constants), "")
        if "." in called:  # functions are named after the layer whose weights they read
            new_weight.meta["called"] = called
            new_bias.meta["called"] = f"{called.rpartition('.')[0]}.bias"
        norm.last.replace_all_uses_with(made)

    def call(self, op: Any, *args: Any, **named: Any) -> Node:
        """An op with what it gives."""
        node = self.graph.call_function(op, args, named)
        with self.mode:
            node.meta["val"] = op(*torch.fx.node.map_arg(args, lambda n: n.meta["val"]), **named)
        return node

    def wide(self, node: Any) -> Node:
        """A constant in float64."""
        return self.call(_aten._to_copy.default, node, dtype=torch.float64)

    def narrow(self, node: Node) -> Node:
        """A new weight in the layer's type."""
        return self.call(_aten._to_copy.default, node, dtype=self.dtype)


def _ancestors(node: Node) -> list[Node]:
    return [node, *(one for source in node.all_input_nodes for one in _ancestors(source))]
