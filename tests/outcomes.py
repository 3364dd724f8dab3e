"""Writes what became of every test to a file while the tests run, so that a run that is cut short can be read too.

``pytest --outcomes=FILE`` appends a JSON line when a test starts and one when its outcome is known; workers of xdist
report to the process that writes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

#: What a line can say of a test, the later word being the stronger.
KINDS = ("started", "passed", "skipped", "failed")


class Outcomes:
    """Appends to a file as pytest reports; a file that exists is continued."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, test: str, kind: str, text: str = "") -> None:
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"test": test, "kind": kind} | ({"text": text} if text else {})) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(nodeid, "started")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed" or report.when == "call":
            self.write(report.nodeid, report.outcome, report.longreprtext if report.failed else "")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write(report.nodeid, "failed", report.longreprtext)


def outcomes_in(file: Path) -> dict[str, str]:
    """Reads such a file: the kind of every test. A test that only started is one during which the run ended."""
    found: dict[str, str] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:  # the last line of a run that was killed
            continue
        test, kind = entry["test"], entry["kind"]
        found[test] = max(found.get(test, kind), kind, key=KINDS.index)
    return found
