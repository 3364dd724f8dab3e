"""What a host program's transfers and launches take on the chip, from the events that the library wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from .host import COUNTERS
from .rv32 import calibration
from .timing import Sample, launch_time, transfer_seconds

PHASES = ("CPU→DPU", "DPU", "DPU→CPU")


@dataclass
class Phase:
    """Calls of one kind: how many, how many bytes, how long on the chip."""

    calls: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    uncounted: int = 0
    """Launches whose instructions were not counted, and that are missing in the time."""


@dataclass
class Report:
    """The phases of a run, and the simulated time of its probes."""

    phases: dict[str, Phase] = field(default_factory=lambda: {name: Phase() for name in PHASES})
    probes: dict[str, float] = field(default_factory=dict)


def report_of(lines: Iterable[str]) -> Report:
    """Adds up the events of a run: one JSON object a line."""
    report, running = Report(), set[str]()
    for line in lines:
        event = json.loads(line)
        if event["event"] == "probe":
            (running.add if event["on"] else running.discard)(event["name"])
            report.probes.setdefault(event["name"], 0.0)
            continue
        if event["event"] == "transfer":
            phase = report.phases["CPU→DPU" if event["to"] else "DPU→CPU"]
            phase.nbytes += event["bytes"] * event["dpus"]
            seconds = transfer_seconds(
                event["bytes"], event["dpus"], calibration(), to=event["to"], broadcast=event["broadcast"]
            )
        else:
            phase = report.phases["DPU"]
            seconds = _launch_seconds(event["counters"], event["samples"], phase)
        phase.calls += 1
        phase.seconds += seconds
        for name in running:
            report.probes[name] += seconds
    return report


def _launch_seconds(counters: list[int], samples: list[list[float]], phase: Phase) -> float:
    values = {name: np.array([value], np.uint64) for name, value in zip(COUNTERS, counters)}
    phase.nbytes += counters[COUNTERS.index("dma_read_bytes")] + counters[COUNTERS.index("dma_write_bytes")]
    if not samples:
        phase.uncounted += 1
        return 0.0
    rows = [Sample.of_row(row) for row in samples]
    most = max(rows, key=lambda sample: float((sample.read_bytes + sample.write_bytes).sum()))
    # Each sample as a DPU of its own, and the one that moved most as scaled from the sample that did.
    times = [launch_time(values, [most], calibration()).seconds]
    for row in rows:
        own = {name: np.zeros(1, np.uint64) for name in COUNTERS}
        for name, value in (("dma_reads", row.reads), ("dma_writes", row.writes)):
            own[name][0] = int(value.sum())
        own["dma_read_bytes"][0], own["dma_write_bytes"][0] = int(row.read_bytes.sum()), int(row.write_bytes.sum())
        times.append(launch_time(own, [row], calibration()).seconds)
    return max(times)
