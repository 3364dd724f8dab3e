"""``python -m tests.fuzz --seeds 0:20000``: random programs through every route; resumable, recorded with ``--record``.

Every finished batch is a line of the state file, so that a later run with the same commit goes on where this one
stopped. Exit status 1: a program failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_SHOWN = 20


def main() -> int:
    """Runs what the command line asks for."""
    ask = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__.splitlines()[0] if __doc__ else "")
    ask.add_argument("--seeds", default="0:20000", help="FIRST:LAST, or one seed")
    ask.add_argument("--routes", default="eager,compile,dynamic,export,jit,riscv")
    ask.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    ask.add_argument("--everything", action="store_true", help="all seeds on routes that take a share by default")
    ask.add_argument("--limit", type=float, default=600, help="seconds that one route may take for a batch")
    ask.add_argument("--state", type=Path, default=ROOT / "build" / "fuzz.jsonl", help="where finished batches stand")
    ask.add_argument("--afresh", action="store_true", help="forgets the state")
    ask.add_argument("--record", action="store_true", help="writes results/fuzz.json")
    ask.add_argument("--shrink", type=int, default=_SHOWN, metavar="N", help="makes the first N failures small")
    ask.add_argument("--show", action="store_true", help="prints the programs and runs nothing")
    chosen = ask.parse_args()
    # Kernels of random programs are used once: they do not push a user's own out of the cache.
    with tempfile.TemporaryDirectory(prefix="bringup-fuzz-kernels-") as folder:
        os.environ.setdefault("BRINGUP_CACHE", folder)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        return _run(chosen)


def _run(chosen: argparse.Namespace) -> int:
    from benchmarks import recording
    from tests.fuzz.generate import make
    from tests.fuzz.pool import Pool, Task, shrunk, tasks
    from tests.fuzz.routes import ROUTES
    from tests.fuzz.worker import Failure, Outcome

    first, _, last = chosen.seeds.partition(":")
    begin, end = int(first), int(last) if last else int(first) + 1
    routes = chosen.routes.split(",")
    if unknown := [one for one in routes if one not in ROUTES]:
        print(f"there is no route {unknown[0]!r}: there are {', '.join(ROUTES)}", file=sys.stderr)
        return 2
    if chosen.show:
        for seed in range(begin, end):
            print(make(seed).text(), end="\n\n")
        return 0
    commit = recording.commit()
    state: Path = chosen.state
    state.parent.mkdir(parents=True, exist_ok=True)
    if chosen.afresh:
        state.unlink(missing_ok=True)
    lines = [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []
    outcomes = [_outcome(line) for line in lines if line["commit"] == commit]
    made: list[float] = []
    finished = {(one.route, seed) for one in outcomes for seed in one.seeds}
    wanted = []
    for task in tasks(begin, end, routes, chosen.everything):
        left = tuple(one for one in task.routes if not all((one, seed) in finished for seed in task.seeds))
        if left:
            wanted.append(Task(task.seeds, left))
    total = sum(len(task.seeds) for task in wanted)
    with _Progress(total) as progress, state.open("a") as file:

        def take(one: Outcome) -> None:
            outcomes.append(one)
            file.write(json.dumps({"commit": commit, **asdict(one)}) + "\n")
            file.flush()
            for failure in one.failures:
                progress.say(f"{failure.route} {failure.seed}: {failure.said[:200]}")

        try:
            Pool(chosen.workers, chosen.limit).run(
                wanted, lambda task: progress.advance(len(task.seeds)), take, made.append
            )
        except KeyboardInterrupt:
            print("stopped; the same command goes on from here", file=sys.stderr)
            return 130
    asked = [one for one in outcomes if one.route in routes and all(begin <= seed < end for seed in one.seeds)]
    failures: list[Failure] = [failure for one in asked for failure in one.failures]
    small = shrunk(failures[: chosen.shrink], chosen.workers, chosen.limit)
    data = _summary(asked, [*small, *failures[chosen.shrink :]], begin, end, sum(made) / max(1, total))
    for failure in small:
        print(f"\n# {failure.route}, seed {failure.seed}: {failure.said}\n{failure.text}")
    for route, row in data["routes"].items():
        print(f"{route:8} {row}")
    if chosen.record:
        print(recording.record("fuzz", data))
    return 1 if failures else 0


def _outcome(line: dict[str, Any]) -> Any:
    from tests.fuzz.worker import Failure, Outcome

    failures = tuple(Failure(**one) for one in line["failures"])
    return Outcome(
        line["route"], tuple(line["seeds"]), failures, tuple(line["refused"]), tuple(line["known"]), line["seconds"]
    )


def _summary(outcomes: list[Any], failures: list[Any], begin: int, end: int, making: float) -> dict[str, Any]:
    """Returns what is recorded: by route the programs, failures, those that PyTorch refuses, CPU-seconds for each."""
    programs, refused, known, seconds = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for one in outcomes:
        programs[one.route] += len(one.seeds)
        refused[one.route] += len(one.refused)
        known[one.route] += len(one.known)
        seconds[one.route] += one.seconds
    failed = Counter(failure.route for failure in failures)
    routes = {
        route: {
            "programs": programs[route],
            "failed": failed[route],
            "refused by PyTorch": refused[route],
            "known": known[route],
            "CPU-seconds per program": round(seconds[route] / programs[route], 3),
        }
        for route in programs
    }
    listed = [asdict(failure) for failure in sorted(failures, key=lambda one: (one.route, one.seed))]
    return {
        "seeds": [begin, end],
        "routes": routes,
        "CPU-seconds to make a program": round(making, 3),
        "failures": listed,
    }


class _Progress:
    """A bar on terminals; elsewhere failures only."""

    def __init__(self, total: int) -> None:
        self._bar: Any = None
        self._total = total

    def __enter__(self) -> _Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("programs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task("programs", total=self._total)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, programs: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, programs)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr) if self._bar is None else self._bar.console.print(text, markup=False)


if __name__ == "__main__":
    sys.exit(main())
