"""Which steps come before which: dependencies through memory, and whether two groups of steps may become one.

Sets of steps are bits of an integer: a graph of a thousand steps asks a few thousand times.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from bringup.graph.fusion.steps import Memory


@dataclass
class Group:
    """Steps that are one kernel: their bits, and the bits of every step that must run before."""

    members: int
    before: int
    last: int


@dataclass
class Order:
    """The groups of a graph, in the making."""

    groups: dict[int, Group] = field(default_factory=dict)
    _of_step: list[int] = field(default_factory=list)
    _writers: dict[Memory, int] = field(default_factory=dict)
    _readers: dict[Memory, int] = field(default_factory=dict)

    def add(self, reads: Collection[Memory], writes: Collection[Memory]) -> int:
        """The next step, as a group of its own; its number."""
        number = len(self._of_step)
        direct = 0
        for memory in reads:
            direct |= self._writers.get(memory, 0)
        for memory in writes:
            direct |= self._writers.get(memory, 0) | self._readers.get(memory, 0)
        bit = 1 << number
        for memory in reads:
            self._readers[memory] = self._readers.get(memory, 0) | bit
        for memory in writes:
            self._writers[memory] = self._writers.get(memory, 0) | bit
        before = 0
        for step in bits(direct):
            group = self.groups[self._of_step[step]]
            before |= group.members | group.before
        self.groups[number] = Group(bit, before, number)
        self._of_step.append(number)
        return number

    def group_of(self, step: int) -> int | None:
        """The group that a step belongs to; None if it has not come yet."""
        return self._of_step[step] if step < len(self._of_step) else None

    def reads_too(self, group: int, memory: Memory) -> None:
        """A group reads one more memory: who writes to it from now on comes after."""
        self._readers[memory] = self._readers.get(memory, 0) | self.groups[group].members

    def mergeable(self, a: int, b: int) -> bool:
        """True if no third group must run between two groups."""
        one, two = self.groups[a], self.groups[b]
        return not (self._between(one, two) or self._between(two, one))

    def _between(self, one: Group, two: Group) -> bool:
        candidates = two.before & ~one.members
        if not candidates or not two.before & one.members:
            return False
        return any(
            other.members & candidates and other.before & one.members
            for other in self.groups.values()
            if other is not one and other is not two
        )

    def merge(self, a: int, b: int) -> int:
        """Makes one group of two; it keeps the number of the second."""
        one, two = self.groups.pop(a), self.groups[b]
        members = one.members | two.members
        merged = Group(members, (one.before | two.before) & ~members, max(one.last, two.last))
        self.groups[b] = merged
        for step in bits(one.members):
            self._of_step[step] = b
        for other in self.groups.values():
            if other is not merged and other.before & members:
                other.before |= members | merged.before
        return b

    def must_precede(self, a: int, b: int) -> bool:
        """True if group a runs before group b."""
        return bool(self.groups[b].before & self.groups[a].members)

    def in_order(self) -> list[int]:
        """The groups in an order that keeps every dependency, otherwise as late as their last steps were."""
        waiting = {number: group.before for number, group in self.groups.items()}
        ready = [(group.last, number) for number, group in self.groups.items() if not group.before]
        heapq.heapify(ready)
        for _, number in ready:
            del waiting[number]
        done, result = 0, []
        while ready:
            _, number = heapq.heappop(ready)
            result.append(number)
            done |= self.groups[number].members
            for other in [n for n, before in waiting.items() if not before & ~done]:
                del waiting[other]
                heapq.heappush(ready, (self.groups[other].last, other))
        assert not waiting, "groups wait for each other"
        return result


def bits(number: int) -> Iterator[int]:
    """The places of the bits that are set.

    >>> list(bits(0b1010))
    [1, 3]
    """
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
