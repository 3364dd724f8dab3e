"""PrIM's kernels on the simulated DPUs, beside times that were measured on UPMEM's.

    python benchmarks/prim.py --hardware upmem_prim_hardware.csv            # every measured row
    python benchmarks/prim.py --hardware upmem_prim_hardware.csv --record   # results/upmem_prim.json, too
    python benchmarks/prim.py --hardware upmem_prim_hardware.csv --fit      # the kernels' calibration, too
    python benchmarks/prim.py --check                                       # results against NumPy only, small sizes

The kernels (prim/*.c) are ours, after the published descriptions. A row's time comes from counters of the program that
ran at that size, and at most two numbers per kernel: a launch constant and a factor. Tasklets (16) and clock (350 MHz)
of the measured rows are assumptions. The measured times themselves are not recorded: they are somebody else's file.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from recording import record

from bringup.upmem import DpuSet, compile_program
from bringup.upmem.rv32 import CALIBRATION, calibration

SOURCES = Path(__file__).parent / "prim"
TASKLETS = 16


@dataclass(frozen=True)
class Kernel:
    """A program, and how a run of it at (size, DPUs) goes; it yields after every launch that is timed."""

    source: str
    run: Callable[[DpuSet, int, np.random.Generator], Iterator[None]]
    macros: tuple[str, ...] = ()

    def program(self) -> bytes:
        text = "".join(f"#define {one}\n" for one in self.macros) + (SOURCES / self.source).read_text()
        return compile_program(text, tasklets=TASKLETS, stack_bytes=1024, timed=True)


def heap(dpus: DpuSet, *columns: np.ndarray) -> list[int]:
    """Puts arrays (DPUs, n) behind each other in MRAM; returns their offsets, and the next free one."""
    places = [dpus.heap]
    for column in columns:
        dpus.write(places[-1], column)
        places.append(places[-1] + column.nbytes // dpus.count)
    return places


def equal(got: np.ndarray, expected: np.ndarray) -> None:
    if not np.array_equal(got, expected):
        raise AssertionError(f"wrong result: {np.count_nonzero(got != expected)} of {got.size} differ")


def va(dpus: DpuSet, size: int, rng: np.random.Generator) -> Iterator[None]:
    count = size // dpus.count
    a, b = rng.integers(0, 1 << 20, (2, dpus.count, count)).astype(np.int32)
    places = heap(dpus, a, b)
    dpus.launch(count=count)
    yield
    equal(dpus.read(places[1], np.int32, count), a + b)


def red(dpus: DpuSet, size: int, rng: np.random.Generator) -> Iterator[None]:
    count = size // dpus.count
    values = rng.integers(-1000, 1000, (dpus.count, count))
    heap(dpus, values)
    dpus.launch(count=count)
    yield
    equal(dpus.read("total", np.int64, 1)[:, 0], values.sum(1))


def scan(first: int, then: int) -> Callable[[DpuSet, int, np.random.Generator], Iterator[None]]:
    def run(dpus: DpuSet, size: int, rng: np.random.Generator) -> Iterator[None]:
        count = size // dpus.count
        values = rng.integers(-1000, 1000, (dpus.count, count))
        places = heap(dpus, values)
        dpus.write("base", np.zeros((dpus.count, 1), np.int64))
        dpus.launch(count=count, step=first)
        yield
        totals = dpus.read("total", np.int64, 1)[:, 0]
        dpus.write("base", (np.cumsum(totals) - totals).reshape(-1, 1))
        dpus.launch(count=count, step=then)
        yield
        flat = values.ravel()
        equal(dpus.read(places[1], np.int64, count).ravel(), np.cumsum(flat) - flat)

    return run


def select(unique: bool) -> Callable[[DpuSet, int, np.random.Generator], Iterator[None]]:
    def run(dpus: DpuSet, size: int, rng: np.random.Generator) -> Iterator[None]:
        count = size // dpus.count
        values = rng.integers(0, count, (dpus.count, count))
        if unique:
            values.sort(axis=1)
        places = heap(dpus, values)
        dpus.launch(count=count)
        yield
        kept = dpus.read("kept", np.uint32, 1)[:, 0]
        out = dpus.read(places[1], np.int64, count)
        for row, result, n in zip(values, out, kept):
            keep = np.concatenate([[True], row[1:] != row[:-1]]) if unique else row % 2 == 1
            equal(result[:n], row[keep])

    return run


def hst(dpus: DpuSet, size: int, rng: np.random.Generator) -> Iterator[None]:
    count = size // dpus.count
    values = rng.integers(0, 1 << 12, (dpus.count, count)).astype(np.uint32)
    heap(dpus, values)
    dpus.launch(count=count, bins_used=256)
    yield
    for row, bins in zip(values, dpus.read("histogram", np.uint32, 256)):
        equal(bins, np.bincount(row >> 4, minlength=256))


def gemv(dpus: DpuSet, size: int, rng: np.random.Generator) -> Iterator[None]:
    rows = size // dpus.count
    matrix = rng.integers(0, 50, (dpus.count, rows, 64)).astype(np.int32)
    vector = rng.integers(0, 50, 64).astype(np.int32)
    places = heap(dpus, matrix.reshape(dpus.count, -1), np.tile(vector, (dpus.count, 1)))
    dpus.launch(rows=rows, columns=64)
    yield
    equal(dpus.read(places[2], np.int32, rows), matrix @ vector)


def mlp(dpus: DpuSet, size: int, rng: np.random.Generator) -> Iterator[None]:
    rows = size // dpus.count
    vector = (np.arange(size) % 50 < 2).astype(np.int32)
    for _ in range(3):
        matrix = ((rng.integers(0, 100, (size, size)) >= 98) * rng.integers(0, 2, (size, size))).astype(np.int32)
        places = heap(dpus, matrix.reshape(dpus.count, -1), np.tile(vector, (dpus.count, 1)))
        dpus.launch(rows=rows, columns=size)
        yield
        out = dpus.read(places[2], np.int32, rows).ravel()
        equal(out, np.maximum(matrix @ vector, 0))
        vector = np.minimum(out, 1)


def ts(dpus: DpuSet, size: int, rng: np.random.Generator) -> Iterator[None]:
    count = max(size // dpus.count, 64 * TASKLETS)
    series = rng.integers(0, 128, (dpus.count, count + 64)).astype(np.int32)
    query = rng.integers(0, 128, 64).astype(np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(series, 64, axis=1)[:, :count]
    squares = (windows**2).sum(2).astype(np.int32)
    heap(dpus, series, squares)
    dpus.launch(count=count, query=query)
    yield
    distances = squares - 2 * (windows @ query)
    equal(dpus.read("best", np.int32, 1)[:, 0], distances.min(1))
    equal(dpus.read("place", np.int32, 1)[:, 0], distances.argmin(1))


def bs(dpus: DpuSet, size: int, rng: np.random.Generator) -> Iterator[None]:
    # What the published parameter counts is inferred from the times: an array of that many, half as many queries.
    queries = size // 2 // dpus.count
    values = np.arange(size, dtype=np.int64) * 3
    asked = rng.integers(0, 3 * size, (dpus.count, queries))
    places = heap(dpus, np.broadcast_to(values, (dpus.count, size)), asked)
    dpus.launch(count=size, queries=queries)
    yield
    equal(dpus.read(places[2], np.int64, queries), asked // 3)


def trns(dpus: DpuSet, size: int, rng: np.random.Generator) -> Iterator[None]:
    matrix = rng.integers(0, 1 << 40, (dpus.count, size, size))
    heap(dpus, matrix.reshape(dpus.count, -1))
    dpus.launch(side=size)
    yield
    equal(dpus.read(dpus.heap, np.int64, size * size), matrix.transpose(0, 2, 1).reshape(dpus.count, -1))


KERNELS = {
    "VA": Kernel("va.c", va),
    "RED": Kernel("red.c", red),
    "SCAN-SSA": Kernel("scan.c", scan(0, 1)),
    "SCAN-RSS": Kernel("scan.c", scan(2, 0)),
    "SEL": Kernel("select.c", select(False)),
    "UNI": Kernel("select.c", select(True), ("UNIQUE",)),
    "HST-S": Kernel("hst.c", hst),
    "HST-L": Kernel("hst.c", hst, ("SHARED",)),
    "GEMV": Kernel("gemv.c", gemv),
    "MLP": Kernel("gemv.c", mlp, ("RELU",)),
    "TS": Kernel("ts.c", ts),
    "BS": Kernel("bs.c", bs),
    "TRNS": Kernel("trns.c", trns),
}
#: What one published parameter means could not be inferred: run and checked, but not timed against the table.
NOT_COMPARED = {"TRNS"}


@dataclass
class Row:
    """One measured time, and what ours stands on."""

    kernel: str
    dpus: int
    size: int
    measured_ms: float
    other_ms: float
    """uPIMulator's prediction."""
    cycles: float
    """Of all its launches, each the slowest DPU's, without calibration."""
    launches: int
    bound: str
    wall_seconds: float


def measure(kernel: str, dpus: int, size: int) -> tuple[float, int, str]:
    """Runs a kernel, checks its results, and returns cycles, launches and what bounds the last."""
    cycles, launches, bound = 0.0, 0, ""
    with DpuSet(dpus) as machine:
        machine.load(KERNELS[kernel].program())
        for _ in KERNELS[kernel].run(machine, size, np.random.default_rng(size + dpus)):
            estimate = machine.time()
            cycles += float(estimate.cycles.max())
            launches += 1
            bound = estimate.bound
    return cycles, launches, bound


# ---- laws and their errors ----
def fit(times: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The least relative squares, with no negative number among the two."""
    scaled = columns / times[:, None]
    found = np.linalg.lstsq(scaled, np.ones(len(times)), rcond=None)[0]
    if found[0] < 0:
        found = np.array([0.0, scaled[:, 1].sum() / (scaled[:, 1] ** 2).sum()])
    return found


def errors(predicted: np.ndarray, times: np.ndarray) -> np.ndarray:
    return np.abs(predicted - times) / times


def held_out(rows: list[Row], column: Callable[[Row], float], train: Callable[[int, Row], bool]) -> dict[str, Any]:
    """Fits two numbers per kernel to the rows for which ``train`` holds; errors of the others."""
    of_kernel: dict[str, list[float]] = {}
    for kernel in dict.fromkeys(row.kernel for row in rows):
        mine = [row for row in rows if row.kernel == kernel]
        chosen = np.array([train(i, row) for i, row in enumerate(mine)])
        if chosen.sum() < 2 or chosen.all():
            continue
        times = np.array([row.measured_ms for row in mine])
        columns = np.array([[row.launches, column(row)] for row in mine])
        found = fit(times[chosen], columns[chosen])
        of_kernel[kernel] = errors(columns[~chosen] @ found, times[~chosen]).tolist()
    return summary(of_kernel)


def summary(of_kernel: dict[str, list[float]]) -> dict[str, Any]:
    every = np.concatenate([np.array(values) for values in of_kernel.values()])
    return {
        "mean": float(every.mean()),
        "p90": float(np.quantile(every, 0.9)),
        "rows": len(every),
        "kernels": {kernel: float(np.mean(values)) for kernel, values in of_kernel.items()},
    }


def laws(rows: list[Row]) -> dict[str, dict[str, Any]]:
    """Every way of predicting, with its errors."""

    def by_kernel(predicted: Callable[[Row], float]) -> dict[str, Any]:
        found: dict[str, list[float]] = {}
        for row in rows:
            found.setdefault(row.kernel, []).append(abs(predicted(row) - row.measured_ms) / row.measured_ms)
        return summary(found)

    def ours(row: Row) -> float:
        return row.cycles / 350e3

    def line(row: Row) -> float:
        """The work of a DPU, as the size alone says it."""
        if row.kernel == "TS":
            return max(row.size / row.dpus, 1024)
        return row.size * (row.size if row.kernel == "MLP" else 1) / row.dpus

    launch = calibration()["launch"]["seconds"] * 1e3
    found = {
        "uPIMulator": by_kernel(lambda row: row.other_ms),
        "ours, no calibration": by_kernel(lambda row: row.launches * launch + ours(row)),
    }
    left: dict[str, list[float]] = {}
    for kernel in dict.fromkeys(row.kernel for row in rows):
        others = [row for row in rows if row.kernel != kernel]
        numbers = fit(
            np.array([row.measured_ms for row in others]), np.array([[row.launches, ours(row)] for row in others])
        )
        mine = [row for row in rows if row.kernel == kernel]
        predicted = np.array([[row.launches, ours(row)] for row in mine]) @ numbers
        left[kernel] = errors(predicted, np.array([row.measured_ms for row in mine])).tolist()
    found["ours, leave one kernel out"] = summary(left)
    for name, column in (("ours", ours), ("line over size / DPUs", line)):
        found[f"{name}, leave 64 DPUs out"] = held_out(rows, column, lambda _, row: row.dpus != 64)
        found[f"{name}, half split"] = held_out(rows, column, lambda i, _: i % 2 == 0)
    return found


def calibrate(rows: list[Row], source: str) -> None:
    """Writes launch constant and factor of each kernel into the calibration file."""
    data = json.loads(CALIBRATION.read_text())
    for kernel in dict.fromkeys(row.kernel for row in rows):
        mine = [row for row in rows if row.kernel == kernel]
        columns = np.array([[row.launches, row.cycles / 350e3] for row in mine])
        launch, factor = fit(np.array([row.measured_ms for row in mine]), columns)
        data["kernels"][kernel] = {
            "launch_seconds": round(float(launch) * 1e-3, 7),
            "factor": round(float(factor), 4),
            "provenance": f"least relative squares over {len(mine)} measured rows of {source}",
        }
    CALIBRATION.write_text(json.dumps(data, indent=1) + "\n")


def kernel_table(rows: list[Row], found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean errors in per cent, a record for each kernel."""
    table = []
    for kernel in dict.fromkeys(row.kernel for row in rows):
        of_laws = {law: result["kernels"].get(kernel) for law, result in found.items()}
        cells = {_SHORT[law]: f"{100 * of_laws[law]:.1f}" for law in _SHORT if of_laws[law] is not None}
        table.append({"name": kernel, "rows": sum(row.kernel == kernel for row in rows), **cells})
    return table


# ---- the program ----
def read_hardware(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def main() -> None:
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--hardware", type=Path, help="measured rows: benchmark,num_dpus,size,kernel_ms,…,sim_kernel_ms"
    )
    parser.add_argument("--kernels", help="only these, with commas between")
    parser.add_argument("--fit", action="store_true", help="write the kernels' calibration")
    parser.add_argument("--check", action="store_true", help="small sizes against NumPy, no measured rows")
    parser.add_argument("--record", action="store_true", help="write results/upmem_prim.json")
    options = parser.parse_args()
    console = Console()
    names = options.kernels.split(",") if options.kernels else list(KERNELS)
    if options.check:
        for name in track(names, "PrIM against NumPy", console=console):
            measure(name, 4, 64 if name == "TRNS" else 512 if name == "MLP" else 16384)
        console.print(f"{len(names)} kernels equal NumPy")
        return
    if options.hardware is None:
        parser.error("--hardware FILE is needed (or --check)")
    wanted = [
        r for r in read_hardware(options.hardware) if r["benchmark"] in names and r["benchmark"] not in NOT_COMPARED
    ]
    rows = []
    for given in track(wanted, "PrIM", console=console):
        started = time.perf_counter()
        kernel, dpus, size = given["benchmark"], int(given["num_dpus"]), int(given["size"])
        cycles, launches, bound = measure(kernel, dpus, size)
        wall = time.perf_counter() - started
        rows.append(
            Row(
                kernel,
                dpus,
                size,
                float(given["kernel_ms"]),
                float(given["sim_kernel_ms"]),
                cycles,
                launches,
                bound,
                wall,
            )
        )
    found = laws(rows)
    if options.record:
        own = ("kernel", "dpus", "size", "cycles", "launches", "bound")
        # The file's own place is nobody's business.
        command = "python benchmarks/prim.py --hardware upmem_prim_hardware.csv --fit --record"
        data = {
            "laws": {law: {key: result[key] for key in ("mean", "p90", "rows")} for law, result in found.items()},
            "kernels": kernel_table(rows, found),
            "own": {"columns": own, "rows": [[getattr(row, name) for name in own] for row in rows]},
        }
        record("upmem_prim", data, command=command)
    if options.fit:
        calibrate(rows, "the published table (uPIMulator's repository, KAIST VIA, MIT)")
    table = Table(
        "kernel", "rows", "uPIMulator", "no calibration", "leave it out", "leave 64 DPUs out", "line", title="Error"
    )
    for kernel in dict.fromkeys(row.kernel for row in rows):
        cells = [found[law]["kernels"].get(kernel, math.nan) for law in _SHOWN]
        table.add_row(
            kernel, str(sum(row.kernel == kernel for row in rows)), *(f"{100 * cell:.1f} %" for cell in cells)
        )
    console.print(table)
    for law, result in found.items():
        console.print(
            f"{law}: mean {100 * result['mean']:.1f} %, p90 {100 * result['p90']:.1f} %, {result['rows']} rows"
        )


#: Names of columns in recorded tables.
_SHORT = {
    "uPIMulator": "uPIMulator",
    "ours, no calibration": "uncalibrated",
    "ours, leave one kernel out": "left out",
    "ours, leave 64 DPUs out": "without 64",
    "ours, half split": "half",
    "line over size / DPUs, leave 64 DPUs out": "line",
}
_SHOWN = (
    "uPIMulator",
    "ours, no calibration",
    "ours, leave one kernel out",
    "ours, leave 64 DPUs out",
    "line over size / DPUs, leave 64 DPUs out",
)

if __name__ == "__main__":
    main()
