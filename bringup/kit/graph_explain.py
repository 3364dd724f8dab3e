"""What became of a graph, as plain data: nodes, the steps they run in, kernels, why fused or not, and who lives where.

Made of a compiled graph by ``graph_explain_telling``; shown by ``graph_explain_text`` and ``graph_page``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bringup.graph.fusion.steps import Memory
from bringup.kit.graph_explain_units import readable_bytes, readable_seconds


@dataclass(frozen=True)
class NodeStory:
    """A node of the traced graph. ``fate`` says what it is now: "kernel", "op", "view", "input", or other words."""

    name: str
    op: str
    value: str
    fate: str
    steps: tuple[int, ...]
    module: str
    #: The nodes whose values it reads, through views.
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorStory:
    """A memory of the graph. ``offset`` is its place in the arena, None for tensors of their own; ``first`` and
    ``last`` are the steps that touch it first and last."""

    name: str
    value: str
    nbytes: int
    kind: str  # input, parameter, saved, gradient, constant; arena, result, own
    offset: int | None = None
    first: int = 0
    last: int = 0
    #: What leaves the graph with it: "result", "saved for backward", "gradient of fc.weight"
    leaves_as: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepStory:
    """A launch of a kernel, or an ordinary op (``kernel`` is None, ``reason`` says why)."""

    number: int
    name: str
    nodes: tuple[str, ...]
    reads: tuple[Memory, ...]
    writes: tuple[Memory, ...]
    kernel: int | None = None
    reason: str = ""
    flops: int = 0
    read: int = 0
    written: int = 0
    seconds: float | None = None


@dataclass(frozen=True)
class KernelStory:
    """A kernel and the steps that launch it; ``ir`` is empty for a vendor's function."""

    number: int
    name: str
    steps: tuple[int, ...]
    ir: str
    source: str


@dataclass(frozen=True)
class Reason:
    """Why pairs of nodes became one kernel, or did not."""

    text: str
    rule: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class GraphStory:
    """Everything that is told of one graph."""

    title: str
    device: str
    nodes: Sequence[NodeStory]
    steps: Sequence[StepStory]
    kernels: Sequence[KernelStory]
    fused: Sequence[Reason]
    refused: Sequence[Reason]
    tensors: Mapping[Memory, TensorStory]
    arena: int
    bound: int
    total: int

    @property
    def ordinary(self) -> list[StepStory]:
        """The steps that are no kernels."""
        return [step for step in self.steps if step.kernel is None]

    @property
    def in_arena(self) -> list[TensorStory]:
        """The temporaries of the arena, in the order of their lives."""
        found = [tensor for tensor in self.tensors.values() if tensor.offset is not None]
        return sorted(found, key=lambda tensor: (tensor.first, tensor.last, tensor.offset))

    def alive(self) -> list[int]:
        """Bytes of the arena that are in use at each step."""
        return [sum(t.nbytes for t in self.in_arena if t.first <= n <= t.last) for n in range(len(self.steps))]

    def summary(self) -> str:
        """The graph in a line."""
        ops = sum(node.fate != "input" for node in self.nodes)
        launches = len(self.steps) - len(self.ordinary)
        parts = [
            _count(ops, "node"),
            f"{_count(launches, 'launch', 'launches')} of {_count(len(self.kernels), 'kernel')}",
        ]
        if self.ordinary:
            parts.append(_count(len(self.ordinary), "ordinary op"))
        parts.append(f"arena {readable_bytes(self.arena)}")
        times = [step.seconds for step in self.steps if step.seconds is not None]
        if times:
            parts.append(f"{readable_seconds(sum(times))} in kernels and ops")
        return ", ".join(parts)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
