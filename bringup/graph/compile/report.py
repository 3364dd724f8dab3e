"""Compiled graphs in a table: nodes, kernels, memory, and ops that are not kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bringup.graph.compile.compiled import CompiledGraph
from bringup.graph.compile.templates import SizedGraph


@dataclass(frozen=True)
class GraphReport:
    """What became of one graph, for the sizes that it was last run with (or traced with)."""

    nodes: int
    launches: int
    kernels: int
    eager: tuple[tuple[str, str], ...]
    arena: int
    bound: int
    temporaries: int
    flops: float
    bytes: float


def report_of(graph: CompiledGraph | SizedGraph) -> GraphReport:
    """The numbers of a graph."""
    binding = next(reversed(graph.bindings.values()), None)
    structure = graph.structures[0] if binding is None else binding.structure
    filled = [] if binding is None else [launch for launch in binding.filled.launches if launch is not None]
    assert structure.lowered is not None
    calls = structure.lowered.eager.values()  # in the order of the graph
    return GraphReport(
        nodes=sum(node.op == "call_function" for node in graph.module.graph.nodes),
        launches=len(structure.variant.kernel_calls),
        kernels=len({id(loaded) for loaded in structure.compiled if loaded is not None}),
        eager=tuple((f"{call.name} ({call.target})", call.reason) for call in calls),
        arena=0 if binding is None else binding.memory.arena,
        bound=0 if binding is None else binding.memory.bound,
        temporaries=0 if binding is None else binding.memory.total,
        flops=sum(launch.flops for launch in filled),
        bytes=sum(launch.bytes for launch in filled),
    )


def report_text(graphs: Sequence[CompiledGraph | SizedGraph]) -> str:
    """One line for each graph, and one for each op that is not a kernel."""
    lines = []
    for number, graph in enumerate(graphs):
        report = report_of(graph)
        lines.append(
            f"graph {number} on {graph.device}: {report.nodes} nodes, {report.launches} launches of {report.kernels} "
            f"kernels, arena {report.arena:,} bytes (bound {report.bound:,}, without sharing {report.temporaries:,}), "
            f"{report.flops:,.0f} flops, {report.bytes:,.0f} bytes"
        )
        lines += [f"  no kernel: {name}: {reason}" for name, reason in report.eager]
    return "\n".join(lines)
