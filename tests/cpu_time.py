"""Counts the CPU seconds of every test file, with its child processes, over all workers of xdist.

Wall time says little on a busy machine. ``pytest --cpu-times=FILE`` also writes the table, as JSON.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recording import record
from tests import fork_server

#: How many files the report names.
NAMED = 12
#: Work that belongs to no test: start, imports, collection.
START = "start and collection"


def cpu_seconds() -> float:
    """User and system time of this process, of the children it has waited for, and of its fork server."""
    return sum(os.times()[:4]) + fork_server.cpu_seconds()


class CpuTimes:
    """Adds up what each test used; a worker hands its sums to the process that reports."""

    def __init__(self) -> None:
        self.start = time.time()
        self.files: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = cpu_seconds()
        result = yield
        self.add(item.nodeid, cpu_seconds() - before)
        return result

    def add(self, test: str, seconds: float) -> None:
        self.files[test.partition("::")[0]] += seconds
        self.tests[test] += seconds

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # A process that hands its tests to workers counts itself only: its children count themselves.
        own = sum(os.times()[:2]) if session.config.getoption("numprocesses", None) else cpu_seconds()
        self.files[START] += own - sum(self.files.values()) if not self.workers(session.config) else own
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu_times"] = (dict(self.files), dict(self.tests))

    @staticmethod
    def workers(config: pytest.Config) -> bool:
        return bool(config.getoption("numprocesses", None)) and not hasattr(config, "workeroutput")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        files, tests = getattr(node, "workeroutput", {}).get("cpu_times", ({}, {}))
        self.files.update(files)
        self.tests.update(tests)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        total = sum(self.files.values())
        config = terminalreporter.config
        if config.getoption("cpu_times"):
            table = {
                "CPU minutes": round(total / 60, 1),
                "minutes": round((time.time() - self.start) / 60, 1),
                "files": {name: round(seconds, 1) for name, seconds in self.files.most_common()},
                "tests": {name: round(seconds, 1) for name, seconds in self.tests.most_common(60)},
            }
            record(Path(config.getoption("cpu_times")), table)
        if total < 60:
            return
        terminalreporter.section(f"{total / 60:.1f} CPU minutes, user and system, with child processes")
        for name, seconds in self.files.most_common(NAMED):
            terminalreporter.line(f"{seconds:7.1f} s  {name}")
