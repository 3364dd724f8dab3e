"""How long each step of a compiled graph takes: every launch is a plan of its own, run as often as the clock needs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from bringup import _C
from bringup.compile.kernels import FilledLaunch
from bringup.graph.binding import Binding, GraphRun
from bringup.graph.compile.compiled import CompiledGraph
from bringup.graph.lowered import CONSTANTS
from bringup.graph.program import EagerCall

#: A plan repeats its launch until it takes about this long: what it costs to start a plan is a few microseconds.
_SECONDS = 2e-4
_MOST_LAUNCHES = 64
_RUNS = 5  # the shortest counts


def step_seconds(graph: CompiledGraph, arguments: Sequence[Any]) -> list[float | None]:
    """Seconds of each step, run one after the other with the arguments of a call; None for one without work.

    Arguments that the graph writes to are copied first.
    """
    binding = next(reversed(graph.bindings.values()))
    given = list(arguments)
    for kind, number in graph.lowered.written:
        if kind == "tensor" and number < CONSTANTS:
            given[number] = given[number].clone()
    constants = [operator.attrgetter(name)(graph.module).to(graph.device) for name in graph.lowered.constants]
    index = graph.device.index
    times: list[float | None] = []
    with torch.no_grad():
        run = GraphRun(binding, given, constants)
        for call, launch in zip(binding.structure.variant.calls, binding.filled.launches):
            if isinstance(call, EagerCall) or launch is None:
                times.append(_shortest(lambda call=call: run.eager(call), index))  # type: ignore[misc]
            elif not launch.units:
                times.append(None)
            else:
                times.append(_launch_seconds(run, binding, launch, index))
    return times


def _launch_seconds(run: GraphRun, binding: Binding, launch: FilledLaunch, index: int) -> float:
    once = _shortest(lambda: run.segment(binding.segment([launch], pure=False)), index, runs=2)
    count = max(1, min(_MOST_LAUNCHES, round(_SECONDS / once)))
    segment = binding.segment([launch] * count, pure=False)
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
