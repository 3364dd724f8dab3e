"""Which bytes a strided tensor has, as far as two of them must be told apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Runs of bytes that are looked at one by one; tensors in more pieces count as one piece from end to end.
_MOST_RUNS = 1 << 20


@dataclass(frozen=True)
class Span:
    """Elements of a tensor in memory: the address of the first, sizes, strides in elements, bytes of an element."""

    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def end(self) -> int:
        """Where the last byte ends."""
        reach = sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True))
        return self.address + (reach + 1) * self.itemsize

    def runs(self) -> tuple[np.ndarray, int]:
        """Where its contiguous runs of bytes begin, in order, and how long each is."""
        length = self.itemsize
        outer = []
        dims = zip(self.strides, self.sizes, strict=True)
        for stride, size in sorted((stride, size) for stride, size in dims if size > 1 and stride > 0):
            if stride * self.itemsize == length:
                length *= size
            else:
                outer.append((stride * self.itemsize, size))
        count = 1
        for _, size in outer:
            count *= size
        if count > _MOST_RUNS:
            return np.array([self.address]), self.end - self.address
        starts = np.array([self.address], dtype=np.int64)
        for step, size in outer:
            starts = (starts[:, None] + step * np.arange(size, dtype=np.int64)).ravel()
        return np.unique(starts), length

    def overlaps(self, other: Span) -> bool:
        """Whether the two have a byte in common.

        >>> left, right = Span(0, (4, 2), (4, 1), 4), Span(8, (4, 2), (4, 1), 4)  # halves of a 4 x 4 matrix
        >>> left.overlaps(right), left.overlaps(Span(4, (4, 2), (4, 1), 4))
        (False, True)
        """
        if 0 in self.sizes or 0 in other.sizes or self.end <= other.address or other.end <= self.address:
            return False
        mine, length = self.runs()
        theirs, other_length = other.runs()
        before = (
            np.searchsorted(theirs, mine, side="right") - 1
        )  # the last of theirs that begins where mine does, or earlier
        found = (before >= 0) & (theirs[np.maximum(before, 0)] + other_length > mine)
        after = np.minimum(before + 1, len(theirs) - 1)
        return bool(np.any(found | ((before + 1 < len(theirs)) & (theirs[after] < mine + length))))
