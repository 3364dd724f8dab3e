"""``python -m tests.fuzz.found_again``: puts repaired mistakes back and records which program finds each first.

A mistake is put back in this process by replacing the function that repaired it. ``results/fuzz_found_again.json`` has,
for each mistake and route, the first seed that fails with it and does not fail without it, and the program made small.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.fuzz.generate import make
from tests.fuzz.pool import BATCH
from tests.fuzz.shrink import shrunk_failure
from tests.fuzz.worker import failure_of, judged, quiet, run_batch


@contextmanager
def numbers_without_promotion() -> Iterator[None]:
    """A Python number in the place of a tensor reaches lowerings raw, so that ``(x > 0) * 0.5`` stays a bool."""
    from bringup.graph import lowered

    repaired = lowered.number_of

    def raw(value: Any, in_tensor_slot: bool, trace: Any, slot: int = -1) -> Any:
        return value if in_tensor_slot and slot < 0 else repaired(value, in_tensor_slot, trace, slot)

    lowered.number_of = raw
    try:
        yield
    finally:
        lowered.number_of = repaired


MISTAKES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "a Python number in the place of a tensor does not promote": (
        numbers_without_promotion,
        ("compile", "dynamic", "export", "riscv"),
    ),
}


def first_found(mistake: str, route: str, most: int) -> dict[str, Any]:
    """Returns the first seed that fails with the mistake and not without, and how many programs that took."""
    put_back, _ = MISTAKES[mistake]
    for start in range(0, most, BATCH):
        programs = [make(seed) for seed in range(start, min(start + BATCH, most))]
        right = judged(programs)
        with put_back():
            failures = run_batch(route, programs, right).failures
        for failure in sorted(failures, key=lambda one: one.seed):
            program = programs[failure.seed - start]
            if failure_of(route, program, right) is not None:
                continue  # this one has another reason
            with put_back():
                small = shrunk_failure(failure.seed, route) or failure
            return {"seed": small.seed, "programs": small.seed + 1, "said": small.said, "program": small.text}
    return {"seed": None, "programs": most}


def main() -> int:
    """Puts every mistake back on every route it belongs to."""
    ask = argparse.ArgumentParser("python -m tests.fuzz.found_again")
    ask.add_argument("--within", type=int, default=1000, help="how many programs may be tried")
    ask.add_argument("--record", action="store_true", help="writes results/fuzz_found_again.json")
    chosen = ask.parse_args()
    quiet()
    found: dict[str, dict[str, Any]] = {}
    for mistake, (_, routes) in MISTAKES.items():
        for route in routes:
            row = found.setdefault(mistake, {})[route] = first_found(mistake, route, chosen.within)
            print(f"{mistake}, {route}: seed {row['seed']}\n{row.get('said', 'not found')}\n{row.get('program', '')}\n")
    if chosen.record:
        from benchmarks import recording

        print(recording.record("fuzz_found_again", {"within": chosen.within, "mistakes": found}))
    return int(any(row["seed"] is None for rows in found.values() for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
