"""What became of a graph, as plain data: nodes, the steps they run in, kernels, why fused or not, and the memory plan.

Made from a compiled graph by ``graph_explain_collect``; shown by ``graph_explain_text`` and ``graph_page``, which share
the rows of their tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bringup.graph.fusion.steps import Memory
from bringup.kit.terminal import readable_bytes, readable_count, readable_seconds, shortened

_NAME = 26  # characters of a node where several share a line


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
    """An allocation of the graph. ``offset`` is its place in the arena, None for tensors of their own; ``first`` and
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

    @property
    def time(self) -> str:
        """Its time; empty where it was not measured."""
        return "" if self.seconds is None else readable_seconds(self.seconds)


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

    def row(self, most: int) -> tuple[str, str, str, str]:
        """(why, rule, how many pairs, which: at most so many)."""
        short = [(shortened(a, _NAME), shortened(b, _NAME)) for a, b in self.pairs[:most]]
        shown = ", ".join(f"inside {a}" if a == b else f"{a} → {b}" for a, b in short)
        more = len(self.pairs) - len(short)
        return self.text, self.rule, str(len(self.pairs)), shown + (f", and {more} more" if more else "")


@dataclass(frozen=True)
class GraphStory:
    """Everything that is shown of one graph."""

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
        """The steps that run without a kernel."""
        return [step for step in self.steps if step.kernel is None]

    @property
    def in_arena(self) -> list[TensorStory]:
        """The temporaries of the arena, in the order of their lives."""
        found = [tensor for tensor in self.tensors.values() if tensor.offset is not None]
        return sorted(found, key=lambda tensor: (tensor.first, tensor.last, tensor.offset))

    def alive(self) -> list[int]:
        """Bytes of the arena that are in use at each step."""
        return [sum(t.nbytes for t in self.in_arena if t.first <= n <= t.last) for n in range(len(self.steps))]

    def becomes(self, node: NodeStory) -> str:
        """What a node is now, in few words."""
        if node.fate != "kernel":
            return {"op": "ordinary op", "input": node.op}.get(node.fate, node.fate)
        kernels = dict.fromkeys(self.steps[step].kernel for step in node.steps)
        return f"kernel {', '.join(map(str, kernels))}"

    def costs(self, kernel: KernelStory) -> tuple[str, str, str, str, float]:
        """(flops, bytes, flops per byte, time) of a kernel's launches as text, and the time in seconds."""
        steps = [self.steps[number] for number in kernel.steps]
        flops, moved = sum(step.flops for step in steps), sum(step.read + step.written for step in steps)
        times = [step.seconds for step in steps if step.seconds is not None]
        shown = readable_seconds(sum(times)) if times else ""
        ratio = f"{flops / moved:.2f}" if moved else ""
        return readable_count(flops), readable_bytes(moved), ratio, shown, sum(times)

    def memory(self) -> str:
        """The sizes of the memory plan in a line."""
        apart = sum(tensor.nbytes for tensor in self.tensors.values() if tensor.kind in ("result", "own"))
        return (
            f"Arena {readable_bytes(self.arena)}; most alive at one step (the bound) {readable_bytes(self.bound)}; "
            f"sum of temporaries {readable_bytes(self.total)}; tensors of their own (results, and what ordinary ops "
            f"touch) {readable_bytes(apart)}"
        )

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
