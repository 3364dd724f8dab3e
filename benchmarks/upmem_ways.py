"""Simulated time of this device beside the way of UPMEM's public PyTorch stack, on the same simulator.

    python benchmarks/upmem_ways.py                # prints, writes results/upmem_ways.json

That way has one working tasklet in a DPU, moves every operand of an op in and its result out, and multiplies matrices
by one launch for each column. Its kernels here are ours of PrIM, in float32; more tasklets stand beside it. How a time
is estimated is the same for all.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Any

DPUS = 64
os.environ["BRINGUP_DRIVERS"] = "upmem"
os.environ["BRINGUP_UPMEM"] = f"dpus={DPUS},timing=1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from prim import SOURCES  # noqa: E402
from recording import record  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402
from rich.table import Table  # noqa: E402

from bringup.driver.in_use import active_drivers  # noqa: E402
from bringup.upmem import DpuSet, compile_program  # noqa: E402
from bringup.upmem.rv32 import calibration  # noqa: E402
from bringup.upmem.timing import transfer_seconds  # noqa: E402


@dataclass
class Way:
    """What one op takes, in simulated seconds."""

    name: str
    launches: int = 0
    transfers: float = 0.0
    kernels: float = 0.0

    @property
    def milliseconds(self) -> float:
        """All of it."""
        return (self.transfers + self.kernels) * 1e3


def program(source: str, tasklets: int) -> bytes:
    return compile_program("#define T float\n" + (SOURCES / source).read_text(), tasklets=tasklets, timed=True)


def columns_one_by_one(a: np.ndarray, b: np.ndarray, tasklets: int) -> Way:
    """A product of matrices: rows over the DPUs, and for each column a vector in, a launch, and a vector out."""
    way, rows = Way(f"a launch per column, {tasklets} tasklet{'s' * (tasklets > 1)}"), len(a) // DPUS
    numbers, inner = calibration(), a.shape[1]
    result = np.empty((len(a), b.shape[1]), np.float32)
    with DpuSet(DPUS) as dpus:
        dpus.load(program("gemv.c", tasklets))
        place = dpus.heap
        dpus.write(place, a.reshape(DPUS, -1))
        vector, out = place + rows * inner * 4, place + rows * inner * 4 + inner * 4
        way.transfers += transfer_seconds(rows * inner * 4, DPUS, numbers)
        for column in track(range(b.shape[1]), description=way.name):
            dpus.broadcast(vector, np.ascontiguousarray(b[:, column]))
            dpus.launch(rows=rows, columns=inner)
            result[:, column] = dpus.read(out, np.float32, rows).reshape(-1)
            way.launches += 1
            way.kernels += dpus.time().seconds
            way.transfers += transfer_seconds(inner * 4, DPUS, numbers, broadcast=True)
            way.transfers += transfer_seconds(rows * 4, DPUS, numbers, to=False)
    np.testing.assert_allclose(result, a @ b, rtol=1e-3, atol=1e-3)
    return way


def moved_for_each_op(a: np.ndarray, b: np.ndarray, tasklets: int) -> Way:
    """A sum: both operands in, a launch, the result out."""
    way, count = Way(f"operands moved for the op, {tasklets} tasklet{'s' * (tasklets > 1)}"), a.size // DPUS
    numbers = calibration()
    with DpuSet(DPUS) as dpus:
        dpus.load(program("va.c", tasklets))
        place = dpus.heap
        for operand in (a, b):
            dpus.write(place, operand.reshape(DPUS, -1))
            way.transfers += transfer_seconds(count * 4, DPUS, numbers)
            place += count * 4
        dpus.launch(count=count)
        way.launches, way.kernels = 1, dpus.time().seconds
        way.transfers += transfer_seconds(count * 4, DPUS, numbers, to=False)
        np.testing.assert_array_equal(dpus.read(place - count * 4, np.float32, count).reshape(-1), a + b)
    return way


def on_the_device(name: str, work: Any, operands: list[np.ndarray], *, resident: bool) -> Way:
    """The same op of PyTorch on this device."""
    torch.empty(1, device="upmem")  # opens it
    torch.upmem.reset_report()
    there = [torch.from_numpy(one).to("upmem") for one in operands]
    if resident:
        torch.upmem.reset_report()
    result = work(*there)
    if not resident:
        result = result.cpu()
    way = Way(name)
    for row in active_drivers()[0].driver._machines[0].times.rows.values():
        assert row.counted == row.calls
        way.launches += row.calls
        way.kernels += row.seconds["DPU"]
        way.transfers += sum(row.seconds.values()) - row.seconds["DPU"]
    torch.testing.assert_close(result.cpu(), work(*map(torch.from_numpy, operands)), rtol=1e-3, atol=1e-3)
    return way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, help="rows and columns of the matrices, a multiple of 128")
    parser.add_argument("--elements", type=int, default=1 << 20, help="of the sum, a multiple of 16384")
    options = parser.parse_args()
    rng, data, console = np.random.default_rng(0), {}, Console()
    a, b = rng.standard_normal((2, options.size, options.size), dtype=np.float32)
    x, y = rng.standard_normal((2, options.elements), dtype=np.float32)
    cases = {
        f"{options.size}³ product": [
            columns_one_by_one(a, b, 1),
            columns_one_by_one(a, b, 16),
            on_the_device("this device, operands moved", torch.mm, [a, b], resident=False),
            on_the_device("this device, operands resident", torch.mm, [a, b], resident=True),
        ],
        f"{options.elements:,} sums": [
            moved_for_each_op(x, y, 1),
            moved_for_each_op(x, y, 16),
            on_the_device("this device, operands moved", torch.add, [x, y], resident=False),
            on_the_device("this device, operands resident", torch.add, [x, y], resident=True),
        ],
    }
    for name, ways in cases.items():
        table = Table(title=f"{name}, float32, {DPUS} DPUs: estimated times, not calibrated")
        for head in ("way", "launches", "kernels ms", "transfers ms", "together ms", "times the last"):
            table.add_column(head, justify="left" if head == "way" else "right")
        best, rows = ways[-1].milliseconds, []
        for way in ways:
            times = (way.kernels * 1e3, way.transfers * 1e3, way.milliseconds, way.milliseconds / best)
            table.add_row(way.name, f"{way.launches:,}", *(f"{one:,.2f}" for one in times))
            keys = ("kernels ms", "transfers ms", "together ms", "times the last")
            rows.append({"name": way.name, "launches": way.launches, **dict(zip(keys, (round(t, 3) for t in times)))})
        data[name] = rows
        console.print(table)
    record("upmem_ways", {"product": next(iter(data.values())), "sum": list(data.values())[1], "cases": list(data)})


if __name__ == "__main__":
    main()
