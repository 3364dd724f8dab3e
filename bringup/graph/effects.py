"""Ops that PyTorch keeps in order by tokens, in graphs that are lowered: the check of ``linalg.inv`` is an assertion.

AOTAutograd passes a token (an empty tensor) through ``with_effects`` calls; tokens are the graph's first arguments and
results. Steps of a program are in order anyway.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_aten = torch.ops.aten
SINGULAR = "linalg.inv: the matrix is singular"


def inverse(matrix: Tensor) -> Tensor:
    """``linalg.inv`` as its op without a check, and an assertion."""
    found: tuple[Tensor, Tensor] = _aten.linalg_inv_ex.default(matrix)
    _aten._assert_async.msg(torch.all(found[1] == 0), SINGULAR)
    return found[0]


def token_count(module: GraphModule) -> int:
    """How many of a graph's first arguments are tokens."""
    held = {node.args[0] for node in module.graph.nodes if _is_effect(node)}
    return sum(node.op == "placeholder" for node in held if isinstance(node, Node))


def with_assertions(module: GraphModule) -> GraphModule:
    """Rewrites checks of ``linalg.inv`` in place; other effects stay, and are refused when they are lowered."""
    graph = module.graph
    for node in list(graph.nodes):
        if not _is_effect(node) or node.args[1] is not _aten._linalg_check_errors.default:
            continue
        if node.args[3] != "linalg.inv":
            continue
        with graph.inserting_before(node):
            fine = graph.call_function(_aten.eq.Scalar, (node.args[2], 0))
            every = graph.call_function(_aten.all.default, (fine,))
            graph.call_function(_aten._assert_async.msg, (every, SINGULAR)).meta = dict(node.meta)
        for user in list(node.users):  # the token goes on as it came
            token: Any = node.args[0]
            user.replace_all_uses_with(token)
            graph.erase_node(user)
        graph.erase_node(node)
    module.recompile()
    return module


def _is_effect(node: Node) -> bool:
    return str(node.target) == "with_effects"
