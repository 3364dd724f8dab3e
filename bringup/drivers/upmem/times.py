"""What a run on UPMEM would take: an estimate, by the published laws of the machine, of what was counted.

Transfers and DMA are counted exactly. Instructions are not, as simulated DPUs run native code: they are taken as the
kernel's number of operations times what the run-time library needs for one. So times of kernels are good for comparing
shapes and ways, not as numbers of the hardware.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: GB/s between host and 1, 4, 16 and 64 DPUs of one rank, measured by KAIST's VIA group; more DPUs are more ranks.
_BANDWIDTH = {"to": (0.55, 1.1, 1.3, 3.6), "from": (0.11, 0.42, 0.72, 1.87)}
_DPUS = (1, 4, 16, 64)
#: The host's bus, for all ranks together.
_MOST_BANDWIDTH = 16.9
_LAUNCH_SECONDS = 180e-6
_TRANSFER_SECONDS = 20e-6
#: Instructions of one operation, from the published throughput of 11 tasklets: 350 MHz by MOPS. A product and a sum
#: in float32 take 183 and 71.
_INSTRUCTIONS = {"float": 127.0, "double": 380.0, "int": 8.0}
#: Watts of one DPU: 1.2 for a chip of 8.
_WATTS = 1.2 / 8
PHASES = ("CPU→DPU", "DPU", "inter-DPU", "DPU→CPU", "alloc+load")


def transfer_seconds(direction: str, nbytes: int, dpus: int) -> float:
    """Estimates a transfer of ``nbytes`` in all, with that many DPUs at once.

    >>> round(transfer_seconds("to", 3_600_000, 64) * 1e3, 2)
    1.02
    """
    if nbytes == 0:
        return 0.0
    rate = float(np.interp(min(dpus, 64), _DPUS, _BANDWIDTH[direction])) * max(1.0, dpus / 64)
    return _TRANSFER_SECONDS + nbytes / (min(rate, _MOST_BANDWIDTH) * 1e9)


def kernel_cycles(instructions: Any, counters: Mapping[str, Any], tasklets: int) -> Any:
    """Estimates the cycles of each DPU: the pipeline, or the DMA engine beside it, whichever takes longer."""
    pipeline = instructions * max(1.0, 11 / tasklets)
    calls = counters["dma_reads"].astype(float) + counters["dma_writes"]
    nbytes = counters["dma_read_bytes"].astype(float) + counters["dma_write_bytes"]
    return np.maximum(pipeline, 35 * calls + 0.52 * nbytes)


def instructions_of(kind: str, operations: Any) -> Any:
    """Estimates instructions of arithmetic in "float", "double" or "int"."""
    return operations * _INSTRUCTIONS[kind]


@dataclass
class Row:
    """What one kernel, or the transfers outside of kernels, took so far."""

    calls: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    nbytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    cycles: float = 0.0
    instructions: float = 0.0
    mram_bytes: float = 0.0


class Times:
    """The account of a device: by kernel and phase, and its clock of simulated time."""

    def __init__(self, dpus: int, tasklets: int, clock_mhz: int) -> None:
        self.dpus, self.tasklets, self.clock_hz = dpus, tasklets, clock_mhz * 1e6
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forgets all but the clock."""
        with self._lock:
            self.rows: dict[str, Row] = defaultdict(Row)

    seconds = 0.0

    def add(self, name: str, phase: str, seconds: float, nbytes: int = 0, call: bool = False) -> None:
        """Adds a step."""
        with self._lock:
            row = self.rows[name]
            row.calls += call
            row.seconds[phase] += seconds
            row.nbytes[phase] += nbytes
            self.seconds += seconds

    def transfer(self, name: str, phase: str, direction: str, nbytes: int, dpus: int) -> None:
        """Adds a transfer."""
        self.add(name, phase, transfer_seconds(direction, nbytes, dpus), nbytes, call=name in _OUTSIDE)

    def kernel(self, name: str, instructions: Any, counters: Mapping[str, Any]) -> None:
        """Adds a launch, which takes as long as its slowest DPU."""
        cycles = kernel_cycles(instructions, counters, self.tasklets)
        slowest = float(cycles.max(initial=0.0))
        self.add(name, "DPU", _LAUNCH_SECONDS + slowest / self.clock_hz, call=True)
        with self._lock:
            row = self.rows[name]
            row.cycles += slowest
            row.instructions += float(np.sum(instructions)) / max(1, len(cycles))
            row.mram_bytes += float(counters["dma_read_bytes"].sum() + counters["dma_write_bytes"].sum())

    def text(self, what: str) -> str:
        """A table of all that ran, with the kind of the numbers above it."""
        head = ("op", "calls", *(f"{phase} ms" for phase in PHASES), "cycles", "IPC", "MRAM MB/s a DPU", "bytes moved")
        rows = []
        with self._lock:
            ordered = sorted(self.rows.items(), key=lambda item: -sum(item[1].seconds.values()))
        for name, row in ordered:
            busy = row.cycles / self.clock_hz
            ipc = f"{row.instructions / row.cycles:.2f}" if row.cycles else ""
            bandwidth = f"{row.mram_bytes / self.dpus / busy / 1e6:.0f}" if busy else ""
            times = [f"{row.seconds[phase] * 1e3:.3f}" for phase in PHASES]
            cycles = f"{row.cycles:,.0f}" if row.cycles else ""
            rows.append((name, f"{row.calls:,}", *times, cycles, ipc, bandwidth, f"{sum(row.nbytes.values()):,}"))
        total = sum(sum(row.seconds.values()) for _, row in ordered)
        widths = [max(map(len, column)) for column in zip(head, *rows)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in (head, *rows)]
        energy = total * self.dpus * _WATTS
        return "\n".join(
            [
                f"{what}: {self.dpus:,} DPUs, {self.tasklets} tasklets, {self.clock_hz / 1e6:.0f} MHz",
                "times are estimates, not calibrated: transfers and DMA are counted, instructions are taken from the "
                "number of operations",
                *lines,
                f"together {total * 1e3:.3f} ms; energy at most {energy:.4f} J (all DPUs at their design power)",
            ]
        )


#: Rows that are transfers only.
_OUTSIDE = ("copy to device", "copy to host", "copy on device", "relayout")
