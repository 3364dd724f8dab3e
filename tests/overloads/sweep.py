"""One run over overloads: who was called, who was not and why, what was found; declared differences are strict."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.recording import commit
from bringup.kit.gaps import GAPS_FOLDER, judge, load_gaps
from bringup.kit.op_cases import CaseResult, Status
from bringup.kit.op_workers import Plan, run_plan
from tests.fork_server import MODULE, OP_DB, run

CALLS_FILE = "BRINGUP_TEST_OVERLOAD_CALLS"
JOURNAL = "BRINGUP_TEST_OVERLOAD_JOURNAL"
DECLARED = GAPS_FOLDER / "sim.overloads.toml"
KINDS = ("crash", "hang", "internal", "refuses", "accepts", "raises", "differs")
Progress = Callable[[int, int, CaseResult], None]


@dataclass
class Sweep:
    """The outcome of a run."""

    results: list[CaseResult]
    overloads: int
    #: The commits at which the results were made, with how many of them: a run may be stopped and continued.
    commits: dict[str, int] = field(default_factory=dict)
    undeclared: list[CaseResult] = field(default_factory=list)
    passing: list[str] = field(default_factory=list)

    @property
    def findings(self) -> list[dict[str, str]]:
        """Everything that went another way than on the CPU, declared or not."""
        return [finding for result in self.results for finding in findings_of(result)]

    @property
    def not_called(self) -> dict[str, str]:
        """Overloads without a single compared call, with the reason."""
        return {r.case.op: r.note for r in self.results if r.status is Status.SKIP}

    def data(self) -> dict[str, Any]:
        """What is recorded of a run."""
        undeclared = {r.case.op for r in self.undeclared}
        counted = Counter(f["kind"] for f in self.findings)
        left = Counter(f["kind"] for r in self.undeclared for f in findings_of(r))
        return {
            "overloads": self.overloads,
            "commits": self.commits,
            "called": self.overloads - len(self.not_called),
            "calls compared": sum(r.samples_run for r in self.results),
            "findings": {kind: counted[kind] for kind in KINDS},
            "undeclared": {kind: left[kind] for kind in KINDS},
            "declared overloads": sorted({r.case.op for r in self.results if r.status.is_defect} - undeclared),
            "undeclared findings": [f for r in self.undeclared for f in findings_of(r)],
            "not called": dict(sorted(self.not_called.items())),
        }


def findings_of(result: CaseResult) -> list[dict[str, str]]:
    """Returns the findings of one overload, a crash or a hang among them."""
    if result.status is Status.FAIL:
        found: list[dict[str, str]] = json.loads(result.message)
        return found
    if result.status in (Status.CRASH, Status.TIMEOUT):
        kind = "crash" if result.status is Status.CRASH else "hang"
        steps = [line for line in result.message.splitlines() if line.startswith(("cpu: ", "device: "))]
        if not steps and " in synthesised" in result.message:  # a deep stack left no room for the line
            steps = [f"cpu: {result.case.op} [from the schema]"]
        return [{"kind": kind, "call": steps[-1] if steps else result.case.op, "message": result.message[-600:]}]
    return []


def rows_without_findings(journal: Path | None) -> dict[str, dict[str, Any]]:
    """Returns the rows of a run that was stopped, by overload: those that were as on the CPU need no second call."""
    if journal is None or not journal.exists():
        return {}
    rows = {row["op"]: row for row in map(json.loads, journal.read_text().splitlines())}
    return {name: row for name, row in rows.items() if not Status(row["status"]).is_defect}


def record_calls(file: Path, operators: Sequence[str] = ()) -> None:
    """Writes the calls that op_db reaches on the CPU, in a process of its own; all operators, or those that match."""
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    code = MODULE.format("tests.overloads.capture")
    run(code, str(file), *operators, env=env, ahead=[OP_DB], timeout=3600).check_returncode()


def run_sweep(
    device: str = "sim",
    patterns: Sequence[str] | None = None,
    *,
    operators: Sequence[str] = (),
    calls_file: Path | None = None,
    samples: int = 3,
    workers: int = 1,
    timeout: float = 240.0,
    progress: Progress | None = None,
    journal: Path | None = None,
) -> Sweep:
    """Calls the overloads that match; arguments come from ``operators`` of op_db, or from a file written before.

    What ``journal`` says of an overload without a finding is taken from there; new results are added to it.
    """
    with tempfile.TemporaryDirectory(prefix="bringup-overloads-") as folder:
        file = calls_file or Path(folder) / "calls.pt"
        if not file.exists():
            record_calls(file, operators)
        plan = Plan(
            device=device, kinds=("forward",), dtypes=("float32",), ops=tuple(patterns) if patterns else None,
            samples=samples, workers=workers, timeout=timeout,
            op_list="tests.overloads.subjects:SUBJECTS", verdicts="tests.overloads.judge:run_overload",
        )  # fmt: skip
        earlier = rows_without_findings(journal)
        commits = Counter(row.pop("commit") for row in earlier.values())
        results = [CaseResult.from_row(row) for row in earlier.values()]
        total, names = 0, list(earlier)
        for message in run_plan(plan, {CALLS_FILE: str(file), **({JOURNAL: str(journal)} if journal else {})}):
            if message["type"] == "start":
                total, names = message["total"] + len(earlier), [*names, *message["ops"]]
                continue
            results.append(_cpu_crash_is_a_skip(CaseResult.from_row(message["row"])))
            at = commit()
            commits[at] += 1
            if journal:
                with journal.open("a") as lines:
                    lines.write(json.dumps({**results[-1].to_row(), "commit": at}) + "\n")
            if progress:
                progress(len(results), total, results[-1])
    verdict = judge(load_gaps(DECLARED), results, names)
    passing = [str(gap) for gap in (*verdict.passing, *verdict.unknown)]
    return Sweep(results, len(results), dict(commits), verdict.undeclared, passing)


def _cpu_crash_is_a_skip(result: CaseResult) -> CaseResult:
    """Arguments made from a schema may be more than the CPU's own kernel bears."""
    found = findings_of(result)
    if result.status in (Status.CRASH, Status.TIMEOUT) and found[0]["call"].startswith("cpu: "):
        result.note = f"the CPU's kernel itself ends in a {found[0]['kind']}: {found[0]['call'][5:]}"
        result.status = Status.SKIP
    return result
