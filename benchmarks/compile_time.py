"""What a new op and a new shape cost on the simulated device, in kernels mode: medians over fresh processes.

python benchmarks/compile_time.py
python benchmarks/compile_time.py --rounds 3 --json results/compile_time.json
python benchmarks/compile_time.py --profile        # which functions the time goes to, without the compiler

Every round has a disk cache of its own. Its first process meets every op for the first time: nothing is on disk, and
the C compiler runs. The second one finds the kernels there, the third one sees new shapes. Imports and the first use of
the device are not counted: other ops run before. `first` is the whole call, up to the result; `compiler` is the C
compiler's part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from recording import record

#: What the project promises.
BAR_COMPILER = 1.5  # first call ÷ C compiler
BAR_DISK = 3e-3  # seconds of a first call whose kernels are on disk
BAR_SHAPE = 60e-6  # seconds that a new shape adds to a call
SCALARS = 10_000  # different numbers, one cache entry


def cases(torch: Any, device: Any) -> dict[str, tuple[Callable[[int], tuple[Any, ...]], Callable[..., Any]]]:
    """By name: the arguments for a size, and the call."""
    F = torch.nn.functional

    def matrix(n: int) -> tuple[Any, ...]:
        return (torch.ones(n, 2 * n, device=device),)

    def two(n: int) -> tuple[Any, ...]:
        return (*matrix(n), *matrix(n))

    def product(n: int) -> tuple[Any, ...]:
        return torch.ones(n, 64, device=device), torch.ones(64, 2 * n, device=device)

    def image(n: int) -> tuple[Any, ...]:
        return (torch.ones(2, 8, n, n, device=device),)

    def filtered(n: int) -> tuple[Any, ...]:
        return (*image(n), torch.ones(16, 8, 3, 3, device=device))

    def picked(n: int) -> tuple[Any, ...]:
        return (*matrix(n), torch.zeros(n, 5, dtype=torch.int64, device=device))

    return {
        "add": (two, lambda x, y: x + y),
        "exp": (matrix, lambda x: x.exp()),
        "gelu": (matrix, lambda x: F.gelu(x)),
        "softmax": (matrix, lambda x: x.softmax(-1)),
        "layer_norm": (matrix, lambda x: F.layer_norm(x, x.shape[1:])),
        "sum": (matrix, lambda x: x.sum(-1)),
        "mm": (product, lambda x, y: x.mm(y)),
        "conv2d": (filtered, lambda x, w: F.conv2d(x, w, padding=1)),
        "cumsum": (matrix, lambda x: x.cumsum(-1)),
        "gather": (picked, lambda x, i: x.gather(1, i)),
        "max_pool2d": (image, lambda x: F.max_pool2d(x, 2)),
    }


@dataclass
class Row:
    """Medians in seconds."""

    op: str
    first: float
    compiler: float
    disk: float
    shape: float  # what a new shape adds to a call
    compiles: int  # of the new shapes: should be none

    @property
    def ratio(self) -> float:
        return self.first / self.compiler

    @property
    def met(self) -> bool:
        return self.ratio <= BAR_COMPILER and self.disk <= BAR_DISK and self.shape <= BAR_SHAPE and self.compiles == 0


# ---- inside a measured process ----
class Device:
    """The device after its first use, and what its resolver tells."""

    def __init__(self) -> None:
        import torch

        import bringup

        self.torch, self.device = torch, bringup.device("sim")
        x = torch.ones(4, 4, device=self.device)
        # The second one has a shape function in Python, which imports 0.6 s of torch the first time.
        x.neg(), torch.nn.functional.group_norm(x, 2)
        from bringup.lowering.install import compiler_for

        self.resolver = compiler_for(self.device.index or 0)

    def call(self, run: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
        """Seconds of a call, until its result is there."""
        start = perf_counter()
        run(*arguments)
        self.torch.sim.synchronize()
        return perf_counter() - start


def first_calls(watched: bool) -> dict[str, list[float]]:
    """By op: [seconds of the first call, seconds of these in the compiler]."""
    here = Device()
    found = {}
    for name, (arguments, run) in cases(here.torch, here.device).items():
        given = arguments(48)
        records: list[Any] = []
        if watched:
            here.resolver.observers.append(records.append)
        seconds = here.call(run, given)
        here.resolver.observers.clear()
        kernels = [kernel for record in records for kernel in record.kernels]
        found[name] = [seconds, sum(kernel.seconds.get("compile", 0.0) for kernel in kernels)]
    return found


def new_shapes() -> dict[str, list[float]]:
    """By op: [median of what a new shape adds to a call, how often something was compiled for one]."""
    here = Device()
    found = {}
    for name, (arguments, run) in cases(here.torch, here.device).items():
        here.call(run, arguments(48))
        records: list[Any] = []
        added = []
        for n in range(50, 90, 2):
            given = arguments(n)
            first = here.call(run, given)
            added.append(first - statistics.median(here.call(run, given) for _ in range(7)))
        here.resolver.observers.append(records.append)  # watching costs time: apart from the measurement
        for n in range(51, 91, 2):
            here.call(run, arguments(n))
        here.resolver.observers.clear()
        compiled = [k for record in records for k in record.kernels if k.origin == "compiled"]
        found[name] = [statistics.median(added), len(compiled)]
    return found


def scalars() -> dict[str, list[float]]:
    """Signatures, plans and files that 10,000 different scalars make."""
    here = Device()
    from bringup import _C
    from bringup.compile.kernel_cache import default_cache

    x = here.torch.ones(16, device=here.device)
    x * 0.5  # the kernel itself
    before, files = _C.kernel_cache_info(), default_cache().info().entries
    _C.kernel_cache_clear()
    for n in range(SCALARS):
        x * (0.5 + n)
    after = _C.kernel_cache_info()
    return {
        "entries": [after["entries"]],
        "plans": [after["plans"]],
        "misses": [after["misses"]],
        "files": [default_cache().info().entries - files],
        "before": [before["entries"]],
    }


def profile() -> None:
    """Prints the functions that lowering and rendering spend their time in."""
    import cProfile
    import pstats

    here = Device()
    made = {name: (arguments(48), run) for name, (arguments, run) in cases(here.torch, here.device).items()}
    profiler = cProfile.Profile()
    for given, run in made.values():
        profiler.enable()
        here.call(run, given)
        profiler.disable()
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(25)


STAGES: dict[str, Callable[[], Any]] = {
    "cold": lambda: first_calls(watched=True),
    "disk": lambda: first_calls(watched=False),
    "shapes": new_shapes,
    "scalars": scalars,
    "profile": profile,
}


# ---- the processes ----
def in_process(stage: str, cache: str) -> dict[str, list[float]]:
    """Runs a stage in a fresh process with a disk cache of its own."""
    simulated = os.environ.get("BRINGUP_SIM", "") + ",mode=kernels,threads=1"
    environment = {**os.environ, "BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": simulated, "BRINGUP_CACHE": cache}
    command = [sys.executable, __file__, "--stage", stage]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{stage}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(rounds: int) -> tuple[list[Row], dict[str, list[float]]]:
    """All rows, and what the scalars made."""
    cold: list[dict[str, list[float]]] = []
    disk: list[dict[str, list[float]]] = []
    shapes: list[dict[str, list[float]]] = []
    with tempfile.TemporaryDirectory(prefix="bringup-compile-time-") as folder:
        for number in range(rounds):
            cache = str(Path(folder) / str(number))
            cold.append(in_process("cold", cache))
            disk.append(in_process("disk", cache))
            shapes.append(in_process("shapes", cache))
        counted = in_process("scalars", cache)

    def median(results: list[dict[str, list[float]]], name: str, column: int) -> float:
        return statistics.median(result[name][column] for result in results)

    return [
        Row(
            name,
            median(cold, name, 0),
            median(cold, name, 1),
            median(disk, name, 0),
            median(shapes, name, 0),
            int(max(result[name][1] for result in shapes)),
        )
        for name in cold[0]
    ], counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of fresh processes (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--profile", action="store_true", help="a profile of the compiler's Python instead")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        print(json.dumps(STAGES[options.stage]()))
        return
    if options.profile:
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "mode=kernels,threads=1"}
            command = [sys.executable, __file__, "--stage", "profile"]
            sys.exit(subprocess.call(command, env={**environment, "BRINGUP_CACHE": cache}))
    load = os.getloadavg()
    rows, counted = measure(options.rounds)
    show(rows, counted)
    if options.json:
        written = [{**asdict(row), "ratio": row.ratio, "met": row.met} for row in rows]
        record(options.json, {"load": load, "rounds": options.rounds, "rows": written, "scalars": counted})


def show(rows: list[Row], counted: dict[str, list[float]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("op", title="first calls and new shapes, kernels mode")
    table.columns[0].no_wrap = True
    for column in ("first", "compiler", f"ratio\n≤ {BAR_COMPILER}", "from disk\n≤ 3 ms", "new shape\n≤ 60 µs", "bars"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.op,
            f"{row.first * 1e3:.1f} ms",
            f"{row.compiler * 1e3:.1f} ms",
            f"{row.ratio:.2f}",
            f"{row.disk * 1e3:.2f} ms",
            f"{row.shape * 1e6:.0f} µs" + (f", {row.compiles} compiled" if row.compiles else ""),
            "met" if row.met else "NOT MET",
        )
    console = Console(markup=False, highlight=False)
    console.print(table)
    console.print(
        f"{SCALARS} different scalars: {counted['entries'][0]} signature, {counted['plans'][0]} plan, "
        f"{counted['misses'][0]} misses, {counted['files'][0]} new files"
    )


if __name__ == "__main__":
    main()
