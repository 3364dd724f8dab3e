"""Graphs without a front end: ops called one by one on symbolic tensors, lowered into one Call, run by the interpreter.

g = Graph()
x = g.input((4, 8))
y = g("aten::relu", x)
g.keep(y)
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bringup.graph.fusion import Fused, Memory, Opaque, Step, fuse_steps
from bringup.ir.arguments import bind_sizes
from bringup.ir.dtypes import DType, boolean, float32
from bringup.ir.index import evaluate_sizes
from bringup.ir.interpret import run
from bringup.ir.verify import verify
from bringup.lowering import ops
from bringup.lowering.call import Call, Launch, Number, Tensor, dense_strides, number_of
from bringup.lowering.registry import LOWERINGS
from bringup.lowering.resolve import run_lowering
from bringup.lowering.symbolic import Dim, IntLike, Trace, hint_of

ops.load()

Array = np.ndarray[Any, Any]


def broadcast(*shapes: Sequence[IntLike]) -> tuple[IntLike, ...]:
    """The shape of an elementwise result, by hints (the graphs of tests know what they ask for)."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(max((s[d] for s in padded), key=hint_of) for d in range(rank))


@dataclass
class Graph:
    """A graph in the making."""

    trace: Trace = field(default_factory=Trace)
    inputs: list[Tensor] = field(default_factory=list)
    kept: set[Memory] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)
    random_calls: int = 0

    def __post_init__(self) -> None:
        self.call = Call("graph", self.trace)

    def size(self, name: str, hint: int) -> Dim:
        return self.trace.symbol(name, hint)

    def input(self, shape: Sequence[IntLike], dtype: DType = float32) -> Tensor:
        made = Tensor(("tensor", len(self.inputs)), dtype, tuple(shape), dense_strides(shape), contiguous=True)
        self.inputs.append(made)
        return made

    def keep(self, *tensors: Tensor) -> None:
        self.kept |= {tensor.memory for tensor in tensors}

    def __call__(
        self,
        op: str,
        *arguments: Any,
        shape: Sequence[IntLike] | None = None,
        dtype: DType | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """An op with one result; elementwise shapes and types unless they are said."""
        return self.many(op, *arguments, outs=[(shape, dtype)], into=None if out is None else [out])[0]

    def many(
        self,
        op: str,
        *arguments: Any,
        outs: Sequence[tuple[Sequence[IntLike] | None, DType | None]],
        into: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        values = [self.number(a) if isinstance(a, float) else a for a in arguments]
        made = list(into or ())
        for shape, dtype in outs[len(made) :]:
            full = broadcast(*(t.shape for t in tensors)) if shape is None else shape
            made.append(self.call.temporary(dtype or tensors[0].dtype, full))
        part = self.call.part(op, made)
        before = len(self.call.launches)
        run_lowering(LOWERINGS[op], part, values)
        for launch in self.call.launches[before:]:
            if any(given in ("seed", "offset") for given in launch.params):
                named = [f"{g}:{self.random_calls}" if g in ("seed", "offset") else g for g in launch.params]
                launch = Launch(launch.kernel, launch.buffers, launch.sizes, tuple(named))
            self.steps.append(launch)
        if any(isinstance(g, str) for launch in self.call.launches[before:] for g in launch.params):
            self.random_calls += 1
        return made

    def holds(self, sizes: dict[str, int]) -> bool:
        """True if the kernels are also right for other sizes: all guards are answered alike."""
        numbers = {**self.trace.symbols, **sizes}
        relations = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt}
        relations["ge"] = operator.ge
        return all(relations[name](evaluate_sizes(index, numbers), 0) for name, index in self.trace.guards)

    def lists(
        self, op: str, tensors: Sequence[Tensor], *arguments: Any, like: Tensor, shape: Sequence[IntLike]
    ) -> Tensor:
        """An op on a list of tensors."""
        return self.many(op, list(tensors), *arguments, outs=[(shape, like.dtype)])[0]

    def number(self, value: bool | int | float) -> Number:
        return number_of(value, False, self.trace)

    def copy_into(self, target: Tensor, source: Tensor) -> None:
        """target.copy_(source)"""
        self("aten::clone", source, None, out=target)

    def opaque(self, reads: Sequence[Tensor], writes: Sequence[Tensor], label: str = "eager") -> None:
        self.steps.append(Opaque(frozenset(t.memory for t in reads), frozenset(t.memory for t in writes), label))

    def fused(self, **options: Any) -> Fused:
        return fuse_steps(self.steps, self.kept, **options)

    # ---- running ----

    def arrays(self, seed: int = 0, sizes: dict[str, int] | None = None) -> dict[Memory, Array]:
        """Flat memories: inputs are random numbers, the rest is a value that shows up if it is used."""
        rng = np.random.default_rng(seed)
        numbers = {**self.trace.symbols, **(sizes or {})}
        memories: dict[Memory, Array] = {}
        for tensor in self.inputs:
            count = value_of(tensor.numel, numbers)
            values = rng.standard_normal(count)
            if tensor.dtype is boolean:
                values = values > 0
            elif tensor.dtype.is_integer:
                values = rng.integers(0, 4, count)
            memories[tensor.memory] = stored(values, tensor.dtype)
        for n, tensor in enumerate(self.call.temporaries):
            filled = np.full(value_of(tensor.numel, numbers), 77)
            memories["temporary", n] = stored(filled, tensor.dtype)
        return memories

    def run(self, steps: Sequence[Step], memories: dict[Memory, Array], sizes: dict[str, int] | None = None) -> None:
        numbers = {**self.trace.symbols, **(sizes or {})}
        for step in steps:
            if isinstance(step, Opaque):
                for memory in sorted(step.writes):  # something that depends on what it reads
                    total = sum(int(memories[m].view(np.uint8).sum()) for m in sorted(step.reads))
                    memories[memory][...] = total % 7
                continue
            arrays, found, params = arguments(step, memories, numbers)
            run(step.kernel, arrays, bind_sizes(step.kernel, arrays, found), params)

    def check(self, expected: int | None = None, sizes: dict[str, int] | None = None, **options: Any) -> Fused:
        """Fuses, and compares every kept memory bit for bit; ``expected``: how many launches there must be."""
        fused = self.fused(symbols=dict.fromkeys(self.trace.symbols, (2, None)), **options)
        apart, together = self.arrays(sizes=sizes), self.arrays(sizes=sizes)
        self.run(self.steps, apart, sizes)
        for step in fused.steps:
            if isinstance(step, Launch):
                verify(step.kernel)
        self.run(fused.steps, together, sizes)
        for memory in sorted(self.kept | {t.memory for t in self.inputs}):
            assert np.array_equal(apart[memory].view(np.uint8), together[memory].view(np.uint8)), memory
        if expected is not None:
            text = "\n".join(f"{s.kernel.name if isinstance(s, Launch) else s.label}" for s in fused.steps)
            why = "\n".join(str(d) for d in fused.decisions if not d.fused)
            assert len(fused.steps) == expected, f"{len(fused.steps)} steps:\n{text}\n{why}"
        return fused


def value_of(number: IntLike, numbers: dict[str, int]) -> int:
    return evaluate_sizes(number.index, numbers) if isinstance(number, Dim) else int(number)


def stored(values: Array, dtype: DType) -> Array:
    if dtype.name == "bfloat16":
        return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.asarray(values).astype(dtype.storage)


def arguments(
    launch: Launch, memories: dict[Memory, Array], numbers: dict[str, int]
) -> tuple[dict[str, Array], dict[str, int], dict[str, Any]]:
    """What the interpreter and compiled kernels take: arrays over the memories, sizes, scalars."""
    kernel = launch.kernel
    sizes = {size.name: value_of(number, numbers) for size, number in zip(kernel.sizes, launch.sizes)}
    arrays = {}
    for buffer, tensor in zip(kernel.buffers, launch.buffers):
        memory = memories[tensor.memory]
        shape = tuple(evaluate_sizes(extent, sizes) for extent in buffer.shape)
        steps = tuple(evaluate_sizes(stride, sizes) for stride in buffer.strides)
        offset = value_of(tensor.offset, numbers)
        if 0 in shape:
            arrays[buffer.name] = np.zeros(shape, memory.dtype)
            continue
        low = offset + sum((n - 1) * s for n, s in zip(shape, steps) if s < 0)
        high = offset + sum((n - 1) * s for n, s in zip(shape, steps) if s > 0)
        reach = f"{kernel.name}: {buffer.name} reaches {low} … {high} of {memory.size}"
        assert low >= 0, reach
        assert high < memory.size, reach
        strides = tuple(step * memory.itemsize for step in steps)
        arrays[buffer.name] = np.ndarray(shape, memory.dtype, memory.data, offset * memory.itemsize, strides)
    params: dict[str, Any] = {}
    for param, given in zip(kernel.params, launch.params):
        value = given.value if isinstance(given, Number) else given
        if isinstance(value, str):
            value = 40 + int(value.split(":")[1]) if value.startswith("seed") else 4 * int(value.split(":")[1])
        params[param.name] = value if param.dtype.is_float else int(value)
    return arrays, sizes, params
