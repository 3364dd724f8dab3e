"""Runs the order checker over seeds: ``python -m tests.order --seeds 0:500 --minutes 5 --record``.

Programs that differ are shrunk and printed. ``--record`` adds the seeds to results/order.json: seeds that were recorded
at the same commit are not run again, so a long run may be stopped and continued.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from benchmarks.recording import RESULTS, commit, record, recorded
from tests.order.check import OUT_OF_MEMORY, Checker, Finding

_NOTHING: dict[str, Any] = {"seeds": [], "out_of_memory": 0, "differences": [], "minutes": 0}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.order", description=__doc__)
    parser.add_argument("--seeds", default="0:500", help="first:end, as a range (default 0:500)")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so long (default: at the last seed)")
    parser.add_argument("--record", action="store_true", help="write results/order.json")
    parser.add_argument("--again", type=int, default=None, metavar="SEED", help="only this seed, printed and shrunk")
    parser.add_argument("--stop", action="store_true", help="stop at the first difference")
    options = parser.parse_args()
    first, _, end = options.seeds.partition(":")
    seeds = range(int(first), int(end)) if options.again is None else range(options.again, options.again + 1)
    before = _recorded_so_far() if options.record else _NOTHING
    done = {seed for start, stop in before["seeds"] for seed in range(start, stop)}
    differences, starved, start = list(before["differences"]), before["out_of_memory"], time.monotonic()
    with Checker() as checker, _Progress(len([s for s in seeds if s not in done])) as progress:
        for seed, finding in checker.seeds(s for s in seeds if s not in done):
            done.add(seed)
            if finding and finding.text.startswith(OUT_OF_MEMORY):
                starved += 1  # memory in pieces: no wrong value, but the rest of the program did not run
            elif finding:
                small = checker.shrink(finding)
                progress.say(f"seed {seed}, shrunk:\n{small.report()}\n")
                differences.append(_as_data(seed, small))
            progress.step(len(differences))
            if (options.minutes and time.monotonic() - start > options.minutes * 60) or (finding and options.stop):
                break
    minutes = round(before["minutes"] + (time.monotonic() - start) / 60, 2)
    print(f"{len(done)} programs, {len(differences)} differ, {starved} out of memory, {minutes} minutes")
    if options.record:
        data = {"programs": len(done), "differences": differences, "out_of_memory": starved, "minutes": minutes}
        print("written:", record("order", {**data, "seeds": _ranges(done)}))
    return 1 if differences else 0


def _as_data(seed: int, finding: Finding) -> dict[str, Any]:
    return {"seed": seed, "mode": finding.mode, "text": finding.text, "program": finding.report().splitlines()}


def _recorded_so_far() -> dict[str, Any]:
    if (RESULTS / "order.json").exists() and recorded("order")["commit"] == commit():
        data: dict[str, Any] = recorded("order")["data"]
        return data
    return _NOTHING


def _ranges(seeds: set[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for seed in sorted(seeds):
        if ranges and ranges[-1][1] == seed:
            ranges[-1][1] += 1
        else:
            ranges.append([seed, seed + 1])
    return ranges


class _Progress:
    """A bar where somebody looks, a line per hundred programs elsewhere."""

    def __init__(self, total: int) -> None:
        self.bar: Any = None
        self.count, self.total = 0, total

    def __enter__(self) -> _Progress:
        if sys.stdout.isatty():
            from rich.progress import Progress

            self.bar = Progress()
            self.bar.start()
            self.task = self.bar.add_task("programs", total=self.total)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def say(self, text: str) -> None:
        self.bar.console.print(text, markup=False) if self.bar else print(text, flush=True)

    def step(self, differences: int) -> None:
        self.count += 1
        if self.bar:
            self.bar.update(self.task, advance=1, description=f"programs, {differences} differ")
        elif self.count % 100 == 0:
            print(f"{self.count} of {self.total} programs, {differences} differ", flush=True)


if __name__ == "__main__":
    sys.exit(main())
