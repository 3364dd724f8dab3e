"""What the work of a device takes on the chip, as estimates of ``bringup.upmem.timing``, by kernel and phase."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bringup.upmem.rv32 import calibration
from bringup.upmem.timing import transfer_seconds

if TYPE_CHECKING:
    from bringup.upmem.timing import LaunchTime

PHASES = ("CPU→DPU", "DPU", "inter-DPU", "DPU→CPU", "alloc+load")


@dataclass
class Row:
    """What one kernel, or one kind of transfer, took so far."""

    calls: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    nbytes: int = 0
    #: Of the calls, those whose instructions were counted.
    counted: int = 0
    cycles: float = 0.0
    instructions: float = 0.0
    mram_bytes: float = 0.0


class Times:
    """The account of a device: by kernel and phase, and its clock of simulated time.

    Without ``counted`` instructions a kernel's time is that of its DMA alone: what it takes at least.
    """

    def __init__(self, dpus: int, tasklets: int, counted: bool, measured: bool = False) -> None:
        self.dpus, self.tasklets, self.counted, self.measured = dpus, tasklets, counted and not measured, measured
        self._numbers = calibration()
        self.clock_hz = float(self._numbers["machine"]["clock_hz"])
        self._lock = threading.Lock()
        #: Of simulated time, since the device was opened.
        self.seconds = 0.0
        self.clear()

    def clear(self) -> None:
        """Forgets all but the clock."""
        with self._lock:
            self.rows: dict[str, Row] = defaultdict(Row)

    def add(self, name: str, phase: str, seconds: float, nbytes: int = 0) -> Row:
        """Adds a step to a row."""
        with self._lock:
            row = self.rows[name]
            row.seconds[phase] += seconds
            row.nbytes += nbytes
            self.seconds += seconds
            return row

    def transfer(
        self,
        name: str,
        phase: str,
        nbytes: int,
        dpus: int,
        *,
        to: bool,
        broadcast: bool = False,
        spent: float | None = None,
    ) -> None:
        """Adds a transfer of ``nbytes`` with each of some DPUs: the measured seconds, or an estimate."""
        if spent is None:
            spent = transfer_seconds(nbytes, dpus, self._numbers, to=to, broadcast=broadcast)
        self.add(name, phase, spent, nbytes if broadcast else nbytes * dpus)

    def kernel(self, name: str, counters: Mapping[str, Any], counted: LaunchTime | None) -> None:
        """Adds a launch, which takes as long as its slowest DPU."""
        moved = (counters["dma_read_bytes"] + counters["dma_write_bytes"]).astype(float)
        requests = (counters["dma_reads"] + counters["dma_writes"]).astype(float)
        dma, instructions = self._numbers["dma"], 0.0
        if counted is None:
            cycles = float(np.max(dma["occupancy"] * requests + dma["occupancy_per_byte"] * moved))
            seconds = float(self._numbers["launch"]["seconds"]) + cycles / self.clock_hz
        else:
            cycles, seconds = float(counted.cycles.max()), counted.seconds
            instructions = float(counted.instructions[int(np.argmax(counted.cycles))])
        row = self.add(name, "DPU", seconds)
        with self._lock:
            row.calls += 1
            row.counted += counted is not None
            row.cycles += cycles
            row.instructions += instructions
            row.mram_bytes += float(moved.sum())

    def text(self, what: str) -> str:
        """A table of all that ran, with the kind of the numbers above it."""
        head = ("op", "calls", *(f"{phase} ms" for phase in PHASES), "cycles", "IPC", "MRAM MB/s a DPU", "bytes moved")
        with self._lock:
            ordered = sorted(self.rows.items(), key=lambda item: -sum(item[1].seconds.values()))
        rows = []
        for name, row in ordered:
            busy = row.cycles / self.clock_hz
            times = [f"{row.seconds[phase] * 1e3:.3f}" for phase in PHASES]
            cycles = f"{row.cycles:,.0f}" if row.cycles else ""
            ipc = f"{row.instructions / row.cycles:.2f}" if row.instructions else ""
            bandwidth = f"{row.mram_bytes / self.dpus / busy / 1e6:.0f}" if busy else ""
            mark = "≥ " if self.counted and row.calls > row.counted else ""
            cycles = mark + cycles
            rows.append((name, f"{row.calls:,}", *times, cycles, ipc, bandwidth, f"{row.nbytes:,}"))
        total = sum(sum(row.seconds.values()) for _, row in ordered)
        widths = [max(map(len, column)) for column in zip(head, *rows)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in (head, *rows)]
        energy = total * self.dpus * float(self._numbers["machine"]["watts_per_dpu"])
        error = self._numbers["error"]
        transfers = f"transfers ±{error['transfers']:.0%}"
        if self.measured:
            kind = "times are measured"
        elif self.counted:
            kind = (
                f"times are estimates: kernels ±{error['kernels']:.0%} on average, not calibrated, instructions "
                "counted on samples of the DPUs (≥: of DMA alone, where a kernel could not be counted); "
                f"{transfers}, calibrated"
            )
        else:
            kind = (
                "times of kernels are of their DMA alone, what they take at least: timing=1 counts instructions; "
                f"{transfers}, calibrated"
            )
        beyond = "; more than one rank is extrapolated, unvalidated" if self.dpus > 64 else ""
        return "\n".join(
            [
                f"{what}: {self.dpus:,} DPUs, {self.tasklets} tasklets, {self.clock_hz / 1e6:.0f} MHz",
                kind + beyond,
                *lines,
                f"together {total * 1e3:.3f} ms; energy at most {energy:.4f} J (all DPUs at their design power)",
            ]
        )
