"""What the pass makes of a TorchScript model: its groups, what was left out, and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from bringup.jit.grouping import GROUP, NO_TENSOR, Settings, make_groups, name_of, settings_in_force, why_not


@dataclass(frozen=True)
class GroupReport:
    """One group: its ops in order, and what happened to it since the model was optimized."""

    ops: tuple[str, ...]
    #: In what autograd runs backwards.
    backward: bool = False
    calls: int = 0
    #: Signatures (types, sizes, strides) that have code.
    compiled: int = 0
    #: Calls that ran op by op, by their reason.
    op_by_op: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LeftOut:
    """An op that stays where it was."""

    op: str
    reason: str
    where: str


@dataclass(frozen=True)
class Report:
    """The groups of a model and the ops outside; a plan while the JIT has not ``optimized`` it."""

    groups: tuple[GroupReport, ...]
    left_out: tuple[LeftOut, ...]
    optimized: bool

    def __str__(self) -> str:
        inside = sum(len(group.ops) for group in self.groups)
        state = "as the JIT runs it" if self.optimized else "planned: the JIT optimizes it on its second call"
        lines = [f"{len(self.groups)} group(s) with {inside} ops, {len(self.left_out)} left out ({state})"]
        for number, group in enumerate(self.groups):
            backward = " (backward)" if group.backward else ""
            lines.append(f"group {number}{backward}: {' '.join(op.removeprefix('aten::') for op in group.ops)}")
            if self.optimized:
                lines.append(f"  {group.calls} calls, {group.compiled} signature(s) compiled")
            lines += [f"  {count} op by op: {reason}" for reason, count in group.op_by_op.items()]
        rows = Counter((row.op, row.reason) for row in self.left_out if row.reason != NO_TENSOR)
        places = {(row.op, row.reason): row.where for row in reversed(self.left_out)}
        numbers = len(self.left_out) - rows.total()
        if self.left_out:
            lines.append("left out:")
        for (op, reason), count in rows.items():
            where = f"  ({places[op, reason]})" if places[op, reason] else ""
            lines.append(f"  {op}{f' ×{count}' if count > 1 else ''}: {reason}{where}")
        if numbers:
            lines.append(f"  {numbers} op(s) on sizes and numbers: {NO_TENSOR}")
        return "\n".join(lines)


def report(scripted: Any) -> Report:
    """The groups of a scripted, traced or loaded module or function, and what was left out and why.

    >>> import bringup.jit
    >>> print(bringup.jit.report(torch.jit.trace(model, example)))  # doctest: +SKIP
    1 group(s) with 2 ops, 0 left out (planned: the JIT optimizes it on its second call)
    group 0: conv2d relu

    Before the second call it is a plan: what the pass would do. Afterwards it is the graph that runs, with counts.
    """
    from bringup import _C

    if not isinstance(scripted, (torch.jit.ScriptModule, torch._C.ScriptFunction)):
        raise TypeError(f"bringup.jit.report takes what torch.jit made, not {type(scripted).__name__}")
    settings = settings_in_force()
    method: Any = getattr(scripted, "_c", scripted)
    plan = _optimized(lambda: method.get_debug_state().execution_plans.values())
    graphs = list(_graphs_of(plan[0])) if plan else [(_planned(scripted, settings), False)]
    groups, left_out = [], []
    for graph, backward in graphs:
        aliases = graph.alias_db()
        for node in _nodes(graph):
            if node.kind() == GROUP:
                inner = tuple(part.kind() for part in node.g("Subgraph").nodes())
                ops = tuple(kind for kind in inner if not kind.startswith("prim::"))
                refused, group = _C.jit_group(node.i("group_id"))
                reasons = Counter(refused) + (group.refused if group else Counter())
                runs, compiled = (group.runs, group.compiled) if group else (0, 0)
                groups.append(
                    GroupReport(ops, backward, runs + reasons.total(), compiled, dict(sorted(reasons.items())))
                )
            elif (why := _why_left_out(node, why_not(node, aliases, settings))) is not None:
                left_out.append(LeftOut(name_of(node), why, _where(node)))
    return Report(tuple(groups), tuple(left_out), bool(plan))


def _planned(scripted: Any, settings: Settings) -> torch._C.Graph:
    graph: torch._C.Graph = scripted.graph.copy()
    for run in (
        torch._C._jit_pass_inline,
        torch._C._jit_pass_constant_propagation,
        torch._C._jit_pass_peephole,
        torch._C._jit_pass_dce,
    ):
        run(graph)
    make_groups(graph, settings)
    return graph


def _optimized(ask: Callable[[], Iterable[Any]]) -> list[Any]:
    try:
        return list(ask())
    except RuntimeError:  # not optimized yet: PyTorch has no way to ask first
        return []


def _graphs_of(plan: Any, backward: bool = False) -> Iterator[tuple[torch._C.Graph, bool]]:
    """The graph that runs, and those that autograd made of parts of it: they have executors of their own."""
    yield plan.graph, backward
    forward, gradients = plan.code.differentiable_op_executor_states, plan.code.grad_executor_states
    for ask, is_backward in ((forward, backward), (gradients, True)):
        for state in _optimized(ask):
            for inner in state.execution_plans.values():
                yield from _graphs_of(inner, is_backward)


def _nodes(part: Any) -> Iterator[torch._C.Node]:
    for node in part.nodes():
        yield node
        for block in node.blocks():
            yield from _nodes(block)


def _why_left_out(node: torch._C.Node, reason: str) -> str | None:
    if node.kind() in ("prim::If", "prim::Loop"):
        return "is control flow: its blocks have groups of their own"
    if node.kind() in ("prim::CallFunction", "prim::CallMethod", "prim::PythonOp", "prim::fork"):
        return "is a call that was not inlined"
    if node.kind().startswith("prim::") and node.kind() != "prim::ConstantChunk":
        return None  # constants, attributes, lists: no work
    return reason or "has too few neighbours that could be grouped, or is a view that others see too"


def _where(node: torch._C.Node) -> str:
    found = re.search(r"File \"(.+)\", line (\d+)", str(node.sourceRange()))
    return f"{found[1]}:{found[2]}" if found else ""
