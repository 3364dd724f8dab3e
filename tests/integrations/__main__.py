"""Judges every program, or those named, and prints a line for each; ``--record`` writes results/integrations.json."""

from __future__ import annotations

import argparse
import sys
import traceback
from importlib.metadata import version

import torch

from tests.integrations.cases import CASES, missing
from tests.integrations.judging import Case, judge


def row(case: Case, device: str) -> dict[str, object]:
    found = judge(case, device)
    return {
        "library": f"{case.library} {version(case.library)}",
        "program": case.what,
        "precision": str(case.precision).removeprefix("torch."),
        "error": f"{found.error:.1e}",
        "the CPU's error": f"{found.cpu_error:.1e}",
        "of its limit": round(found.of_limit, 2),
        "on the CPU": ", ".join(name.removeprefix("aten::") for name in found.fallbacks) or "nothing",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="functions of programs_*.py; all of them if none is named")
    parser.add_argument("--device", default="sim")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, failed = [], 0
    for case in CASES:
        if options.names and case.name not in options.names:
            continue
        if gone := missing(case):
            print(f"{case.name}: {gone}")
            failed += 1
            continue
        try:
            rows.append(row(case, options.device))
        except Exception:
            traceback.print_exc()
            print(f"FAILED {case.library}: {case.name}", flush=True)
            failed += 1
        else:
            print(case.name, *rows[-1].values(), sep=" | ", flush=True)
    if options.record and not failed and not options.names:
        from benchmarks.recording import record

        libraries = sorted({str(row["library"]) for row in rows})
        record("integrations", {"programs": len(rows), "libraries": len(libraries), "rows": rows})
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
