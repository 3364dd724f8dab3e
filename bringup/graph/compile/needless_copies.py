"""Removes clones that are indistinguishable from their source: dropout with probability 0 leaves them in graphs.

A kernel would fuse with one at no cost. But the partitioner sees two tensors, and keeps both for the backward pass.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from bringup.graph.passes import Facts

_clone = torch.ops.aten.clone.default


def remove_needless_copies(graph: Graph, _: Facts | None = None) -> None:
    """A copy of the same layout is the original, unless the caller sees the copy or may write to the original."""
    (output,) = graph.find_nodes(op="output")
    seen = {_memory(node) for node in output.all_input_nodes}
    given = {_memory(node) for node in graph.find_nodes(op="placeholder")}
    for node in graph.find_nodes(op="call_function", target=_clone):
        (source,) = node.all_input_nodes
        original, copy = source.meta.get("val"), node.meta.get("val")
        if not isinstance(original, torch.Tensor) or original.stride() != copy.stride():
            continue
        if _memory(node) in seen or _memory(source) in given:
            continue
        node.replace_all_uses_with(source)
        graph.erase_node(node)


def _memory(node: Node) -> int | None:
    """What memory a traced tensor is in: views share it with what they view."""
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None
