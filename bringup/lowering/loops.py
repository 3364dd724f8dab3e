"""The fewest loops over several tensors: dimensions of 1 dropped, ordered by memory, neighbours merged."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.lowering.symbolic import IntLike, hint_of, single

#: One loop: its extent, and how far each tensor moves per step.
LoopDim = tuple[IntLike, tuple[IntLike, ...]]


def in_memory_order(dims: Sequence[LoopDim]) -> list[LoopDim]:
    """Outermost first by the first tensor's strides; where it does not move, by the next one's. No guards: any order
    of independent loops means the same.

    >>> in_memory_order([(2, (1, 1)), (3, (2, 2))])
    [(3, (2, 2)), (2, (1, 1))]
    """

    def inside(a: LoopDim, b: LoopDim) -> bool:
        for x, y in zip(a[1], b[1]):
            x, y = abs(hint_of(x)), abs(hint_of(y))
            if x and y and x != y:
                return x < y
        return False

    ordered: list[LoopDim] = []
    for dim in dims:
        at = len(ordered)
        while at and inside(ordered[at - 1], dim):
            at -= 1
        ordered.insert(at, dim)
    return ordered


def merged(dims: Sequence[LoopDim]) -> list[LoopDim]:
    """The same loops with extents of 1 dropped and neighbours joined where every tensor walks straight on.

    >>> merged([(2, (12, 0)), (1, (5, 5)), (3, (4, 0)), (4, (1, 1))])
    [(6, (4, 0)), (4, (1, 1))]
    """
    result: list[LoopDim] = []
    for extent, strides in dims:
        if single(extent):
            continue
        if result:
            above, steps = result[-1]
            if all(step == stride * extent for step, stride in zip(steps, strides)):
                result[-1] = (above * extent, strides)
                continue
        result.append((extent, strides))
    return result
