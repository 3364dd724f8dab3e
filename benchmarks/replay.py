"""What a launch costs the host: in eager mode, in a replayed graph, and in the driver alone. Kernels mode, one thread.

python benchmarks/replay.py
python benchmarks/replay.py --kernels 1000 --json results/replay.json

All three launch the same kernel, `x.add_(1.0)` on 4 floats, with the same arguments, on the driver's default stream.
The driver alone is a loop in C over its `launch`; so what replay adds to it is the core's part. Rounds are interleaved
(timing.py), and a ratio is taken inside a round.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import struct
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recording import record
from timing import Pair, Side, compare

BAR = 1e-6  # seconds that a replay may add to the driver's own launch, per kernel

LOOP = """
#include <bringup/driver.h>
int32_t launch_often(const bringup_driver *driver, uint64_t kernel, const uint64_t *args, uint32_t count,
                     uint32_t addresses, uint64_t grid, int64_t times) {
  uint32_t finished = 0;
  bringup_launch work = {args, count, addresses, grid, 0, 4, 32, 0, &finished};
  for (int64_t i = 0; i < times; i++) {
    int32_t status = driver->launch(driver->self, 0, kernel, &work);
    if (status != BRINGUP_OK) return status;
  }
  return BRINGUP_OK;
}
"""


@dataclass(frozen=True)
class Row:
    name: str
    seconds: float  # per kernel
    ratio: float  # to the driver alone
    added: float  # seconds per kernel above the driver alone
    noisy: bool = False
    bar: float | None = None

    @property
    def met(self) -> bool | None:
        return None if self.bar is None else self.added <= self.bar


def compiled_loop() -> Any:
    """The loop in C, compiled and loaded."""
    import bringup

    include = Path(bringup.__file__).parent / "include"
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "loop.c"), Path(folder, "loop.so")
        source.write_text(LOOP)
        command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", f"-I{include}", str(source), "-o", library]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(library)).launch_often


def the_drivers_own(x: Any, add: Callable[[], Any], times: int) -> Callable[[], None]:
    """Calls the driver's launch as often as asked, with what `add()` launches on `x`."""
    from bringup.driver import in_use
    from bringup.driver.abi import struct_of
    from bringup.lowering.install import compiler_for

    plans: list[Any] = []
    compiler = compiler_for(x.device.index)
    make_plan = compiler._make_plan

    def noting(launches: Any, *rest: Any) -> Any:
        plans.append(launches)
        return make_plan(launches, *rest)

    compiler._make_plan = noting
    try:
        add()
    finally:
        compiler._make_plan = make_plan
    ((kernel, grid, _, _, arguments),) = plans[-1]
    one = struct.unpack("<I", struct.pack("<f", 1.0))[0]
    # kinds of an argument: bringup/_C.pyi, make_plan
    values = [{0: a, 1: x.data_ptr() + b, 2: x.data_ptr() + b, 4: one}[kind] for kind, a, b in arguments]
    addresses = sum(kind in (1, 2) for kind, _, _ in arguments)
    loop = compiled_loop()
    args = (ctypes.c_uint64 * len(values))(*values)
    driver = ctypes.c_void_p(struct_of(in_use.driver_of(0).driver))
    fixed = (driver, ctypes.c_uint64(kernel), args, len(values), addresses, ctypes.c_uint64(grid))

    def run() -> None:
        status = loop(*fixed, ctypes.c_int64(times))
        assert status == 0, status

    before = x.sum().item()
    run()
    assert x.sum().item() == before + times * x.numel(), "the loop does not launch what add() launches"
    return run


def measure(kernels: int, rounds: int) -> list[Row]:
    import torch

    sim: Any = torch.sim  # type: ignore[attr-defined]
    x = torch.zeros(4, device="sim")

    def eager() -> None:
        for _ in range(kernels):
            x.add_(1.0)

    alone = the_drivers_own(x, lambda: x.add_(1.0), kernels)
    graph = sim.Graph()
    with sim.graph(graph):
        eager()
    before = x.sum().item()
    graph.replay()
    assert x.sum().item() == before + 4 * kernels

    names = {"alone": alone, "eager": eager, "graph": graph}
    driver = Side("alone()", names)
    pairs: dict[str, Pair] = {
        "replay": compare(driver, Side("graph.replay()", names, sim.synchronize), rounds),
        "eager": compare(driver, Side("eager()", names, sim.synchronize), rounds),
    }
    bare = pairs["replay"].cpu / kernels
    rows = [Row("driver's launch", bare, 1.0, 0.0)]
    for name, pair in pairs.items():
        bar = BAR if name == "replay" else None
        added = (pair.device - pair.cpu) / kernels
        rows.append(Row(name, pair.device / kernels, pair.ratio, added, pair.noisy, bar))
    return rows


def show(rows: list[Row], kernels: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("way", title=f"host time of {kernels} tiny kernels, per kernel")
    for column in ("time", "÷ driver's", f"above the driver's\nreplay ≤ {BAR * 1e6:.0f} µs", "bar"):
        table.add_column(column, justify="right")
    for row in rows:
        verdict = {None: "", True: "met", False: "NOT MET"}[row.met]
        table.add_row(
            row.name,
            f"{row.seconds * 1e9:.0f} ns",
            f"{row.ratio:.2f}",
            f"{row.added * 1e9:.0f} ns",
            verdict + (" (noisy)" if row.noisy else ""),
        )
    Console(markup=False, highlight=False).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=200, help="in one graph")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path, help="also writes the rows here")
    options = parser.parse_args()
    os.environ.update(BRINGUP_DRIVERS="sim", BRINGUP_SIM="mode=kernels,threads=1")
    load = os.getloadavg()
    rows = measure(options.kernels, options.rounds)
    show(rows, options.kernels)
    if options.json:
        written = [{**asdict(row), "met": row.met} for row in rows]
        record(options.json, {"load": load, "kernels": options.kernels, "rows": written})


if __name__ == "__main__":
    main()
