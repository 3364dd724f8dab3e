"""``python -m tests.mutation``: every operator of op_db with wrong results, and whether the op check notices.

``--record`` writes results/op_check_mutations.json. The device is sim with ATen's CPU kernels: what is tested is the
check. Exit status 1 where a mutation passes without a reason.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from typing import Any

if __name__ == "__main__":
    os.environ["BRINGUP_SIM"] = "mode=library"  # before the device is opened

import torch

import bringup
from benchmarks.recording import record
from bringup.kit.op_cases import load_op_list, select_ops
from tests.mutation.mutations import CONSTANT, MUTATIONS
from tests.mutation.op_check import Tally, cases_of, mutate_case


def run(patterns: list[str] | None, samples: int, device: str = "sim", show: bool = True) -> dict[str, Tally]:
    """The tally of each case by its name."""
    ops = load_op_list()
    names = select_ops(ops, patterns)
    tallies: dict[str, Tally] = {}
    begin = time.monotonic()
    for number, name in enumerate(names, 1):
        for case in cases_of(ops[name]):
            tallies[str(case)] = mutate_case(ops[name], case, device, samples)
            for hole in tallies[str(case)].holes if show else ():
                print(f"\nnot noticed: {hole}", file=sys.stderr)
        if show and sys.stderr.isatty():
            print(f"\r{number}/{len(names)} {name:60.60}", end="", file=sys.stderr)
        elif show and number % 50 == 0:
            print(f"{number}/{len(names)} after {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return tallies


def summary(tallies: dict[str, Tally]) -> dict[str, Any]:
    """Counts by mutation, reasons with the cases that have them, and what could not be mutated."""
    table: dict[str, dict[str, Any]] = {
        name: {"caught": 0, "listed": 0, "holes": 0} for name in (*MUTATIONS, *CONSTANT)
    }
    reasons: dict[str, Counter[str]] = {}
    unmutated: dict[str, list[str]] = {}
    for case, tally in tallies.items():
        for name, count in tally.caught.items():
            table[name]["caught"] += count
        for (name, reason), count in tally.missed.items():
            table[name]["listed" if reason else "holes"] += count
            if reason:
                reasons.setdefault(reason, Counter())[case] += count
        if tally.none and not tally.caught:
            unmutated.setdefault(tally.none, []).append(case)
    return {
        "cases": len(tallies),
        "cases_mutated": sum(bool(tally.caught) for tally in tallies.values()),
        "mutations": table,
        "caught": sum(row["caught"] for row in table.values()),
        "listed": sum(row["listed"] for row in table.values()),
        "holes": [hole for tally in tallies.values() for hole in tally.holes],
        "listed_by_reason": {reason: dict(cases) for reason, cases in reasons.items()},
        "not_mutated": unmutated,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--ops", help="patterns, separated by commas; all by default")
    parser.add_argument("--samples", type=int, default=3, help="of each operator, spread over all; 0: all")
    parser.add_argument("--record", action="store_true", help="write results/op_check_mutations.json")
    options = parser.parse_args()
    bringup.activate("sim")
    torch.set_num_threads(1)
    found = summary(run(options.ops.split(",") if options.ops else None, options.samples))
    for name, row in found["mutations"].items():
        print(f"{name:32}" + "".join(f"{what} {count:7,}   " for what, count in row.items()))
    print(f"{found['cases_mutated']} of {found['cases']} cases; {found['caught']:,} mutations caught")
    for reason, cases in {**found["listed_by_reason"], **found["not_mutated"]}.items():
        print(f"{len(cases):5} cases: {reason}")
    if options.record:
        print(f"written: {record('op_check_mutations', found)}")
    return 1 if found["holes"] else 0


if __name__ == "__main__":
    sys.exit(main())
