"""Launches that compute once more what is there already: the bags of words of eight embeddings with the same offsets.

AOTAutograd joins equal nodes, but a node's lowering is several launches, of which some are equal where the nodes are
not. An allocation is the same as an earlier one if it is written by the same kernels, which get the same contents: its
writers are left out, and its readers read the earlier one. Contents have numbers, as in value numbering.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace

from bringup.graph.fusion.steps import Memory, Opaque, Step
from bringup.ir.kernel import Kernel
from bringup.lowering.call import LoweredLaunch, Number, Tensor
from bringup.lowering.symbolic import index_of


def without_repeats(
    steps: Sequence[Step], kept: Collection[Memory], temporaries: Sequence[Tensor]
) -> list[tuple[int, Step]]:
    """The steps that are needed, with their numbers; they read the first of equal allocations. What is ``kept`` must
    hold its value in the end.

    >>> without_repeats([], (), ())
    []
    """
    contents = _Contents([index_of(one.numel * one.dtype.size) for one in temporaries])
    for number, step in enumerate(steps):
        contents.add(number, step)
    same = contents.equal_ones(kept)
    if not same:
        return list(enumerate(steps))
    gone = {number for memory in same for number in contents.histories[memory].writers}
    return [(number, _reading(step, same)) for number, step in enumerate(steps) if number not in gone]


def _reading(step: Step, same: dict[Memory, Memory]) -> Step:
    if isinstance(step, Opaque) or not any(tensor.memory in same for tensor in step.buffers):
        return step
    return replace(step, buffers=tuple(replace(t, memory=same.get(t.memory, t.memory)) for t in step.buffers))


@dataclass
class _History:
    """What happens to an allocation: the number of its contents after each write, who writes, who reads."""

    contents: list[int] = field(default_factory=list)
    writers: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)


class _Contents:
    def __init__(self, sizes: Sequence[Hashable]) -> None:
        self._sizes = sizes
        self.histories: dict[Memory, _History] = {}
        self._written: dict[int, set[Memory]] = {}
        self._numbers: dict[Hashable, int] = {}
        self._filled: set[int] = set()  # contents that are made of nothing: readers compute them themselves
        self._input_writes = 0  # inputs may share memory: after a write to one, none is what it was

    def _number(self, what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))

    def _now(self, memory: Memory) -> int:
        """The number of what an allocation holds."""
        history = self.histories.setdefault(memory, _History())
        if memory[0] != "temporary":
            return self._number((memory, self._input_writes))
        if history.contents:
            return history.contents[-1]
        number = self._number(("new", self._sizes[memory[1]]))
        self._filled.add(number)
        return number

    def add(self, number: int, step: Step) -> None:
        """One more step, in order."""
        if isinstance(step, Opaque) or not isinstance(step.kernel, Kernel):
            touched = step.reads | step.writes if isinstance(step, Opaque) else {t.memory for t in step.buffers}
            self._note(number, touched, touched, {memory: (number, memory) for memory in touched}, filled=False)
            return
        memories = {tensor.memory for tensor in step.buffers}
        order = {memory: n for n, memory in enumerate(dict.fromkeys(t.memory for t in step.buffers))}
        stores = step.kernel.written
        written = {t.memory for t, buffer in zip(step.buffers, step.kernel.buffers) if buffer.name in stores}
        key = _key(step, [(order[t.memory], self._now(t.memory)) for t in step.buffers])
        filled = memories == written and all(self._now(memory) in self._filled for memory in memories)
        self._note(number, memories, written, {memory: (key, order[memory]) for memory in written}, filled)

    def _note(
        self,
        number: int,
        read: Collection[Memory],
        written: Collection[Memory],
        made: dict[Memory, Hashable],
        filled: bool,
    ) -> None:
        self._written[number] = set(written)
        for memory in read:
            self._now(memory)
            self.histories[memory].readers.append(number)
        self._input_writes += any(memory[0] != "temporary" for memory in written)
        for memory in written:
            contents = self._number(made[memory])
            self.histories[memory].contents.append(contents)
            self.histories[memory].writers.append(number)
            if filled:
                self._filled.add(contents)

    def equal_ones(self, kept: Collection[Memory]) -> dict[Memory, Memory]:
        """Allocation → an earlier one that can be read in its place."""
        first: dict[tuple[int, ...], Memory] = {}
        same: dict[Memory, Memory] = {}
        for memory, history in self.histories.items():
            if memory[0] != "temporary" or not history.contents or history.contents[-1] in self._filled:
                continue
            other = first.setdefault(tuple(history.contents), memory)
            if other != memory and memory not in kept and self.histories[other].writers[-1] < history.writers[0]:
                same[memory] = other
        while wrong := [memory for memory in same if not self._replaceable(memory, same)]:
            for memory in wrong:
                del same[memory]
        return same

    def _replaceable(self, memory: Memory, same: dict[Memory, Memory]) -> bool:
        """True if its writers make nothing else, and nobody else reads it before it is complete."""
        history = self.histories[memory]
        if any(not self._written[number] <= same.keys() for number in history.writers):
            return False
        return all(number > history.writers[-1] or self._gone(number, same) for number in history.readers)

    def _gone(self, number: int, same: dict[Memory, Memory]) -> bool:
        return bool(self._written[number]) and self._written[number] <= same.keys()


def _key(launch: LoweredLaunch, contents: Sequence[tuple[int, int]]) -> Hashable:
    """Equal for launches that compute the same."""
    views = tuple(
        (
            *held,
            t.dtype,
            t.placement,
            tuple(map(index_of, t.shape)),
            tuple(map(index_of, t.strides)),
            index_of(t.offset),
        )
        for held, t in zip(contents, launch.buffers)
    )
    params = tuple(
        (given.slot, repr(given.value), given.dtype) if isinstance(given, Number) else given for given in launch.params
    )
    return launch.kernel, views, tuple(map(index_of, launch.sizes)), params
