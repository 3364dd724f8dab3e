"""How a contraction is cut: tiles of sums that fit into registers, and the part of k that is written out in a row."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bringup.targets.riscv.contraction import Span

#: Sums that compilers keep in the 32 floating-point registers beside what they multiply: gcc spills from 20 on.
SUMS = 16
#: The same for integers, whose registers also hold pointers and counters.
INTEGER_SUMS = 6
#: Sums of 64 bits, each of which holds two of 32: their loops have room for more, since fewer numbers wait for them.
PAIR_SUMS = 8
#: Products of one sum that are written out in a row: more is longer code for hardly fewer jumps.
_UNROLLED = 16
#: Of an axis that is longer than that: 4 steps leave 0.75 instructions of loop for each.
_LONG = 4


def best_tile(rows: int, columns: int, sums: int = SUMS) -> tuple[int, int]:
    """The tile (rows, columns) that needs the fewest instructions for all the sums, of which some fit into registers.

    >>> best_tile(1, 128), best_tile(16, 100)
    ((1, 16), (4, 4))
    """
    tiles = [(r, p) for r in range(1, min(rows, sums) + 1) for p in range(1, min(columns, sums) + 1) if r * p <= sums]
    return min(tiles, key=lambda tile: (_cost(rows, columns, *tile), -tile[0] * tile[1]))


def best_height(rows: int, columns: int, sums: int = SUMS) -> int:
    """The same where all columns must be in one tile.

    >>> best_height(16, 4)
    4
    """
    heights = [r for r in range(1, min(rows, sums) + 1) if r * columns <= sums] or [1]
    return min(heights, key=lambda r: (_cost(rows, columns, r, columns), -r))


def best_pair_tile(rows: int, columns: int) -> tuple[int, int]:
    """The tile where two rows are one number, for which a shift and an addition are needed.

    >>> best_pair_tile(16, 100)
    (4, 4)
    """
    tiles = [(2 * r, p) for r in range(1, PAIR_SUMS + 1) for p in range(1, min(columns, PAIR_SUMS) + 1)]
    fitting = [(r, p) for r, p in tiles if r // 2 * p <= PAIR_SUMS and r <= rows + rows % 2]

    def cost(tile: tuple[int, int]) -> int:
        return sum(
            len(down) * len(across) * ((h + 1) // 2 * (2 * w + 2) + h + w + 1)
            for down, h in pieces(rows, tile[0])
            for across, w in pieces(columns, tile[1])
        )

    return min(fitting, key=lambda tile: (cost(tile), -tile[0] * tile[1]))


def _cost(rows: int, columns: int, height: int, width: int) -> int:
    """Instructions of one step along k, for all tiles; a loop's own come to about one a tile."""
    return sum(
        len(down) * len(across) * (h * w + h + w + 1)
        for down, h in pieces(rows, height)
        for across, w in pieces(columns, width)
    )


def pieces(extent: int, size: int) -> Iterator[tuple[range, int]]:
    """The starts of all whole tiles along an axis with their size, then that of the rest.

    >>> [(list(starts), size) for starts, size in pieces(10, 4)]
    [([0, 4], 4), ([8], 2)]
    """
    whole = extent // size * size
    if whole:
        yield range(0, whole, size), size
    if extent > whole:
        yield range(whole, extent, extent - whole), extent - whole


@dataclass(frozen=True)
class Walk:
    """The way along k: loops over ``outer``, inside them the ``inner`` positions one after the other."""

    outer: tuple[Span, ...]
    inner: tuple[tuple[int, int], ...]
    """Offsets (row factor, column factor)."""


def walks(k: Sequence[Span]) -> list[Walk]:
    """The ways along k, one after the other: the second is what is left of a long axis.

    >>> from bringup.ir.index import Int
    >>> from bringup.ir.kernel import Axis
    >>> [len(walk.inner) for walk in walks([Span(Axis("k", Int(30)), 30, 1, 1)])]
    [4, 2]
    """
    if not k:
        return [Walk((), ((0, 0),))]
    inner: list[Span] = []
    for span in reversed(k):
        if math.prod(one.extent for one in inner) * span.extent > _UNROLLED:
            break
        inner.insert(0, span)
    outer = list(k[: len(k) - len(inner)])
    if inner:
        return [Walk(tuple(outer), _offsets(inner))]
    last = outer.pop()
    # The rest of a long axis comes after it: its sums go on in order only if nothing is outside of it.
    step = _LONG if not outer else max(n for n in range(1, _LONG + 1) if last.extent % n == 0)
    run = _offsets([replace(last, extent=step)])
    moved = replace(
        last, extent=last.extent // step, row_step=last.row_step * step, column_step=last.column_step * step
    )
    out = [Walk((*outer, moved), run)]
    if last.extent % step:
        done = last.extent // step * step
        rest = _offsets([replace(last, extent=last.extent % step)])
        out.append(Walk((), tuple((r + done * last.row_step, c + done * last.column_step) for r, c in rest)))
    return out


def _offsets(spans: Sequence[Span]) -> tuple[tuple[int, int], ...]:
    places = itertools.product(*(range(span.extent) for span in spans))
    return tuple(
        (sum(p * s.row_step for p, s in zip(at, spans)), sum(p * s.column_step for p, s in zip(at, spans)))
        for at in places
    )


def packed_order(
    base: int, outer: Sequence[tuple[int, int]], lanes: tuple[int, int], size: int, k: Sequence[tuple[int, int]]
) -> npt.NDArray[np.int64]:
    """The elements of a factor as tiles of ``size`` lanes read them; axes are (extent, step).

    >>> packed_order(0, [], (3, 2), 2, [(2, 1)]).tolist()
    [0, 2, 1, 3, 4, 5]
    """
    starts = _all(base, outer)
    along = _all(0, k)
    parts = []
    for tile, width in ((at, width) for some, width in pieces(lanes[0], size) for at in some):
        lane = np.arange(tile, tile + width, dtype=np.int64) * lanes[1]
        parts.append((starts[:, None, None] + along[None, :, None] + lane[None, None, :]).reshape(len(starts), -1))
    return np.concatenate(parts, axis=1).reshape(-1)


def _all(base: int, axes: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
    out = np.array([base], dtype=np.int64)
    for extent, step in axes:
        out = (out[:, None] + np.arange(extent, dtype=np.int64)[None, :] * step).reshape(-1)
    return out
