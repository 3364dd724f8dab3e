"""How long each step of a compiled graph takes: every launch is a plan of its own, run until the clock can tell."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from bringup import _C
from bringup.graph.binding import Binding, GraphRun, Segment
from bringup.graph.compile.compiled import CompiledGraph
from bringup.graph.fusion.steps import Memory
from bringup.graph.lowered import CONSTANTS
from bringup.graph.structure import FilledLaunch

#: A plan repeats its launch until it takes about this long: what it costs to start a plan is a few microseconds.
_SECONDS = 2e-4
_MOST_LAUNCHES = 64
_RUNS = 5  # the shortest counts
_TENSOR, _SEED, _OFFSET = 1, 5, 6  # as bringup/_C.pyi numbers arguments
_RANDOM = 2


def step_seconds(graph: CompiledGraph, arguments: Sequence[Any]) -> list[float | None]:
    """Seconds of each step, run one after the other with the arguments of a call; None for one without work.

    Arguments that the graph writes to are copied first.
    """
    binding = next(reversed(graph.bindings.values()))
    structure = binding.structure
    given = list(arguments)
    for kind, number in structure.lowered.written:
        if kind == "tensor" and number < CONSTANTS:
            given[number] = given[number].clone()
    constants = [operator.attrgetter(name)(graph.module).to(graph.device) for name in structure.lowered.constants]
    index = graph.device.index
    times: list[float | None] = []
    with torch.no_grad():
        run = GraphRun(binding, given, constants)
        for step, launch in zip(structure.steps, binding.filled.launches):
            if launch is None:
                call = structure.lowered.eager[step.label]  # type: ignore[union-attr]
                times.append(_shortest(lambda call=call: run.eager(call), index))  # type: ignore[misc]
            elif not launch.units:
                times.append(None)
            else:
                times.append(_launch_seconds(run, binding, launch, index))
    return times


def _launch_seconds(run: GraphRun, binding: Binding, launch: FilledLaunch, index: int) -> float:
    once = _shortest(lambda: run.segment(_plan(binding, launch, 1)), index, runs=2)
    count = max(1, min(_MOST_LAUNCHES, round(_SECONDS / once)))
    segment = _plan(binding, launch, count)
    return _shortest(lambda: run.segment(segment), index) / count


def _shortest(work: Callable[[], None], index: int, runs: int = _RUNS) -> float:
    best = float("inf")
    for _ in range(runs + 1):  # the first one allocates
        _C.synchronize(index)
        start = perf_counter()
        work()
        _C.synchronize(index)
        best = min(best, perf_counter() - start)
    return best


def _plan(binding: Binding, launch: FilledLaunch, count: int) -> Segment:
    """A launch, several times over, that gets all memory as tensors."""
    lowered = binding.structure.lowered
    offsets = dict(zip(sorted(binding.structure.lives), binding.memory.offsets))
    memories: dict[Memory, int] = {}

    def address(where: Memory, offset: int) -> tuple[int, int, int]:
        if where[0] == "temporary" and where[1] in offsets:
            where, offset = ("arena", 0), offset + offsets[where[1]]
        return (_TENSOR, memories.setdefault(where, len(memories)), offset)

    arguments = [*(address(*one) for one in launch.addresses), *launch.arguments]
    described = [(launch.handle, launch.units, launch.flops, launch.bytes, arguments)] * count
    draws = max([0, *(slot + 1 for kind, slot, _ in launch.arguments if kind in (_SEED, _OFFSET))])
    plan = _C.make_plan(described, [], [], _RANDOM)
    graph = _C.GraphPlan(plan, lowered.call.device, len(memories), len(lowered.numbers))
    return Segment(graph, list(memories), draws)
