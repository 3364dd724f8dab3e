"""What an installed bringup adds to ``import torch``: whole processes with and without its entry point, alternating.

    python benchmarks/import_time.py --record import_time

A round has two processes of each kind, in the order on, off, off, on and then the other way round, so that a slow phase
of the machine hits both. ``import`` is the statement alone, ``process`` the whole program with start and exit, and
``same against same`` the two processes of a round without the entry point.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from time import perf_counter

from recording import record

#: What the project promises, in seconds.
BAR = 0.06
PROGRAM = "import time; start = time.perf_counter(); import torch; print(time.perf_counter() - start)"


def seconds(autoload: str, more: Mapping[str, str]) -> tuple[float, float]:
    """Returns the seconds of the import and of the whole process."""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload, **more}
    start = perf_counter()
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    ).stdout
    return float(printed), perf_counter() - start


def added(rounds: int, more: Mapping[str, str] | None = None) -> dict[str, list[float]]:
    """Returns the added seconds of each round."""
    found: dict[str, list[float]] = {"import": [], "process": [], "same against same": []}
    for number in range(-1, rounds):  # the first round reads files that no later one has to
        runs: dict[str, list[tuple[float, float]]] = {"0": [], "1": []}
        for autoload in "1001" if number % 2 else "0110":
            runs[autoload].append(seconds(autoload, more or {}))
        if number < 0:
            continue
        for which, name in enumerate(("import", "process")):
            on, off = (statistics.fmean(run[which] for run in runs[autoload]) for autoload in "10")
            found[name].append(on - off)
        found["same against same"].append(runs["0"][0][0] - runs["0"][1][0])
    return found


def quartiles(values: Sequence[float]) -> list[float]:
    """Returns the lower quartile, the median and the upper quartile."""
    return [round(value, 4) for value in statistics.quantiles(values, n=4)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--record", metavar="NAME", help="write results/NAME.json")
    options = parser.parse_args()
    found = {name: quartiles(values) for name, values in added(options.rounds).items()}
    for name, (low, median, high) in found.items():
        print(f"{name:18} {median:+.4f} s ({low:+.4f} … {high:+.4f})")
    print(f"bar: {BAR:+.2f} s")
    if options.record:
        print(record(options.record, {"seconds": found, "median": found["import"][1], "bar": BAR}))


if __name__ == "__main__":
    main()
