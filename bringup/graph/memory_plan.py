"""Where temporaries lie in one arena: those that do not live at the same time may share bytes.

Each temporary goes to the smallest gap that is free during its life. The order in which they are placed decides how
well that ends, and none is always best (GPT-2's blocks by size: 1.17 × the bound, by first use: 1.00): several are
tried.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Every temporary starts at a multiple of this: a cache line, and a vector of the widest kernels.
ALIGNMENT = 64


@dataclass(frozen=True)
class Life:
    """The first and the last step that touch a temporary."""

    first: int
    last: int

    def meets(self, other: Life) -> bool:
        """True if both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class MemoryPlan:
    """Offsets in an arena, and how good they are: its bytes, the most that is alive at one step, and the sum of all."""

    offsets: tuple[int, ...]
    arena: int
    bound: int
    total: int


def aligned(nbytes: int) -> int:
    """The next multiple of the alignment.

    >>> aligned(1), aligned(64)
    (64, 64)
    """
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def plan_memory(sizes: Sequence[int], lives: Sequence[Life]) -> MemoryPlan:
    """Places temporaries of some sizes in bytes.

    >>> plan_memory([100, 50, 100], [Life(0, 1), Life(1, 2), Life(2, 3)]).offsets
    (0, 128, 0)
    """
    padded = [aligned(size) for size in sizes]
    bound = _bound(padded, lives)
    best: tuple[int, list[int]] | None = None
    for order in _ORDERS:
        offsets = _placed(padded, lives, sorted(range(len(sizes)), key=lambda n: (*order(padded[n], lives[n]), n)))
        arena = max((at + size for at, size in zip(offsets, padded) if size), default=0)
        if best is None or arena < best[0]:
            best = (arena, offsets)
        if arena == bound:
            break
    assert best is not None
    return MemoryPlan(tuple(best[1]), best[0], bound, sum(padded))


_ORDERS: tuple[Callable[[int, Life], tuple[int, ...]], ...] = (
    lambda size, life: (-size, life.first),
    lambda size, life: (life.first, -size),
    lambda size, life: (life.first - life.last, -size),
    lambda size, life: (-size * (life.last - life.first + 1), life.first),
    lambda size, life: (-life.last, -size),
)


def _placed(padded: Sequence[int], lives: Sequence[Life], order: Sequence[int]) -> list[int]:
    """An offset for each, in the order given; 0 for those without bytes."""
    offsets = [0] * len(padded)
    placed: list[tuple[int, int]] = []  # (offset, temporary), by offset
    for one in order:
        if not padded[one]:
            continue
        at, best, smallest = 0, 0, -1
        for start, other in placed:
            if not lives[one].meets(lives[other]):
                continue
            gap = start - at
            if gap >= padded[one] and (smallest < 0 or gap < smallest):
                smallest, best = gap, at
            at = max(at, start + padded[other])
        offsets[one] = at if smallest < 0 else best
        bisect.insort(placed, (offsets[one], one))
    return offsets


def _bound(padded: Sequence[int], lives: Sequence[Life]) -> int:
    """The most bytes that are alive at one step."""
    change: dict[int, int] = {}
    for size, life in zip(padded, lives):
        change[life.first] = change.get(life.first, 0) + size
        change[life.last + 1] = change.get(life.last + 1, 0) - size
    alive = most = 0
    for step in sorted(change):
        alive += change[step]
        most = max(most, alive)
    return most
