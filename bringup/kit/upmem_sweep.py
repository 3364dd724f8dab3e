"""``bringup upmem sweep model.py --dpus 1,64 --tasklets 1,16``: one program on machines of many sizes, in a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from bringup.kit.terminal import fail, print_table

_RUN = """
import json, runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
from bringup.driver.in_use import active_drivers
from bringup.drivers.upmem.times import PHASES
rows = [row for driver in active_drivers() for machine in driver.driver._machines.values()
        for row in machine.times.rows.values()]
print("\\nsweep:", json.dumps({phase: sum(row.seconds[phase] for row in rows) for phase in PHASES}))
"""


def sweep(
    program: Annotated[Path, typer.Argument(help='A Python program that uses the device "upmem".')],
    dpus: Annotated[str, typer.Option(help="Numbers of DPUs, with commas.")] = "1,16,64",
    tasklets: Annotated[str, typer.Option(help="Numbers of tasklets, with commas.")] = "16",
    timing: Annotated[bool, typer.Option(help="Count instructions, not DMA alone.")] = False,
) -> None:
    """Run a program on machines of several sizes, and print what its parts are estimated to take."""
    from rich.progress import track

    from bringup.drivers.upmem.options import parse_options

    if not program.is_file():
        fail("upmem sweep", f"there is no file {program}")
    texts = [f"dpus={d.strip()},tasklets={t.strip()}" for d, t in product(dpus.split(","), tasklets.split(","))]
    try:
        machines = [parse_options(f"{text},timing={int(timing)}") for text in texts]
    except ValueError as error:
        fail("upmem sweep", str(error))
    found = []
    for machine, text in track(list(zip(machines, texts)), description="machines", transient=True):
        environment = {**os.environ, "BRINGUP_DRIVERS": "upmem", "BRINGUP_UPMEM": f"{text},timing={int(timing)}"}
        command = [sys.executable, "-c", _RUN, str(program)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            fail("upmem sweep", f"{program} failed with {text}\n{done.stderr.strip()[-2000:]}")
        found.append((machine, json.loads(done.stdout.rpartition("sweep:")[2])))
    longest = max(sum(phases.values()) for _, phases in found) or 1.0
    columns = ["DPUs", "tasklets", *(f"{phase} ms" for phase in found[0][1]), "together ms", ""]
    rows = []
    for machine, phases in found:
        total = sum(phases.values())
        bar = "█" * max(1, round(24 * total / longest))
        times = [f"{seconds * 1e3:.3f}" for seconds in (*phases.values(), total)]
        rows.append([f"{machine.dpus:,}", str(machine.tasklets), *times, bar])
    kind = "instructions counted where they could be" if timing else "kernels by their DMA alone"
    print_table(columns, rows, title=f"{program.name}: estimates, {kind}; beyond 64 DPUs extrapolated, unvalidated")
