"""How long a launch or a transfer takes on the chip: the law that turns counts into an estimate.

A launch takes its constant and the slowest DPU. A DPU is as slow as the slowest of four: its pipeline, which issues
one instruction a cycle; its busiest tasklet, which issues once in 11 cycles and waits for its own DMA; its DMA engine,
which serves one request after the other; its busiest mutex, under which one tasklet runs at a time.

    cycles = max(ΣI, max over tasklets (11·I + latency), Σ occupancy, 11·instructions under a mutex)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .toolchain import TASKLETS_MAX

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """What the tasklets of one DPU did, counted on RV32."""

    dpu: int
    instructions: Array
    """Per tasklet, as the DPU would count them."""
    reads: Array
    read_bytes: Array
    writes: Array
    write_bytes: Array
    held: float
    """Instructions under a mutex, of the mutex that was held longest: those run one tasklet at a time."""

    WIDTH: ClassVar[int] = 3 + 5 * TASKLETS_MAX

    @classmethod
    def of_row(cls, row: npt.ArrayLike) -> Sample:
        """A sample from the library's row of numbers (``struct sample`` of native/rv32.h)."""
        numbers = np.asarray(row, np.float64)
        work = numbers[3:].reshape(TASKLETS_MAX, 5)[: int(numbers[1])]
        instructions, reads, read_bytes, writes, write_bytes = np.ascontiguousarray(work.T)
        return cls(int(numbers[0]), instructions, reads, read_bytes, writes, write_bytes, float(numbers[2]))


@dataclass(frozen=True)
class LaunchTime:
    """An estimate of a launch; never a time of the machine that simulates."""

    seconds: float
    """Launch constant and the slowest DPU."""
    cycles: Array = field(repr=False)
    """Of every DPU."""
    instructions: Array = field(repr=False)
    """Of every DPU."""
    mram_bytes: Array = field(repr=False)
    """Of every DPU, both directions."""
    bound: str
    """What limits the slowest DPU: pipeline, tasklet, MRAM or lock."""
    sampled: int
    """How many DPUs were counted; the others are scaled by their DMA."""
    clock_hz: float
    watts_per_dpu: float
    calibrated: bool
    """Whether a factor of this kernel was fitted to measured times."""

    @property
    def ipc(self) -> float:
        """Instructions per cycle of the slowest DPU; 1 is a full pipeline."""
        slowest = int(np.argmax(self.cycles))
        return float(self.instructions[slowest] / max(self.cycles[slowest], 1.0))

    @property
    def mram_bytes_per_second(self) -> float:
        """All DPUs together, while the slowest runs."""
        return float(self.mram_bytes.sum() * self.clock_hz / max(self.cycles.max(), 1.0))

    @property
    def joules_at_most(self) -> float:
        """An upper bound: every DPU at its thermal design power for the whole launch."""
        return self.seconds * self.watts_per_dpu * len(self.cycles)

    def __str__(self) -> str:
        kind = "calibrated" if self.calibrated else "not calibrated"
        return (
            f"{self.seconds * 1e3:.3f} ms (estimate, {kind}, {self.sampled} of {len(self.cycles)} DPUs counted; "
            f"IPC {self.ipc:.2f}, bound by {self.bound})"
        )


def launch_time(
    counters: Mapping[str, npt.NDArray[np.uint64]],
    samples: list[Sample],
    numbers: Mapping[str, Any],
    *,
    kernel: str | None = None,
) -> LaunchTime:
    """The estimate of a launch, from the counters of every DPU and the samples.

    ``kernel`` names an entry of the calibration that was fitted to measured times: a launch constant, and a factor of
    the cycles.
    """
    if not samples:
        raise ValueError("no DPU of the launch was counted")
    dma, machine = numbers["dma"], numbers["machine"]
    fitted = {} if kernel is None else numbers["kernels"][kernel]
    native = {name: np.asarray(values, np.float64) for name, values in counters.items()}
    moved = native["dma_read_bytes"] + native["dma_write_bytes"]
    requests = native["dma_reads"] + native["dma_writes"]
    engine = dma["occupancy"] * requests + dma["occupancy_per_byte"] * moved
    nearest = np.array([min(range(len(samples)), key=lambda s: abs(samples[s].dpu - d)) for d in range(len(moved))])
    issued, busiest, locked, work = (np.zeros(len(samples)) for _ in range(4))
    for i, sample in enumerate(samples):
        latency = (
            dma["read_latency"] * sample.reads
            + dma["write_latency"] * sample.writes
            + dma["latency_per_byte"] * (sample.read_bytes + sample.write_bytes)
        )
        own = sample.instructions
        issued[i] = own.sum()
        busiest[i] = (machine["issue_interval"] * own + latency).max()
        locked[i] = machine["issue_interval"] * sample.held if len(own) > 1 else 0.0
        work[i] = (sample.read_bytes + sample.write_bytes).sum()
    share = np.ones(len(moved))
    of_sample = work[nearest]
    np.divide(moved, of_sample, out=share, where=of_sample > 0)
    limits = np.stack([issued[nearest] * share, busiest[nearest] * share, engine, locked[nearest] * share])
    cycles = limits.max(axis=0) * fitted.get("factor", 1.0)
    slowest = int(np.argmax(cycles))
    return LaunchTime(
        seconds=float(fitted.get("launch_seconds", numbers["launch"]["seconds"]) + cycles.max() / machine["clock_hz"]),
        cycles=cycles,
        instructions=limits[0],
        mram_bytes=moved,
        bound=("pipeline", "tasklet", "MRAM", "lock")[int(np.argmax(limits[:, slowest]))],
        sampled=len(samples),
        clock_hz=machine["clock_hz"],
        watts_per_dpu=machine["watts_per_dpu"],
        calibrated=kernel is not None,
    )


def transfer_seconds(
    nbytes: int, dpus: int, numbers: Mapping[str, Any], *, to: bool = True, broadcast: bool = False
) -> float:
    """The estimate of one transfer of ``nbytes`` with each of ``dpus``.

    Bandwidth is that of one rank with as many DPUs, times the ranks, until the host's bus is full.
    """
    table = numbers["transfer"]
    bandwidths = table["to_gb_per_s" if to else "from_gb_per_s"]
    in_rank = min(dpus, 64)
    of_rank = float(np.interp(np.log2(in_rank), np.log2(table["dpus"]), bandwidths))
    limit = table["host_bus_gb_per_s"]["broadcast" if broadcast else "to" if to else "from"]
    bandwidth = min(of_rank * max(1.0, dpus / 64), limit)
    return float(table["to_start_seconds" if to else "from_start_seconds"] + nbytes * dpus / (bandwidth * 1e9))
