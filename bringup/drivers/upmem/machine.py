"""One device: a set of DPUs whose MRAMs hold the same offsets, the bytes of storages in them, and launches.

A storage's bytes lie as its placement says (``Placement``). Transfers take pieces of 8 bytes at multiples of 8, one of
the same offset in each DPU at a time; what else is asked for is read, changed and written.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bringup.driver import Placement, PlacementKind
from bringup.driver.heap import Heap
from bringup.drivers.upmem.options import Options
from bringup.drivers.upmem.times import Times

if TYPE_CHECKING:
    import numpy.typing as npt

    from bringup.driver import Launch
    from bringup.upmem.sdk import Sdk
    from bringup.upmem.timing import LaunchTime

    Bytes = npt.NDArray[np.uint8]

#: The first bytes of MRAM stay unused, so that no address is 0.
_START = 4096
#: What a program takes of the instruction memory, at most: its real size is known to UPMEM's compiler only.
_PROGRAM_BYTES = 24 << 10


@dataclass(frozen=True)
class Program:
    """A kernel that is compiled."""

    name: str
    binary: bytes


@dataclass(frozen=True)
class Transfer:
    """A part of a storage: ``nbytes`` in each of ``count`` DPUs from ``first`` on, at the same offset ``local``."""

    logical: int  # from where the transfer starts
    first: int
    count: int
    local: int
    nbytes: int


class Machine:
    """The DPUs of one device."""

    def __init__(self, options: Options, sdk: Sdk | None = None) -> None:
        from bringup.upmem.host import DpuSet
        from bringup.upmem.sdk import SdkSet
        from bringup.upmem.toolchain import MRAM_BYTES

        self.dpus: DpuSet = SdkSet(options.dpus, sdk) if sdk else DpuSet(options.dpus)
        self.count, self.tasklets = options.dpus, options.tasklets
        self.heap = Heap(_START, MRAM_BYTES)
        self.times = Times(options.dpus, options.tasklets, bool(options.timing), measured=sdk is not None)
        self._loaded: Program | None = None
        self._lock = threading.RLock()

    def close(self) -> None:
        """Gives the DPUs back."""
        self.dpus.close()

    # ---- bytes of a storage ----
    def pieces(self, placement: Placement, nbytes: int) -> Iterator[Transfer]:
        """Yields where the bytes from ``placement.offset`` on lie, whole rows of blocks as one piece.

        >>> machine = Machine.__new__(Machine)
        >>> machine.count = 4
        >>> [(p.first, p.count, p.local, p.nbytes) for p in machine.pieces(Placement(PlacementKind.SHARD, 8, 4), 24)]
        [(0, 1, 4, 4), (1, 2, 0, 8), (3, 1, 0, 4)]
        """
        offset, block = placement.offset, placement.block
        if placement.kind != PlacementKind.SHARD:
            yield Transfer(0, 0, 1 if placement.kind == PlacementKind.SINGLE else self.count, offset, nbytes)
            return
        if block <= 0 or block % 8:
            raise ValueError(f"a block of {block} bytes: it has to be a multiple of 8")
        at, end = offset, offset + nbytes
        while at < end:
            first, inside = at // block % self.count, at % block
            local = at // (block * self.count) * block + inside
            whole = (end - at) // block if inside == 0 else 0
            if whole:
                count = min(whole, self.count - first)
                yield Transfer(at - offset, first, count, local, block)
                at += count * block
            else:
                length = min(block - inside, end - at)
                yield Transfer(at - offset, first, 1, local, length)
                at += length

    def read(self, base: int, placement: Placement, nbytes: int, phase: str, row: str) -> Bytes:
        """Returns logical bytes of a storage; those of summands are their sum."""
        out = np.zeros(nbytes, np.uint8)
        with self._lock:
            for piece in self.pieces(placement, nbytes):
                parted = placement.kind == PlacementKind.PARTIAL
                count = piece.count if parted or placement.kind == PlacementKind.SHARD else 1
                found = self._read(piece.first, count, base + piece.local, piece.nbytes)
                self.times.transfer(row, phase, piece.nbytes, count, to=False, spent=self.dpus.spent)
                if parted:
                    if nbytes % 4 or placement.offset % 4:
                        raise ValueError("a storage of summands holds float32: the range would cut one")
                    out[:] = found.view(np.float32).sum(axis=0, dtype=np.float32).view(np.uint8)
                else:
                    out[piece.logical : piece.logical + found.size] = found.reshape(-1)
        return out

    def write(self, base: int, placement: Placement, data: Bytes, phase: str, row: str) -> None:
        """Writes logical bytes of a storage."""
        with self._lock:
            for piece in self.pieces(placement, len(data)):
                local = base + piece.local
                if placement.kind == PlacementKind.SHARD:
                    part = data[piece.logical : piece.logical + piece.count * piece.nbytes]
                    self._write(piece.first, part.reshape(piece.count, piece.nbytes), local)
                else:
                    rows = np.broadcast_to(data, (piece.count, len(data)))
                    if placement.kind == PlacementKind.PARTIAL:
                        rows = rows.copy()
                        rows[1:] = 0
                    self._write(piece.first, rows, local)
                everywhere = placement.kind == PlacementKind.REPLICATE
                spent = self.dpus.spent
                self.times.transfer(row, phase, piece.nbytes, piece.count, to=True, broadcast=everywhere, spent=spent)

    def _read(self, first: int, count: int, local: int, nbytes: int) -> Bytes:
        low, high = local & -8, local + nbytes + 7 & -8
        found = self.dpus.read(low, np.uint8, high - low, first=first, count=count)
        return np.ascontiguousarray(found[:, local - low : local - low + nbytes])

    def _write(self, first: int, rows: Bytes, local: int) -> None:
        count, nbytes = rows.shape
        low, high = local & -8, local + nbytes + 7 & -8
        if (low, high) != (local, local + nbytes):
            whole = self.dpus.read(low, np.uint8, high - low, first=first, count=count)
            whole[:, local - low : local - low + nbytes] = rows
            rows = whole
        if rows.strides[0] == 0 and count == self.count:
            self.dpus.broadcast(low, rows[0])
        else:
            self.dpus.write(low, rows, first=first)

    # ---- kernels ----
    def _counted(self) -> LaunchTime | None:
        from bringup.upmem.host import DpuError

        try:
            return self.dpus.time()
        except DpuError:  # the RV32 form of a program may do what its interpreter refuses; the report marks it
            return None

    def launch(self, program: Program, launch: Launch) -> None:
        """Runs a kernel on every DPU with its own arguments, or on the first one alone."""
        args, grid = launch.partition_args, launch.partition_grid
        if args is None:
            args = np.broadcast_to(np.array(launch.args, np.uint64), (self.count, len(launch.args)))
            grid = np.zeros(self.count, np.uint64)
            grid[0] = launch.grid
        ranges = np.zeros((self.count, 2), np.int64)
        ranges[: len(grid), 1] = grid
        with self._lock:
            if self._loaded is not program:
                self._loaded = None
                self.dpus.load(program.binary)
                self._loaded = program
                spent = self.dpus.spent
                self.times.transfer(
                    program.name, "alloc+load", _PROGRAM_BYTES, self.count, to=True, broadcast=True, spent=spent
                )
            if args.shape[1]:
                self.dpus.write("bu_args", args)
            self.dpus.write("bu_range", ranges)
            self.dpus.broadcast("bu_failure", np.zeros(3, np.int64))
            spent = self.dpus.spent
            self.times.transfer(program.name, "CPU→DPU", 8 * args.shape[1] + 16, self.count, to=True, spent=spent)
            self.dpus.launch()
            if self.dpus.spent is not None:
                self.times.add(program.name, "DPU", self.dpus.spent).calls += 1
            else:
                counted = self._counted() if self.times.counted else None
                self.times.kernel(program.name, self.dpus.counters, counted)
            failure = self.dpus.read("bu_failure", np.int64, 3)
        failed = np.flatnonzero(failure[:, 0])
        if len(failed):
            index, extent = failure[failed[0], 1:]
            raise IndexError(f"index {index} is out of range for a dimension of {extent} (kernel {program.name})")


def host_bytes(address: int, nbytes: int) -> Bytes:
    """Host memory as an array, without a copy."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
