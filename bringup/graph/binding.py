"""A graph for exact sizes: plans that the core replays, ordinary ops between them, and the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bringup import _C
from bringup.compile.kernels import FilledLaunch
from bringup.graph.lowered import CONSTANTS, DTYPE_CODES
from bringup.graph.memory_plan import MemoryPlan, plan_memory
from bringup.graph.program import EagerCall, Memory, TensorSpec, span
from bringup.graph.structure import Filled, GraphStructure
from bringup.graph.symbols import SYMBOLIC, evaluated
from bringup.lowering.launch_code import OFFSET, RANDOM, SEED, SOURCE
from bringup.lowering.spreading import with_spread

_ARENA: Memory = ("arena", 0)

#: (shape, strides, offset)
Layout = tuple[tuple[int, ...], tuple[int, ...], int]


@dataclass(frozen=True)
class Segment:
    """Launches without an ordinary op between them: a plan, the allocations it takes as tensors, and how many of the
    graph's random calls must have their draws by then."""

    plan: Any
    memories: Sequence[Memory]
    draws: int


class Binding:
    """The plans of a structure for some sizes; ``run`` may be called by many threads."""

    def __init__(
        self,
        structure: GraphStructure,
        numbers: Sequence[Any],
        sizes: Sequence[int],
        device: torch.device,
    ) -> None:
        self.structure, self._device = structure, device
        self._symbols = dict(zip(structure.sizes, sizes))
        self.filled: Filled = structure.fill(sizes, numbers)
        placed = sorted(structure.lives)
        self.memory: MemoryPlan = plan_memory(
            [self.filled.nbytes[n] for n in placed], [structure.lives[n] for n in placed]
        )
        self._offsets = dict(zip(placed, self.memory.offsets))
        #: By the id of each tensor that is seen outside of kernels.
        self._layouts: dict[int, Layout] = dict(zip(map(id, structure.tensors), self.filled.layouts))
        self._seen: dict[Memory, TensorSpec] = {}  # some tensor over each memory that is one
        for one in structure.tensors:
            self._seen.setdefault(one.memory, one)
        results = structure.variant.results
        made = [r.memory for r in results if isinstance(r, TensorSpec) and r.memory[0] == "temporary"]
        self._outputs: list[Memory] = list(dict.fromkeys(made))
        self._pure = not any(isinstance(call, EagerCall) for call in structure.variant.calls)
        self.parts: list[Segment | EagerCall] = self._cut()
        self._results = [self._constant(result) for result in results]
        self._straight = self._straight_through()

    # ---- plans ----

    def _cut(self) -> list[Segment | EagerCall]:
        parts: list[Segment | EagerCall] = []
        waiting: list[tuple[Any, ...]] = []
        structure = self.structure
        for call, launch, loaded in zip(structure.variant.calls, self.filled.launches, structure.compiled):
            if isinstance(call, EagerCall):
                if waiting:
                    parts.append(self.segment(waiting, self._pure))
                parts.append(call)
                waiting = []
            elif launch is not None and loaded is not None and launch.units:
                waiting.append(with_spread(launch, call, loaded) if structure.partitioned else launch)
        if waiting or (self._pure and self._outputs):
            parts.append(self.segment(waiting, self._pure))
        return parts

    def segment(self, launches: Sequence[tuple[Any, ...]], pure: bool) -> Segment:
        """Returns a plan of filled launches (and how each may be shared out over partitions); ``pure``: it makes arena
        and outputs itself, and else gets all memory as tensors."""
        memories: dict[Memory, int] = {}
        described = []
        draws = 0
        for launch in launches:
            filled, spread = FilledLaunch(*launch[:5]), launch[5:]
            arguments = [
                self._address((kind, number), more, memories, pure) if isinstance(kind, str) else (kind, number, more)
                for kind, number, more in filled.arguments
            ]
            described.append((*filled[:4], arguments, *spread))
            draws = max([draws, *(number + 1 for kind, number, _ in arguments if kind in (SEED, OFFSET))])
        arena = [self.memory.arena] if pure else []
        if pure and self.structure.partitioned:  # each lies over the partitions in its own way
            arena = [self.filled.nbytes[n] for n in self._offsets]
        specs = [self._output_spec(where) for where in self._outputs] if pure else None
        plan = _C.make_plan(described, arena, [], RANDOM, specs)
        graph = _C.GraphPlan(plan, self.structure.device, len(memories), len(self.structure.variant.numbers))
        return Segment(graph, list(memories), draws)

    def _address(self, where: Memory, offset: int, memories: dict[Memory, int], pure: bool) -> tuple[int, int, int]:
        if self.structure.partitioned and where[1] in self._offsets and where[0] == "temporary":
            if pure:
                return (SOURCE["temporary"], list(self._offsets).index(where[1]), offset)
        elif where[0] == "temporary" and where[1] in self._offsets:
            offset += self._offsets[where[1]]
            if pure:
                return (SOURCE["temporary"], 0, offset)
            where = _ARENA
        elif pure and where in self._outputs:
            return (SOURCE["output"], self._outputs.index(where), offset)
        return (SOURCE["tensor"], memories.setdefault(where, len(memories)), offset)

    def _output_spec(self, memory: Memory) -> tuple[int, Sequence[int], Sequence[int]]:
        """How the tensor of an output's memory looks: like a result itself, if that covers the memory."""
        spec, nbytes = self._seen[memory], self.filled.nbytes[memory[1]]
        shape, strides, offset = self._layouts[id(spec)]
        dtype = dtype_of(spec)
        if offset == 0 and span(shape, strides) * dtype.itemsize == nbytes:
            return DTYPE_CODES[dtype], shape, strides
        return DTYPE_CODES[dtype], (nbytes // dtype.itemsize,), (1,)

    def _constant(self, result: Any) -> Any:
        """A result that follows from the sizes alone; tensors stay what they are."""
        return evaluated(result, self._symbols) if isinstance(result, SYMBOLIC) else result

    def _straight_through(self) -> tuple[Any, list[int], list[tuple[int, Any]]] | None:
        """The plan, the arguments it takes, and which output each result is (-1: a constant), if there is no more to a
        run than that: then it costs 2 µs less of 9."""
        if not self._pure or len(self.parts) != 1 or self.structure.variant.numbers:
            return None
        (part,) = self.parts
        assert isinstance(part, Segment)
        if any(kind != "tensor" or number >= CONSTANTS for kind, number in part.memories):
            return None
        answers: list[tuple[int, Any]] = []
        for result in self._results:
            if not isinstance(result, TensorSpec):
                answers.append((-1, result))
                continue
            if result.memory not in self._outputs:
                return None
            shape, strides, offset = self._layouts[id(result)]
            if offset or self._output_spec(result.memory)[1:] != (shape, strides):
                return None
            answers.append((self._outputs.index(result.memory), None))
        return part.plan, [number for _, number in part.memories], answers

    # ---- running ----

    def run(self, arguments: Sequence[Any], constants: Sequence[torch.Tensor]) -> list[Any]:
        """The results of the graph."""
        if self._straight is not None:
            plan, places, answers = self._straight
            made = plan.run([arguments[place] for place in places])
            return [constant if place < 0 else made[place] for place, constant in answers]
        run = GraphRun(self, arguments, constants)
        if self._pure:
            for part in self.parts:
                assert isinstance(part, Segment)
                made = part.plan.run([run.memory(memory) for memory in part.memories], run.numbers())
                run.tensors.update(zip(self._outputs, made))
        else:
            for part in self.parts:
                run.segment(part) if isinstance(part, Segment) else run.eager(part)
        return [run.result(result) if isinstance(result, TensorSpec) else result for result in self._results]


class GraphRun:
    """One run of a binding: which memory is which tensor."""

    def __init__(self, binding: Binding, arguments: Sequence[Any], constants: Sequence[torch.Tensor]) -> None:
        self._binding, self._arguments, self._constants = binding, arguments, constants
        self.tensors: dict[Memory, torch.Tensor] = {}
        self._draws: list[tuple[int, int, bool]] = []

    def memory(self, memory: Memory) -> torch.Tensor:
        """The tensor over an allocation, which is made if there is none yet."""
        kind, number = memory
        if kind == "tensor":
            given: torch.Tensor = self._arguments[number] if number < CONSTANTS else self._constants[number - CONSTANTS]
            return given
        if memory not in self.tensors:
            self.tensors[memory] = self._allocated(memory)
        return self.tensors[memory]

    def _allocated(self, memory: Memory) -> torch.Tensor:
        binding = self._binding
        if memory == _ARENA:
            return torch.empty(binding.memory.arena, dtype=torch.uint8, device=binding._device)
        dtype = dtype_of(binding._seen[memory]) if memory in binding._seen else torch.uint8
        elements = binding.filled.nbytes[memory[1]] // dtype.itemsize
        return torch.empty(elements, dtype=dtype, device=binding._device)

    def numbers(self) -> list[torch.Tensor]:
        """Numbers that are tensors on the CPU; formulas are in the plan already, and their places are not read."""
        numbers = self._binding.structure.variant.numbers
        return [self.seen(number) if isinstance(number, TensorSpec) else _NO_NUMBER for number in numbers]

    def seen(self, spec: TensorSpec) -> torch.Tensor:
        """A tensor of the graph."""
        shape, strides, offset = self._binding._layouts[id(spec)]
        base = self.memory(spec.memory)
        if offset == 0 and base.shape == shape and base.stride() == strides:
            return base
        return base.as_strided(shape, strides, base.storage_offset() + offset)

    def result(self, spec: TensorSpec) -> torch.Tensor:
        """A tensor of the graph that the caller gets, of memory that this run has allocated: it is not a view.

        A graph runs below autograd, and a view made there may not be changed in place above it.
        """
        found = self.seen(spec)
        if spec.memory[0] == "tensor" or not found._is_view():
            return found
        made = torch.empty(0, dtype=found.dtype, device=found.device)
        made.set_(found.untyped_storage(), found.storage_offset(), found.shape, found.stride())
        torch._C._set_conj(made, found.is_conj())  # the memory holds what a lazy conjugate or negative is a view of
        torch._C._set_neg(made, found.is_neg())
        return made

    def _reserve(self, draws: int) -> None:
        """Random calls get their draws in the order of the graph, whatever runs them."""
        while len(self._draws) < draws:
            self._draws.append(_C.reserve_draw(self._binding.structure.device))

    def segment(self, segment: Segment) -> None:
        """Launches."""
        self._reserve(segment.draws)
        segment.plan.run([self.memory(memory) for memory in segment.memories], self.numbers(), self._draws)

    def eager(self, call: EagerCall) -> None:
        """An ordinary op."""
        self._reserve(call.draws)
        given = call.target(*self._real(call.args), **self._real(call.kwargs))
        for spec, made in zip(call.results, given if isinstance(given, (list, tuple)) else [given]):
            if spec is not None and spec.memory[0] == "temporary":
                shape, strides, _ = self._binding._layouts[id(spec)]
                self.tensors[spec.memory] = _laid_out(call, made, shape, strides)

    def _real(self, value: Any) -> Any:
        if isinstance(value, TensorSpec):
            return self.seen(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._real(part) for part in value)
        if isinstance(value, dict):
            return {name: self._real(part) for name, part in value.items()}
        return evaluated(value, self._binding._symbols) if isinstance(value, SYMBOLIC) else value


_NO_NUMBER = torch.zeros(())


def dtype_of(spec: TensorSpec) -> torch.dtype:
    """PyTorch's type of a tensor."""
    found: torch.dtype = getattr(torch, spec.dtype)
    return found


def _laid_out(call: EagerCall, made: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """The result of an ordinary op, with the strides that the graph was traced with."""
    if made.shape != tuple(shape):
        raise RuntimeError(
            f"{call.target} gave a tensor of shape {tuple(made.shape)}, its graph was traced with {tuple(shape)}"
        )
    if made.stride() == tuple(strides) or made.numel() < 2:
        return made
    return torch.empty_strided(shape, strides, dtype=made.dtype, device=made.device).copy_(made)
