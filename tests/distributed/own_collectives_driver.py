"""sim, with collectives of its own: ranks meet in a shared mapping, and each collective runs on a stream.

``BRINGUP_TEST_COLLECTIVES`` names those that it offers (default: all); each rank writes a line into the
file ``BRINGUP_TEST_COUNTS`` with its number behind it, for each that was queued.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy

from bringup.driver import EventFlags, Reduction
from bringup.drivers.sim import Driver as Sim

COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
OFFERED = os.environ.get("BRINGUP_TEST_COLLECTIVES", " ".join(COLLECTIVES)).split()
ROOM = 64 << 20  # bytes of one rank in a collective
COMBINE = {
    Reduction.SUM: numpy.add, Reduction.AVG: numpy.add, Reduction.PRODUCT: numpy.multiply, Reduction.MIN: numpy.minimum,
    Reduction.MAX: numpy.maximum, Reduction.BAND: numpy.bitwise_and, Reduction.BOR: numpy.bitwise_or,
    Reduction.BXOR: numpy.bitwise_xor,
}  # fmt: skip


@dataclass
class Comm:
    """A group: a counter of each rank's steps, then room for the bytes of each."""

    file: Path
    memory: mmap.mmap
    rank: int
    size: int
    seconds: float
    ended: bool = False

    def __post_init__(self) -> None:
        self.steps = numpy.frombuffer(self.memory, numpy.int64, 512)

    def step(self, what: str) -> None:
        """Waits until every rank is here."""
        self.steps[8 * self.rank] += 1
        end = time.monotonic() + self.seconds
        while any(self.steps[8 * rank] < self.steps[8 * self.rank] for rank in range(self.size)):
            if self.ended:
                raise RuntimeError(f"{what}: the communicator was destroyed")
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: other ranks are not there after {self.seconds} s")
            time.sleep(0.0005)

    def room(self, rank: int, nbytes: int) -> numpy.ndarray:
        return numpy.frombuffer(self.memory, numpy.uint8, nbytes, 4096 + rank * ROOM)


class Driver(Sim):
    name = "loopback"

    def __init__(self, options: str | None = None) -> None:
        super().__init__(options)
        self._comms: dict[int, Comm] = {}
        self._stream_of: dict[int, int] = {}  # event → stream
        self._failed: dict[int, Exception] = {}  # stream → what its next user hears
        self._lock = threading.Lock()
        self._base: dict[int, int] = {}

    def open(self, device):  # type: ignore[no-untyped-def]
        spec = super().open(device)
        self._base[device] = spec.host_offset
        return spec

    # ---- failures of queued work ----
    def event_record(self, device: int, stream: int, flags: EventFlags = EventFlags.NONE) -> int:
        event = super().event_record(device, stream, flags)
        self._stream_of[event] = stream
        return event

    def event_wait(self, device: int, event: int, wait_device: int, wait_stream: int) -> None:
        super().event_wait(device, event, wait_device, wait_stream)
        if wait_stream == -1 and (error := self._failed.pop(self._stream_of.get(event, -1), None)):
            raise error

    def event_destroy(self, device: int, event: int) -> None:
        self._stream_of.pop(event, None)
        super().event_destroy(device, event)

    def _queue(self, device: int, stream: int, comm: int, what: str, work: Callable[[Comm], None]) -> None:
        def run() -> None:
            try:
                work(self._comms[comm])
            except Exception as error:
                self._failed[stream] = error

        if counts := os.environ.get("BRINGUP_TEST_COUNTS"):
            with open(f"{counts}.{os.getpid()}", "a") as file:
                file.write(f"{what}\n")
        self.host_function(device, stream, run)

    def _bytes(self, device: int, address: int, nbytes: int) -> numpy.ndarray:
        host = (ctypes.c_uint8 * nbytes).from_address(address + self._base[device])
        return numpy.frombuffer(host, numpy.uint8)

    # ---- the group ----
    def comm_id(self, device: int) -> str:
        handle, name = tempfile.mkstemp(prefix="bringup-comm-")
        os.close(handle)
        return name

    def comm_create(self, device: int, comm_id: str, rank: int, size: int, timeout_ms: int) -> int:
        with open(comm_id, "r+b") as file:
            file.truncate(4096 + size * ROOM)  # sparse
            memory = mmap.mmap(file.fileno(), 4096 + size * ROOM)
        comm = Comm(Path(comm_id), memory, rank, size, timeout_ms / 1000)
        comm.step("comm_create")
        if rank == 0:
            comm.file.unlink()
        with self._lock:
            self._comms[len(self._comms) + 1] = comm
            return len(self._comms)

    def comm_destroy(self, device: int, comm: int) -> None:
        self._comms[comm].ended = True

    def all_reduce(self, device, comm, dst, src, count, dtype, reduction, stream):  # type: ignore[no-untyped-def]
        if dtype == "bfloat16":
            raise NotImplementedError("no bfloat16 here")
        kind = numpy.dtype(dtype)

        def work(group: Comm) -> None:
            nbytes = count * kind.itemsize
            group.room(group.rank, nbytes)[:] = self._bytes(device, src, nbytes)
            group.step("all_reduce")
            total = group.room(0, nbytes).view(kind).copy()
            for rank in range(1, group.size):
                total = COMBINE[reduction](total, group.room(rank, nbytes).view(kind))
            if reduction == Reduction.AVG:
                total = (total / group.size).astype(kind)
            self._bytes(device, dst, nbytes)[:] = total.view(numpy.uint8)
            group.step("all_reduce")

        self._queue(device, stream, comm, "all_reduce", work)

    def broadcast(self, device, comm, address, nbytes, root, stream):  # type: ignore[no-untyped-def]
        def work(group: Comm) -> None:
            if group.rank == root:
                group.room(root, nbytes)[:] = self._bytes(device, address, nbytes)
            group.step("broadcast")
            self._bytes(device, address, nbytes)[:] = group.room(root, nbytes)
            group.step("broadcast")

        self._queue(device, stream, comm, "broadcast", work)

    def all_gather(self, device, comm, dst, src, nbytes, stream):  # type: ignore[no-untyped-def]
        def work(group: Comm) -> None:
            group.room(group.rank, nbytes)[:] = self._bytes(device, src, nbytes)
            group.step("all_gather")
            for rank in range(group.size):
                self._bytes(device, dst + rank * nbytes, nbytes)[:] = group.room(rank, nbytes)
            group.step("all_gather")

        self._queue(device, stream, comm, "all_gather", work)

    def reduce_scatter(self, device, comm, dst, src, count, dtype, reduction, stream):  # type: ignore[no-untyped-def]
        if dtype == "bfloat16":
            raise NotImplementedError("no bfloat16 here")
        kind = numpy.dtype(dtype)

        def work(group: Comm) -> None:
            nbytes = count * kind.itemsize
            everything = nbytes * group.size
            group.room(group.rank, everything)[:] = self._bytes(device, src, everything)
            group.step("reduce_scatter")
            mine = slice(group.rank * count, group.rank * count + count)
            parts = [group.room(rank, everything).view(kind)[mine] for rank in range(group.size)]
            total = parts[0].copy()
            for part in parts[1:]:
                total = COMBINE[reduction](total, part)
            if reduction == Reduction.AVG:
                total = (total / group.size).astype(kind)
            self._bytes(device, dst, nbytes)[:] = total.view(numpy.uint8)
            group.step("reduce_scatter")

        self._queue(device, stream, comm, "reduce_scatter", work)


for _name in COLLECTIVES:
    if _name not in OFFERED:
        delattr(Driver, _name)
