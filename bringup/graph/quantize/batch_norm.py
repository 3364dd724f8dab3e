"""Batch norm in evaluation as part of the convolution or linear layer before it: a scale and a shift per channel."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_aten = torch.ops.aten

_LAYERS = (
    *(_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default, _aten.linear.default),
    *(_aten.conv1d.padding, _aten.conv2d.padding, _aten.conv3d.padding),
)


def fold_batch_norms(module: GraphModule) -> None:
    """Rewrites the graph of a module in place; new weights are new buffers, so nothing that others share changes."""
    for number, node in enumerate(list(module.graph.nodes)):
        layer: Any = node.args[0] if node.args else None
        if node.target is _aten.batch_norm.default and _folds(module, node, layer):
            _fold(module, node, layer, number)
    module.graph.eliminate_dead_code()
    module.recompile()


def _value(module: GraphModule, node: Any) -> Tensor | None:
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    value: Any = operator.attrgetter(str(node.target))(module)
    return value.detach() if isinstance(value, Tensor) else None


def _folds(module: GraphModule, norm: Node, layer: Any) -> bool:
    """True for statistics that are constants, behind a layer that nothing else uses."""
    training = norm.args[5]
    if training or not isinstance(layer, Node) or layer.target not in _LAYERS or len(layer.users) > 1:
        return False
    known = [_value(module, given) for given in (layer.args[1], norm.args[3], norm.args[4])]
    return all(value is not None for value in known)


def _fold(module: GraphModule, norm: Node, layer: Node, number: int) -> None:
    scale, shift, mean, variance = (_value(module, given) for given in norm.args[1:5])
    eps: Any = norm.args[7]
    weight = _value(module, layer.args[1])
    bias = _value(module, layer.args[2]) if len(layer.args) > 2 else None
    assert weight is not None
    assert mean is not None
    assert variance is not None
    factor = torch.rsqrt(variance.double() + eps)
    if scale is not None:
        factor = factor * scale.double()
    before = torch.zeros_like(factor) if bias is None else bias.double()
    start = (before - mean.double()) * factor
    if shift is not None:
        start = start + shift.double()
    across = [-1, *(1 for _ in weight.shape[1:])]
    made = {"weight": (weight.double() * factor.view(across)).to(weight.dtype), "bias": start.to(weight.dtype)}
    nodes = []
    for kind, value in made.items():
        name = f"folded_{kind}_{number}"
        module.register_buffer(name, value)
        with module.graph.inserting_before(layer):
            nodes.append(module.graph.get_attr(name))
    layer.args = (layer.args[0], *nodes, *layer.args[3:])
    norm.replace_all_uses_with(layer)
    module.graph.erase_node(norm)
