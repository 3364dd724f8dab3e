"""Bare-metal RISC-V code in retired instructions, beside plain C loops at -O3: counts are exact, so bars are asserted.

    python benchmarks/riscv.py
    python benchmarks/riscv.py cnn attention --json results/riscv.json
    python benchmarks/riscv.py --times              # seconds from torch.compile to the result, cold and warm

Every model runs through ``torch.compile`` on a scalar core and with vectors of 128 and 256 bits, in our interpreter.
`naive` is the same model as the loops of riscv_naive.py, counted in the same machine: the fewest instructions of gcc
-O3 and clang -O3 (scalar), or of clang -O3 and clang -O3 -ffast-math (vectors). A lane-beat is one pass of a vector
instruction over one register's width. `error` is the largest error against float64, in units of eager float32's own;
integer models must equal the quantized model's integers. Results must be the same bytes for every vector length, and on
QEMU where it is installed. Below the table stands what limits each model, and where its instructions go.
Exit status 1 if a bar is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import bringup
from benchmarks.recording import record
from benchmarks.riscv_models import WORKLOADS, Workload
from benchmarks.riscv_naive import naive_source
from benchmarks.riscv_naive_run import run_naive
from bringup.graph.bare_metal.report import Report
from bringup.riscv import machine_class
from bringup.riscv.toolchain import ToolchainMissing, find_toolchain

CORES = (0, 128, 256)
BAR_RATIO = 0.5  # of the naive loops' instructions
BAR_ERROR = 4.0  # times eager float32's own
BAR_COLD, BAR_WARM = 3.0, 0.060  # seconds


@dataclass
class Row:
    """One model on one core; vector is 0 for the scalar one."""

    model: str
    vector: int
    instructions: int
    lane_beats: int
    macs: int
    naive: int
    naive_by: str
    error: float
    bar: int | None
    limit: str
    steps: list[str]

    @property
    def ratio(self) -> float:
        return self.instructions / self.naive

    @property
    def misses(self) -> list[str]:
        found = []
        if self.bar is not None and self.instructions > self.bar:
            found.append(f"more than {self.bar:,} instructions")
        if self.ratio > BAR_RATIO:
            found.append(f"{self.ratio:.2f} of the naive loops, not {BAR_RATIO}")
        if self.error > BAR_ERROR:
            found.append(f"{self.error:.1f} times eager's error, not {BAR_ERROR:.0f}")
        return found


def simulate(model: nn.Module, x: torch.Tensor, vector: int, machine: str = "") -> tuple[torch.Tensor, Report]:
    """The result in an emulator, and the report."""
    torch._dynamo.reset()
    backend = bringup.Backend(target="riscv", vector=vector, machine=machine)
    with torch.no_grad():
        result = torch.compile(model, backend=backend, dynamic=False)(x)
    (report,) = backend.reports()
    return result, report


def largest(report: Report) -> list[str]:
    """The steps with a tenth of the instructions or more, the largest first."""
    steps = sorted(((step.instructions or 0) / report.instructions, step.name, step.how) for step in report.layers)
    return [f"{share:.0%} {name} ({how})" for share, name, how in reversed(steps) if share >= 0.1]


def macs_of(model: nn.Module, x: torch.Tensor) -> int:
    # The counter knows attention's products only where they are matrix products.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(x)
    return int(counter.get_total_flops()) // 2


def naive(model: nn.Module, x: torch.Tensor, vector: int) -> tuple[int, str]:
    """The fewest instructions of the compilers that are here, and whose they are; wrong results are an error."""
    code = naive_source(model, (x,))
    with torch.no_grad():
        expected = model(x)
    tried = {}
    choices = (("zig", ("-O3",)), ("zig", ("-O3", "-ffast-math")) if vector else ("gcc", ("-O3",)))
    for family, flags in choices:
        try:
            find_toolchain(family)
        except ToolchainMissing:
            continue
        (result, *_), instructions, _ = run_naive(code, (x,), vector, family, flags)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
        tried[" ".join([{"zig": "clang"}.get(family, family), *flags])] = instructions
    by = min(tried, key=tried.__getitem__)
    return tried[by], by


def error_of(work: Workload, model: nn.Module, x: torch.Tensor, result: torch.Tensor) -> float:
    """In units of eager float32's own error against float64; for integers 0, or infinity if one of them differs."""
    with torch.no_grad():
        eager = model(x)
        if work.int8:
            return 0.0 if torch.equal(result, eager) else float("inf")
        exact = work.build()[0].double()(x.double())
    return float((result - exact).abs().max() / (eager - exact).abs().max())


def rows_of(work: Workload) -> tuple[list[Row], list[str]]:
    """The rows of a model, and where bytes differ."""
    model, x = work.build()
    macs = macs_of(model, x)
    rows, results = [], {}
    for vector in CORES:
        result, report = simulate(model, x, vector)
        results[f"interpreter, {vector}"] = result
        least, by = naive(model, x, vector)
        error, bar, limit = error_of(work, model, x, result), work.bars.get(vector), work.limits[vector > 0]
        counted = report.instructions, report.lane_beats or 0, macs
        rows.append(Row(work.name, vector, *counted, least, by, error, bar, limit, largest(report)))
    for vector in (512, 1024):
        results[f"interpreter, {vector}"] = simulate(model, x, vector)[0]
    if machine_class("qemu").absent_reason() is None:
        results |= {f"qemu, {vector}": simulate(model, x, vector, "qemu")[0] for vector in (0, 256)}
    differing = []
    for where, one in results.items():  # sums of scalar and of vector code may have another order
        first = results["interpreter, 0" if where.endswith(", 0") else "interpreter, 128"]
        differing += [] if torch.equal(one, first) else [f"{work.name}: other bytes on {where}"]
    return rows, differing


def show(rows: list[Row], console: Console) -> None:
    table = Table(title="retired instructions for one call")
    table.add_column("model")
    table.add_column("core")
    for head in ("instructions", "lane-beats", "MACs", "per MAC", "naive", "ratio", "error", "bar", "met"):
        table.add_column(head, justify="right")
    for row in rows:
        first = row.vector == CORES[0]
        table.add_row(
            row.model if first else "",
            f"VLEN {row.vector}" if row.vector else "scalar",
            f"{row.instructions:,}",
            f"{row.lane_beats:,}" if row.vector else "",
            f"{row.macs:,}" if first else "",
            f"{row.instructions / row.macs:.2g}",
            f"{row.naive:,}",
            f"{row.ratio:.2f}",
            f"{row.error:.1f}",
            f"{row.bar:,}" if row.bar else "",
            "no" if row.misses else "yes",
            end_section=row.vector == CORES[-1],
        )
    console.print(table)
    for row in {(row.model, bool(row.vector)): row for row in rows}.values():
        core = f"VLEN {row.vector}" if row.vector else "scalar"
        console.print(f"{row.model}, {core}: {row.limit}\n    {', '.join(row.steps)}", highlight=False, soft_wrap=True)


def recorded_data(rows: list[Row]) -> dict[str, Any]:
    """The rows, the table of docs/riscv.md, and what its prose says of it."""
    titles = ["", "multiply-adds", "scalar", "naive", "VLEN 128", "lane-beats", "VLEN 256", "lane-beats", "naive"]
    inputs = {work.name: " × ".join(map(str, work.shape)) for work in WORKLOADS}
    lines, counts = [], {}
    for name in dict.fromkeys(row.model for row in rows):
        plain, short, long = (row for row in rows if row.model == name)
        vectors = [short.instructions, short.lane_beats, long.instructions, long.lane_beats, long.naive]
        lines.append([f"{name}, input {inputs[name]}", plain.macs, plain.instructions, plain.naive, *vectors])
        counts[name] = {"scalar": plain.instructions, "VLEN 256": long.instructions}
    errors = [row.error for row in rows if row.error]  # integers have none
    return {
        "rows": [{**asdict(row), "misses": row.misses} for row in rows],
        "table": {"columns": titles, "rows": lines},
        "counts": counts,
        "compared": len(rows),
        "errors": {"least": min(errors), "most": max(errors)},
        "above half of naive": [
            f"{row.model}, {f'VLEN {row.vector}' if row.vector else 'scalar'} ({row.ratio:.2f})"
            for row in rows
            if row.ratio > BAR_RATIO
        ],
    }


# ---- seconds ----
_TIMED = """
import json, os, sys, time
import torch, bringup
from benchmarks.recording import record
from benchmarks.riscv_models import WORKLOADS
model, x = WORKLOADS[0].build()
if "dynamo" in sys.argv:
    torch.compile(torch.nn.Linear(2, 2), backend="aot_eager")(torch.ones(1, 2))
backend = bringup.Backend(target="riscv", vector=int(sys.argv[1]))
with torch.no_grad():
    start, used = time.perf_counter(), sum(os.times()[:4])
    compiled = torch.compile(model, backend=backend)
    compiled(x)
    cold, worked = time.perf_counter() - start, sum(os.times()[:4]) - used
    warm = []
    for _ in range(20):
        start = time.perf_counter()
        compiled(x)
        warm.append(time.perf_counter() - start)
print(json.dumps([cold, worked, sorted(warm)[10]]))
"""


def times(console: Console, rounds: int) -> list[str]:
    """The MLP from torch.compile to its result, in new processes: medians, and what is beyond the bars."""
    table = Table(title="the MLP, seconds from torch.compile to the result")
    for head in ("process", "cold", "of these CPU", "warm"):
        table.add_column(head, justify="left" if head == "process" else "right")
    missed = []
    cases = {"new": ("", False), "new, Dynamo used before": ("dynamo", False), "new, program in the cache": ("", True)}
    for name, (option, cached) in cases.items():
        found = []
        with tempfile.TemporaryDirectory() as shared:
            for number in range(rounds + cached):
                with tempfile.TemporaryDirectory() as own:
                    cache = shared if cached else own  # zig keeps what it compiled, too
                    environment = {**os.environ, "BRINGUP_CACHE": cache, "ZIG_GLOBAL_CACHE_DIR": f"{cache}/zig"}
                    command = [sys.executable, "-c", _TIMED, "256", option]
                    root = Path(__file__).resolve().parents[1]
                    done = subprocess.run(
                        command, check=True, capture_output=True, text=True, env=environment, cwd=root
                    )
                    if number >= cached:
                        found.append(json.loads(done.stdout.splitlines()[-1]))
        cold, worked, warm = (statistics.median(column) for column in zip(*found))
        table.add_row(name, f"{cold:.2f}", f"{worked:.2f}", f"{warm:.4f}")
        missed += [f"{name}: {cold:.2f} s cold, not {BAR_COLD}"] if cold > BAR_COLD else []
        missed += [f"{name}: {warm:.4f} s warm, not {BAR_WARM}"] if warm > BAR_WARM else []
    console.print(table)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="parts of names; all by default")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--times", action="store_true", help="measure seconds instead")
    parser.add_argument("--rounds", type=int, default=5, help="processes for each median of --times")
    chosen = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 130)
    if chosen.times:
        missed = times(console, chosen.rounds)
    else:
        picked = [w for w in WORKLOADS if not chosen.models or any(part in w.name for part in chosen.models)]
        rows, missed = [], []
        for work in picked:
            more, differing = rows_of(work)
            rows += more
            missed += differing
        show(rows, console)
        missed += [f"{row.model}, {row.vector or 'scalar'}: {miss}" for row in rows for miss in row.misses]
        if chosen.json is not None:
            record(chosen.json, recorded_data(rows))
    for line in missed:
        console.print(f"missed: {line}", style="red", highlight=False)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
