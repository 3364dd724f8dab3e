"""``linalg.inv`` and ``linalg.solve`` in graphs that are lowered: a kernel that inverts, and an assertion.

AOTAutograd keeps their checks in order by tokens (empty tensors), which it passes through ``with_effects`` calls; they
are the graph's first arguments and results. Steps of a program are in order anyway.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_aten = torch.ops.aten
#: What PyTorch calls the functions in its checks.
_KNOWN = ("linalg.inv", "torch.linalg.solve")


def _assert_regular(info: Tensor, name: str) -> None:
    _aten._assert_async.msg(torch.all(info == 0), f"{name}: the matrix is singular")


def inverse(matrix: Tensor) -> Tensor:
    """``linalg.inv`` as its op without a check, and an assertion."""
    found: tuple[Tensor, Tensor] = _aten.linalg_inv_ex.default(matrix)
    _assert_regular(found[1], "linalg.inv")
    return found[0]


def solve_ex(
    a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, None, None, Tensor]:
    """The solution by the inverse, corrected once: its residual is then as small as that of a factorisation."""
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if vector else b
    matrix, right = (a, right) if left else (a.mT, right.mT)
    found: tuple[Tensor, Tensor] = _aten.linalg_inv_ex.default(matrix)
    x = found[0] @ right
    x = x + found[0] @ (right - matrix @ x)
    x = x if left else x.mT
    return (x.squeeze(-1) if vector else x), None, None, found[1]


def solve(a: Tensor, b: Tensor, *, left: bool = True) -> Tensor:
    """``linalg.solve`` without a factorisation."""
    x, _, _, info = solve_ex(a, b, left=left)
    _assert_regular(info, "linalg.solve")
    return x


def token_count(module: GraphModule) -> int:
    """How many of a graph's first arguments are tokens."""
    held = {node.args[0] for node in module.graph.nodes if _is_effect(node)}
    return sum(node.op == "placeholder" for node in held if isinstance(node, Node))


def with_assertions(module: GraphModule) -> GraphModule:
    """Rewrites these two in place, for a graph that is traced again; other effects are refused when it is lowered."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target is _aten._linalg_solve_ex.default and {user.args[1] for user in node.users} <= {0, 3}:
            node.target = solve_ex  # whoever reads the factors, as gradients do, gets those of PyTorch
        if not _is_effect(node) or node.args[1] is not _aten._linalg_check_errors.default:
            continue
        if node.args[3] not in _KNOWN:
            continue
        with graph.inserting_before(node):
            graph.call_function(_assert_regular, node.args[2:4]).meta = dict(node.meta)
        for user in list(node.users):  # the token goes on as it came
            token: Any = node.args[0]
            user.replace_all_uses_with(token)
            graph.erase_node(user)
        graph.erase_node(node)
    module.recompile()
    return module


def _is_effect(node: Node) -> bool:
    return str(node.target) == "with_effects"
