"""Dropout whose mask is drawn twice: training keeps 16 bytes, the seed and the offset, and backward draws it again.

A joint graph has forward and backward in one. Here, before it is cut in two, ``native_dropout`` and its gradient become
one op of a key each. Nothing has to keep the mask then, and a checkpointed part that is computed again draws what it
drew before, as the key is kept.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

from bringup import _C
from bringup.graph.passes import Facts

_aten = torch.ops.aten

library = torch.library.Library("bringup", "FRAGMENT")
library.define("dropout_key(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
library.define("keyed_dropout(Tensor x, Tensor key, float p) -> Tensor")


# ---- their values in eager ops, for graphs that are not planned; the kernels are lowering/ops/random_numbers.py ----


def dropout_key(x: Tensor) -> Tensor:
    """(seed, offset) of the next random call: the state of a generator that would draw the same."""
    if x.device.type == "cpu":
        return torch.randint(-(1 << 63), (1 << 63) - 1, (2,))
    seed, offset, _ = _C.reserve_draw(x.device.index)
    return torch.tensor([seed, offset], dtype=torch.uint64).view(torch.int64).to(x.device)


def keyed_dropout(x: Tensor, key: Tensor, p: float) -> Tensor:
    """Zeroes a part p, the same one for the same key, and scales the rest."""
    generator = torch.Generator(x.device)
    if x.device.type == "cpu":
        generator.manual_seed(int(key[0]))
    else:
        generator.set_state(key.cpu().view(torch.uint8))
    mask = torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(1 - p, generator=generator)
    return x * mask * (1 / (1 - p))


library.impl("dropout_key", dropout_key, "CompositeExplicitAutograd")
library.impl("keyed_dropout", keyed_dropout, "CompositeExplicitAutograd")
library.impl("dropout_key", lambda x: x.new_empty((2,), dtype=torch.int64), "Meta")
library.impl("keyed_dropout", lambda x, key, p: torch.empty_like(x), "Meta")


# ---- the pass ----


def use_keys(graph: Graph, _: Facts | None = None) -> None:
    """Dropout keeps a key of 16 bytes for the backward pass, not its mask."""
    for node in list(graph.find_nodes(op="call_function", target=_aten.native_dropout.default)):
        x, p, train = node.args
        results = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        gradients = list(results[1].users) if 1 in results else []
        if not isinstance(p, float) or not 0 < p < 1 or train is False or len(results) != len(node.users):
            continue  # a probability that the graph computes is a node
        if not all(_is_gradient(user, results[1], p) for user in gradients):
            continue
        with graph.inserting_before(node):
            key = graph.call_function(torch.ops.bringup.dropout_key.default, (x,))
            key.meta["val"] = x.meta["val"].new_empty((2,), dtype=torch.int64)
            if "recompute" in node.meta:
                key.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        for old, given in [(results.get(0), x), *((user, user.args[0]) for user in gradients)]:
            if old is not None:
                _replace(graph, old, given, key, p)
        for old in (*results.values(), node):
            graph.erase_node(old)


def _is_gradient(user: Node, mask: Node, p: float) -> bool:
    if user.target is not _aten.native_dropout_backward.default:
        return False
    grad, given, scale = user.args
    return given is mask and grad is not mask and bool(scale == 1 / (1 - p))


def _replace(graph: Graph, old: Node, given: Node, key: Node, p: float) -> None:
    with graph.inserting_before(old):
        new = graph.call_function(torch.ops.bringup.keyed_dropout.default, (given, key, p))
    new.meta = dict(old.meta)
    old.replace_all_uses_with(new)
    if old.target is not operator.getitem:
        graph.erase_node(old)
