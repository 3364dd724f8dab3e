"""torch.<name>.nvtx: ranges and marks of a program in its timeline, with the names of torch.cuda.nvtx.

They are ``record_function`` ranges of the calling thread: torch.profiler shows them beside ops, and over the streams.
Where no profile is on they cost a microsecond.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from torch.autograd.profiler import record_function

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]

_open = threading.local()
_started: dict[int, record_function] = {}
_numbers = count(1)


def _stack() -> list[record_function]:
    if not hasattr(_open, "ranges"):
        _open.ranges = []
    ranges: list[record_function] = _open.ranges
    return ranges


def range_push(msg: str) -> int:
    """Opens a range inside of those that the thread has open; returns how many there were.

    >>> torch.sim.nvtx.range_push("step")  # doctest: +SKIP
    0
    """
    ranges = _stack()
    ranges.append(record_function(msg))
    ranges[-1].__enter__()
    return len(ranges) - 1


def range_pop() -> int:
    """Closes the thread's innermost range; returns how many are left, or -1 where none was open."""
    ranges = _stack()
    if not ranges:
        return -1
    ranges.pop().__exit__(None, None, None)
    return len(ranges)


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    """A range around a ``with`` block or a function; ``msg`` is formatted with the other arguments.

    >>> with torch.sim.nvtx.range("step {}", 3):  # doctest: +SKIP
    ...     train()
    """
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()


def mark(msg: str) -> None:
    """A moment of the calling thread."""
    with record_function(msg):
        pass


def range_start(msg: str) -> int:
    """Opens a range that ``range_end`` closes by the number returned here; it need not be nested."""
    number = next(_numbers)
    _started[number] = record_function(msg)
    _started[number].__enter__()
    return number


def range_end(range_id: int) -> None:
    """Closes a range that ``range_start`` opened."""
    started = _started.pop(range_id, None)
    if started is None:
        raise ValueError(f"there is no range {range_id} that range_start opened and nobody has closed")
    started.__exit__(None, None, None)
