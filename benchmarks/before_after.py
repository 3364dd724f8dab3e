"""Is the package as fast as before? Whole benchmark processes of two commits in turn, and what their ratios prove.

    python benchmarks/before_after.py --short --record                 # five rounds in about 40 minutes, and RISC-V
    python benchmarks/before_after.py --record                         # five rounds of everything (hours)
    python benchmarks/before_after.py eager --rounds 2 --quick         # a look (minutes)
    python benchmarks/before_after.py riscv                            # instruction counts, which need no rounds

A round has one process of the earlier commit and two of this tree, in an order that turns from round to round. A row is
compared by what its benchmark measures against a control inside the same process where it has one (the CPU, inductor),
so that a slow phase of the machine hits both. The number is the geometric mean of after / before over the rounds, with
the 95 % interval that drawing rounds again gives (2,000 times); ``same against same`` is the second process of this
tree against the first. A row is slower only if its whole interval lies above 1.03.

``--short`` has the same rounds, intervals and bar over fewer rows and shorter bursts, which one program (short_rows.py)
measures in both trees. What makes the long form so long is inductor: it compiles every model, in every process.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from checkouts import BEFORE, Checkout, before, here
from recording import ROOT, record
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

SLOWER = 1.03
DRAWS = 2000

#: Row of a benchmark's JSON → what it measures, by the name of the row.
Reader = Callable[[Mapping[str, Any]], dict[str, float]]


def _eager(row: Mapping[str, Any]) -> dict[str, float]:
    return {row["name"]: row["value"]} if row.get("counted", "ratio") == "ratio" else {}


def _compile(row: Mapping[str, Any]) -> dict[str, float]:
    asked = row["question"]
    name = f"{asked['model']} {asked['phase']}, {asked['threads']} threads, {asked['library']}"
    return {name: row["vs_inductor"]}


def _compile_time(row: Mapping[str, Any]) -> dict[str, float]:
    return {f"{row['op']}: {what}": row[what] for what in ("first", "disk", "shape")}


def _short(row: Mapping[str, Any]) -> dict[str, float]:
    return {row["name"]: row["value"]}


@dataclass(frozen=True)
class Benchmark:
    """A program of benchmarks/ (in a tree of its own, or here for both), its arguments, and how its rows are read."""

    program: str
    arguments: tuple[str, ...]
    quick: tuple[str, ...]
    read: Reader

    def run(self, tree: Checkout, quick: bool) -> dict[str, float]:
        """Returns the rows of one process."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.json"
            more = self.quick if quick else self.arguments
            tree.run(self.program, *more, "--json", str(file))
            content = json.loads(file.read_text())
        rows = content.get("data", content)["rows"]
        return {name: value for row in rows for name, value in self.read(row).items()}


BENCHMARKS = {
    "eager": Benchmark("benchmarks/eager.py", (), ("--quick",), _eager),
    "kernels": Benchmark("benchmarks/eager.py", ("--kernels",), ("--kernels", "--quick"), _eager),
    "compile": Benchmark("benchmarks/compile.py", ("--quick",), ("--quick", "--models", "mlp"), _compile),
    "compile_time": Benchmark("benchmarks/compile_time.py", ("--rounds", "1"), ("--rounds", "1"), _compile_time),
}
_ROWS = str(ROOT / "benchmarks" / "short_rows.py")
SHORT = {
    "eager": Benchmark(_ROWS, ("eager",), ("eager",), _short),
    "compile": Benchmark(_ROWS, ("compile",), ("compile", "--models", "mlp"), _short),
    "compile_time": BENCHMARKS["compile_time"],
}


@dataclass(frozen=True)
class Compared:
    """One row over all rounds; ratios are after / before."""

    name: str
    ratio: float
    low: float
    high: float
    same: float  # this tree against itself
    rounds: int

    @property
    def slower(self) -> bool:
        return self.low > SLOWER


def interval(ratios: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Returns the geometric mean and the ends of its 95 % interval, by drawing the rounds again.

    >>> interval([2.0, 2.0, 2.0])
    (2.0, 2.0, 2.0)
    >>> middle, low, high = interval([1.0, 1.1, 0.9, 1.0, 1.2])
    >>> low < middle < high
    True
    """
    logs = [math.log(ratio) for ratio in ratios]
    draw = random.Random(seed)
    means = sorted(math.fsum(draw.choices(logs, k=len(logs))) / len(logs) for _ in range(DRAWS))
    middle = math.fsum(logs) / len(logs)
    low, high = means[int(0.025 * DRAWS)], means[int(0.975 * DRAWS) - 1]
    return tuple(round(math.exp(value), 4) for value in (middle, low, high))  # type: ignore[return-value]


def compared(rounds: Sequence[tuple[Mapping[str, float], Mapping[str, float], Mapping[str, float]]]) -> list[Compared]:
    """The rows that every process has; a round is (before, after, after again)."""
    rows = []
    for name in rounds[0][0]:
        if not all(name in found and found[name] > 0 for one in rounds for found in one):
            continue
        ratio, low, high = interval([after[name] / earlier[name] for earlier, after, _ in rounds])
        same, _, _ = interval([again[name] / after[name] for _, after, again in rounds])
        rows.append(Compared(name, ratio, low, high, same, len(rounds)))
    return rows


def measure(
    chosen: Mapping[str, Benchmark], trees: tuple[Checkout, Checkout], rounds: int, quick: bool
) -> dict[str, Any]:
    """Runs all processes in turn; returns the compared rows of each benchmark."""
    earlier, after = trees
    found: dict[str, Any] = {}
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("processes", total=len(chosen) * rounds * 3)
        for name, benchmark in chosen.items():
            kept = []
            for number in range(rounds):
                order = [(0, earlier), (1, after), (2, after)]
                order = order[number % 3 :] + order[: number % 3]
                results: dict[int, dict[str, float]] = {}
                for place, tree in order:
                    progress.update(task, description=f"{name}, round {number + 1}: {tree.name}")
                    results[place] = benchmark.run(tree, quick)
                    progress.advance(task)
                kept.append((results[0], results[1], results[2]))
            found[name] = compared(kept)
    return found


def summary(found: Mapping[str, Sequence[Compared]]) -> list[dict[str, Any]]:
    """Returns a line for each benchmark: all of its rows together, this tree against itself, and the slowest row."""

    def mean(values: Sequence[float]) -> float:
        return round(math.exp(math.fsum(map(math.log, values)) / len(values)), 3)

    lines = []
    for name, rows in found.items():
        worst = max(rows, key=lambda row: row.low)
        lines.append(
            {
                "benchmark": name,
                "rows": len(rows),
                "after / before": mean([row.ratio for row in rows]),
                "same against same": mean([row.same for row in rows]),
                "slowest row": f"{worst.name}: {worst.low:.2f} … {worst.high:.2f}",
                "slower": sum(row.slower for row in rows),
            }
        )
    return lines


def instructions(trees: Sequence[Checkout], models: Sequence[str]) -> list[dict[str, Any]]:
    """The instructions of every model of benchmarks/riscv.py on both trees: the same every run."""
    counted: list[dict[str, int]] = []
    for tree in trees:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.json"
            # It ends with 1 where a bar of its own is missed, which is not what is asked here.
            program = (
                "import runpy, sys; sys.path.insert(0, 'benchmarks'); sys.argv = ['benchmarks/riscv.py', *sys.argv[1:]]"
            )
            tree.run("-c", f"{program}\ntry: runpy.run_path(sys.argv[0], run_name='__main__')\nexcept SystemExit: pass",
                     *models, "--json", str(file))  # fmt: skip
            content = json.loads(file.read_text())
        rows = content["data"]["rows"] if isinstance(content, dict) else content
        counted.append({f"{row['model']}, {row['vector'] or 'scalar'}": row["instructions"] for row in rows})
    earlier, after = counted
    return [
        {"name": name, "before": earlier[name], "after": after[name], "ratio": round(after[name] / earlier[name], 4)}
        for name in earlier
        if name in after
    ]


def show(name: str, rows: Sequence[Compared], console: Console) -> None:
    table = Table("row", "after / before", "95 %", "same against same", title=f"{name}, {rows[0].rounds} rounds")
    for row in rows:
        style = "red" if row.slower else ""
        table.add_row(row.name, f"{row.ratio:.3f}", f"{row.low:.3f} … {row.high:.3f}", f"{row.same:.3f}", style=style)
    console.print(table)
    console.print(f"slower than {SLOWER}: {sum(row.slower for row in rows)} of {len(rows)} rows")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="*", help=f"of {', '.join(BENCHMARKS)} and riscv; all by default")
    parser.add_argument("--commit", default=BEFORE, help=f"what to compare with (default: {BEFORE})")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="shorter bursts of fewer rows, by one program for both")
    parser.add_argument("--quick", action="store_true", help="fewer rows and shorter processes")
    parser.add_argument("--models", default="", help="parts of the names of models for riscv, by commas")
    parser.add_argument("--record", action="store_true", help="write results/before_after.json")
    options = parser.parse_args()
    known = SHORT if options.short else BENCHMARKS
    chosen = options.benchmarks or [*known, "riscv"]
    if unknown := set(chosen) - {*known, "riscv"}:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}: {', '.join(known)} or riscv")
    trees = (before(options.commit), here())
    wanted = {name: known[name] for name in chosen if name != "riscv"}
    found = measure(wanted, trees, options.rounds, options.quick)
    console = Console(width=None if sys.stdout.isatty() else 130)
    failed = 0
    for name, rows in found.items():
        show(name, rows, console)
        failed += sum(row.slower for row in rows)
    data: dict[str, Any] = {
        "rounds": options.rounds,
        "short": options.short,
        "bar": SLOWER,
        "slower": failed,
        "summary": summary(found),
        **{name: [asdict(row) for row in rows] for name, rows in found.items()},
    }
    if "riscv" in chosen:
        data["riscv"] = counts = instructions(trees, [part for part in options.models.split(",") if part])
        table = Table("RISC-V instructions", "before", "after", "ratio")
        for row in counts:
            more = row["after"] > row["before"]
            failed += more
            table.add_row(row["name"], f"{row['before']:,}", f"{row['after']:,}", f"{row['ratio']:.3f}",
                          style="red" if more else "")  # fmt: skip
        console.print(table)
    if options.record:
        console.print(str(record("before_after", data)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
