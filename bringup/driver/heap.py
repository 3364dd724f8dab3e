"""Device memory, handed out by the host: first fit, and neighbours that are free become one."""

from __future__ import annotations

import bisect
import threading


class Heap:
    """The addresses from ``start`` to ``end``; methods may be called from several threads.

    >>> heap = Heap(0x1000, 0x2000)
    >>> hex(heap.allocate(100)), hex(heap.allocate(100))
    ('0x1000', '0x1080')
    >>> heap.free(0x1000)
    >>> hex(heap.allocate(64)), hex(heap.allocate(64, at_end=True))
    ('0x1000', '0x1fc0')
    """

    def __init__(self, start: int, end: int, alignment: int = 64) -> None:
        self.start, self.end, self.alignment = start, end, alignment
        self._lock = threading.Lock()
        self._free: list[tuple[int, int]] = [(start, end)]
        self._used: dict[int, int] = {}

    def allocate(self, nbytes: int, at_end: bool = False) -> int:
        """The address of a new block; ``at_end`` keeps what is never given back away from what comes and goes."""
        size = max(1, -(-nbytes // self.alignment)) * self.alignment
        with self._lock:
            numbers = range(len(self._free))
            for number in reversed(numbers) if at_end else numbers:
                start, end = self._free[number]
                if end - start < size:
                    continue
                address = end - size if at_end else start
                left = (start, address) if at_end else (address + size, end)
                self._free[number : number + 1] = [left] if left[0] < left[1] else []
                self._used[address] = size
                return address
            free = sum(end - start for start, end in self._free)
            largest = max((end - start for start, end in self._free), default=0)
        raise MemoryError(f"no room for {nbytes} bytes: {free} are free, {largest} of them in one piece")

    def free(self, address: int) -> None:
        """Gives a block back."""
        with self._lock:
            size = self._used.pop(address, None)
            if size is None:
                raise ValueError(f"nothing is allocated at {address:#x}")
            start, end = address, address + size
            number = bisect.bisect(self._free, (start, end))
            first = last = number
            if number > 0 and self._free[number - 1][1] == start:
                start, first = self._free[number - 1][0], number - 1
            if number < len(self._free) and self._free[number][0] == end:
                end, last = self._free[number][1], number + 1
            self._free[first:last] = [(start, end)]

    def blocks(self) -> list[tuple[int, int]]:
        """(address, bytes) of all that is allocated."""
        with self._lock:
            return sorted(self._used.items())
