"""The example driver with less memory, and the same with real streams: one worker thread each."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from bringup.driver import CopyKind, DeviceSpec
from bringup.driver.lookup import find_driver
from tests.c_compiler import ROOT

Example: Any = type(find_driver(str(ROOT / "examples" / "drivers" / "dictmem.py")))


class Dictmem(Example):  # type: ignore[misc]
    """examples/drivers/dictmem.py with 96 MiB instead of 1 GiB, so that using up the memory is fast."""

    memory = 96 << 20

    def open(self, device: int) -> DeviceSpec:
        return DeviceSpec(super().open(device).name, self.memory)

    def alloc(self, device: int, nbytes: int) -> int:
        if nbytes + sum(map(len, list(self.blocks[device].values()))) > self.memory:
            raise MemoryError(f"no room for {nbytes} bytes on device {device}")
        return int(super().alloc(device, nbytes))


class AsynchronousDictmem(Dictmem):
    """Streams are queues with a worker thread; an event is a threading.Event and the time it was reached."""

    def __init__(self) -> None:
        super().__init__()
        self.handles = itertools.count(1)
        self.queues: dict[tuple[int, int], queue.SimpleQueue[Callable[[], None] | None]] = {}
        self.events: dict[int, tuple[threading.Event, list[float]]] = {}

    def _queue(self, device: int, stream: int) -> queue.SimpleQueue[Callable[[], None] | None]:
        with self.lock:
            if (device, stream) not in self.queues:
                made: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
                self.queues[device, stream] = made
                threading.Thread(target=self._work, args=(made,), daemon=True).start()
            return self.queues[device, stream]

    @staticmethod
    def _work(work: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (item := work.get()) is not None:
            with contextlib.suppress(KeyError):  # a broken subclass may touch a block that was freed
                item()

    def drop(self, device: int, stream: int) -> None:
        """Throws away what is queued; events that are queued complete at once."""
        kept = self._queue(device, stream)
        while not kept.empty():
            item = kept.get()
            if item is not None and getattr(item, "__name__", "") == "reached":
                item()

    def copy(self, device: int, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int) -> None:
        move = super().copy
        self._queue(device, stream).put(lambda: move(device, dst, src, nbytes, kind, 0))

    def stream_create(self, device: int, priority: int) -> int:
        return next(self.handles)

    def stream_destroy(self, device: int, stream: int) -> None:
        self._queue(device, stream).put(None)

    def event_record(self, device: int, stream: int) -> int:
        done, when = threading.Event(), [0.0]

        def reached() -> None:
            when[0] = time.perf_counter()
            done.set()

        event = next(self.handles)
        self.events[event] = (done, when)
        self._queue(device, stream).put(reached)
        return event

    def event_query(self, device: int, event: int) -> bool:
        return self.events[event][0].is_set()

    def event_wait(self, device: int, event: int, wait_device: int, wait_stream: int) -> None:
        done = self.events[event][0]
        if wait_stream == -1:
            done.wait()
        else:
            self._queue(wait_device, wait_stream).put(lambda: done.wait() and None)

    def event_elapsed(self, device: int, start: int, end: int) -> float:
        return (self.events[end][1][0] - self.events[start][1][0]) * 1e3

    def event_destroy(self, device: int, event: int) -> None:
        del self.events[event]

    def host_function(self, device: int, stream: int, function: Callable[[], None]) -> None:
        self._queue(device, stream).put(function)
