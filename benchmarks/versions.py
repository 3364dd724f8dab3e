"""Two checkouts of bringup side by side, both built: how large they are, how many hops a call takes, how fast they are.

python benchmarks/versions.py ../before --record house                    # lines, files, hops, seconds of import
python benchmarks/versions.py ../before --speed eager,compile_time --jobs 8 --record house_speed
python benchmarks/versions.py ../before --build --record house_build      # CPU seconds of a build from nothing

Speed: each of ``--processes`` rounds runs the benchmark of the earlier checkout, of this one, and of the earlier one
once more, in rotating order; a row is the ratio of this one to the earlier one, with the 95 % interval of its mean over
the rounds, and the same for the earlier one against itself. With ``--jobs`` rounds run at once, each on its own core.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from import_time import added, quartiles
from recording import record

ROOT = Path(__file__).resolve().parents[1]
#: By degrees of freedom: how many standard errors the 95 % interval of a mean reaches to each side (Student's t).
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
#: A row is slower when its whole interval is above this.
SLOWER = 1.03

#: Benchmark → its options, and the columns of a row that are compared: ratios to the CPU or inductor, or seconds.
SPEED: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "eager": (["--kernels", "--quick"], ("value",)),
    "compile": (["--quick"], ("vs_inductor",)),
    "compile_time": (["--rounds", "1"], ("first", "disk", "shape")),
}

HOPS = """
import os, sys
os.environ.update(BRINGUP_DRIVERS="sim", BRINGUP_SIM="mode=kernels,threads=1")
import torch
x, y = torch.rand(8, device="sim"), torch.rand(8, device="sim")
(x * y).sum().item()

def hops(function):
    seen = []
    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and "/bringup/" in code.co_filename: seen.append(code.co_filename)
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return [len(seen), len(set(seen))]

found = {"eager add, cold": hops(lambda: x + y), "eager add, warm": hops(lambda: x + y)}
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)).to("sim")
fast = torch.compile(model, backend="bringup")
with torch.no_grad():
    found["compiled graph, cold"] = hops(lambda: fast(x))
    fast(x)
    found["compiled graph, warm"] = hops(lambda: fast(x))
import json
print(json.dumps(found))
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Variables of a process that uses the checkout in ``folder``."""
    return {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", **more}


def python(folder: Path, code: str, **more: str) -> str:
    """What a program prints that uses the checkout in ``folder``."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(folder, **more), capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{folder}: {done.stderr}")
    return done.stdout.splitlines()[-1]


def lines(folder: Path) -> dict[str, list[int]]:
    """Lines and files of each folder of the package, and of the whole."""
    listed = subprocess.run(
        ["git", "ls-files", "bringup"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, list[int]] = {}
    for name in listed.split():
        part = name.split("/")[1] if name.count("/") > 1 else "."
        count = (folder / name).read_bytes().count(b"\n")
        for key in (part, "all"):
            row = found.setdefault(key, [0, 0])
            row[0] += count
            row[1] += 1
    return dict(sorted(found.items()))


def table(columns: tuple[str, str, str], sides: Sequence[dict[str, list[int]]]) -> dict[str, Any]:
    """Two numbers by name for each checkout, as the pages of the documentation show them."""
    first, second = sides
    rows = [
        [name, *(f"{one[which]:,} → {other[which]:,}" for which in range(2))]
        for name in dict.fromkeys([*first, *second])
        for one, other in [(first.get(name, [0, 0]), second.get(name, [0, 0]))]
    ]
    return {"columns": list(columns), "rows": rows}


def hops(folder: Path) -> dict[str, list[int]]:
    """Calls of Python functions of bringup, and how many of its files they are in."""
    with tempfile.TemporaryDirectory() as cache:
        found: dict[str, list[int]] = json.loads(python(folder, HOPS, BRINGUP_CACHE=cache))
    return found


def build_seconds(folder: Path) -> float:
    """CPU seconds of building a fresh clone of the checkout, without ccache."""
    with tempfile.TemporaryDirectory() as clone:
        subprocess.run(["git", "clone", "-q", str(folder), clone], check=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(command, cwd=clone, env={**os.environ, "CCACHE_DISABLE": "1"}, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def name_of(row: dict[str, Any]) -> str:
    """Returns what a benchmark calls its row: a name, an op, or the fields of a question."""
    question = row.get("question")
    return ", ".join(map(str, question.values())) if question else str(row.get("name") or row["op"])


def rows_of(folder: Path, benchmark: str, core: int | None, more: Sequence[str]) -> dict[str, float]:
    """One process of a benchmark: a number for each row and column."""
    options, columns = SPEED[benchmark]
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "rows.json"
        command = [sys.executable, f"benchmarks/{benchmark}.py", *options, *more, "--json", str(file)]
        if core is not None:
            command = ["taskset", "-c", str(core), *command]
        done = subprocess.run(
            command, cwd=folder, env=environment(folder, BRINGUP_CACHE=f"{place}/cache"), capture_output=True, text=True
        )
        if not file.exists():
            sys.exit(f"{folder}: {benchmark}: {done.stderr}")
        rows = json.loads(file.read_text())["data"]["rows"]
    return {
        ", ".join([name_of(row), *([column] if len(columns) > 1 else [])]): row[column]
        for row in rows
        for column in columns
        if isinstance(row.get(column), (int, float)) and row[column] > 0
    }


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of some ratios and its 95 % interval.

    >>> interval([1.0, 1.0, 1.0])
    (1.0, 1.0, 1.0)
    """
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    reach = STUDENT[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def speed(earlier: Path, now: Path, benchmark: str, processes: int, jobs: int, more: Sequence[str]) -> list[Any]:
    """Rows of a benchmark: name, ratio to the earlier checkout with its interval, the earlier one against itself."""
    cores = sorted(os.sched_getaffinity(0))

    def one_round(number: int) -> list[dict[str, float]]:
        found: list[dict[str, float]] = [{}, {}, {}]
        for step in range(3):
            which = (step + number) % 3
            core = cores[number % len(cores)] if jobs > 1 else None
            found[which] = rows_of((earlier, now, earlier)[which], benchmark, core, more)
        return found

    with ThreadPoolExecutor(jobs) as pool:
        rounds = list(pool.map(one_round, range(processes)))
    names = [name for name in rounds[0][0] if all(name in found for one in rounds for found in one)]
    return [
        {
            "row": name,
            "ratio": interval([one[1][name] / one[0][name] for one in rounds]),
            "same against same": interval([one[2][name] / one[0][name] for one in rounds]),
        }
        for name in names
    ]


def show_speed(benchmark: str, rows: Sequence[Any]) -> None:
    print(f"{benchmark}: this checkout ÷ the earlier one (95 % interval); the earlier one against itself")
    for row in sorted(rows, key=lambda row: -row["ratio"][1]):
        (mean, low, high), same = row["ratio"], row["same against same"]
        verdict = "slower" if low > SLOWER else "faster" if high < 1 / SLOWER else ""
        control = f"{same[0]:5.2f} ({same[1]:.2f} … {same[2]:.2f})"
        print(f"  {row['row']:44} {mean:5.2f} ({low:.2f} … {high:.2f})   {control} {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("earlier", type=Path, help="the folder of the earlier checkout, built")
    parser.add_argument("--speed", default="", help=f"benchmarks to compare: {','.join(SPEED)}")
    parser.add_argument("--processes", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--jobs", type=int, default=1, help="rounds at once, each on its own core")
    parser.add_argument("--models", help="only these models of compile")
    parser.add_argument("--build", action="store_true", help="build both from nothing")
    parser.add_argument("--record", metavar="NAME", help="write results/NAME.json")
    options = parser.parse_args()
    earlier = options.earlier.resolve()
    folders = (earlier, ROOT)
    data: dict[str, Any] = {}
    if options.speed:
        for benchmark in options.speed.split(","):
            more = ["--models", options.models] if benchmark == "compile" and options.models else []
            data[benchmark] = speed(earlier, ROOT, benchmark, options.processes, options.jobs, more)
            show_speed(benchmark, data[benchmark])
    elif options.build:
        data["build"] = [build_seconds(folder) for folder in folders]
    else:
        data["lines"] = table(("folder", "lines", "files"), [lines(folder) for folder in folders])
        data["hops"] = table(("one call", "Python functions", "files"), [hops(folder) for folder in folders])
        data["import torch, added seconds"] = [
            quartiles(added(10, {"PYTHONPATH": str(folder)})["import"])[1] for folder in folders
        ]
    data["commits"] = [
        subprocess.run(
            ["git", "rev-parse", "--short=10", "HEAD"], cwd=folder, capture_output=True, text=True
        ).stdout.strip()
        for folder in folders
    ]
    if not options.speed:
        print(json.dumps(data, indent=1))
    if options.record:
        print(record(options.record, data))


if __name__ == "__main__":
    main()
