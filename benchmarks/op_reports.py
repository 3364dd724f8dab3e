"""Records what ``bringup check --json`` wrote: the counts that the pages quote.

    bringup check --driver sim --level ops --kinds forward,backward,error --dtypes all --samples 4 --json four.json
    python benchmarks/op_reports.py op_db_four_samples four.json
    bringup check --driver sim --level compile --kinds forward,backward --samples 2 --json compile.json
    python benchmarks/op_reports.py compile_ops compile.json

A report with undeclared failures is recorded with them, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.recording import record

Row = Mapping[str, Any]
CHECK = "bringup check --driver sim"
COMMANDS = {
    "op_db_four_samples": f"{CHECK} --level ops --kinds forward,backward,error --dtypes all --samples 4 --workers 2",
    "compile_ops": f"{CHECK} --level compile --kinds forward,backward --samples 2 --workers 2",
}
BAD = ("fail", "crash", "timeout")


def _counted(report: Mapping[str, Any], of: Callable[[Row], bool]) -> dict[str, int]:
    """Cases that were judged, those that agree, and those in declared gaps or undeclared.

    Only ``counts`` knows the cases that pass: a report has rows for the others.
    """
    counts = [row for row in report["counts"] if of(row)]
    agree = sum(row.get("pass", 0) for row in counts)
    bad = sum(row.get(status, 0) for row in counts for status in BAD)
    declared = sum(row["status"] in BAD and row["declared"] for row in report["rows"] if of(row))
    return {"of": agree + bad, "agree": agree, "declared gaps": declared, "undeclared": bad - declared}


def _total(report: Mapping[str, Any], status: str) -> int:
    """All cases with a status."""
    return sum(row.get(status, 0) for row in report["counts"])


def four_samples(report: Mapping[str, Any]) -> dict[str, Any]:
    """By kind and dtype."""
    dtypes = {row["dtype"] for row in report["counts"] if row["kind"] == "forward" and row.get("pass")}
    lines: dict[str, Callable[[Row], bool]] = {
        "forward, float32": lambda row: (row["kind"], row["dtype"]) == ("forward", "float32"),
        f"forward, the other {len(dtypes) - 1} dtypes": lambda row: (
            row["kind"] == "forward" and row["dtype"] != "float32"
        ),
        "backward, float32, float64, complex64": lambda row: row["kind"] == "backward",
        "bad input": lambda row: row["kind"] == "error",
    }
    table = {what: _counted(report, of) for what, of in lines.items()}
    return {
        "table": {
            "columns": ["what", "cases", "pass", "declared gaps", "undeclared"],
            "rows": [[what, *counted.values()] for what, counted in table.items()],
        },
        "minutes": round(report["seconds"] / 60),
        "undeclared": sum(counted["undeclared"] for counted in table.values()),
        "not counted": {"the CPU fails itself": _total(report, "cpu_fails"), "no bad input": _total(report, "skip")},
        "dtypes": len(dtypes),
    }


def compiled(report: Mapping[str, Any]) -> dict[str, Any]:
    """Forward and backward."""
    kinds = {kind: _counted(report, lambda row, kind=kind: row["kind"] == kind) for kind in ("forward", "backward")}
    sums = {name: sum(counted[name] for counted in kinds.values()) for name in ("of", "agree", "undeclared")}
    return {**kinds, **sums, "not counted": _total(report, "cpu_fails"), "minutes": round(report["seconds"] / 60)}


READ = {"op_db_four_samples": four_samples, "compile_ops": compiled}


def main() -> int:
    """Records a report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=READ)
    parser.add_argument("report", type=Path)
    given = parser.parse_args()
    report = json.loads(given.report.read_text())
    if not report["finished"]:
        parser.error(f"{given.report}: the check did not come to its end")
    data = READ[given.name](report)
    if not any(row.get("pass") for row in report["counts"]):
        parser.error(f"{given.report}: no case passed, so nothing was checked")
    print(record(given.name, data, command=COMMANDS[given.name]))
    for row in report["rows"]:
        if row["status"] in BAD and not row["declared"]:
            print(row["op"], row["kind"], row["dtype"], row["message"])
    return 1 if data["undeclared"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
