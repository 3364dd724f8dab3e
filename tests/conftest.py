"""Fixtures every test may use: the name of the device under test, and fresh Python processes."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from bringup.driver.lookup import installed_entries
from bringup.kit import op_workers
from tests import fork_server
from tests.cpu_time import CpuTimes
from tests.optional_packages import SkipWithoutZig, files_left_out
from tests.outcomes import Outcomes

ROOT = Path(__file__).resolve().parents[1]

#: Files that pytest does not look at.
LEFT_OUT = files_left_out()
collect_ignore = list(LEFT_OUT)

RunPython = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", metavar="FILE", help="write the CPU seconds of every test file to FILE, as JSON")
    parser.addoption(
        "--outcomes", metavar="FILE", type=Path, help="append what becomes of every test to FILE, as JSON lines"
    )
    if find_spec("pytest_timeout") is None:
        parser.addini("timeout", "seconds a test may take; without pytest-timeout they are not limited")


def pytest_report_header() -> list[str]:
    names = sorted(set(LEFT_OUT.values()))
    return [f"{len(LEFT_OUT)} files are left out: {' and '.join(names)} not installed"] if names else []


def pytest_configure(config: pytest.Config) -> None:
    """Kernels of one session are compiled once, for all its processes, and leave the user's cache alone."""
    config.pluginmanager.register(CpuTimes(), "cpu-times")
    config.pluginmanager.register(SkipWithoutZig(), "skip-without-zig")
    if config.getoption("outcomes") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(config.getoption("outcomes")), "outcomes")
    config.addinivalue_line("markers", "timeout(seconds): pytest-timeout's, named here for where it is not installed")
    # Some machines forbid it for everybody; without bytecode every process of a test compiles bringup's sources again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if installed_entries():  # a vendor's driver beside this checkout: these tests are about sim
        os.environ.setdefault("BRINGUP_DRIVERS", "sim")
    # Threads of ATen that wait do not spin: with two processes on two cores the training tests took 80 s instead of 17.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # there is a process for every core
    if "BRINGUP_CACHE" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="bringup-test-kernels-")
        os.environ["BRINGUP_CACHE"] = folder.name  # workers of xdist inherit it
        config.add_cleanup(folder.cleanup)


@pytest.fixture(scope="session", autouse=True)
def forked_supervisors() -> Iterator[None]:
    """Op checks of these tests do not import op_db again, each of them."""
    start = op_workers.start_supervisor
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            op_workers, "start_supervisor", lambda *given: fork_server.start_supervisor(*given) or start(*given)
        )
        yield


@pytest.fixture(scope="session")
def device() -> str:
    """What torch.device() gets; BRINGUP_TEST_DEVICE=dictmem (with BRINGUP_DRIVERS) runs the same tests elsewhere."""
    return os.environ.get("BRINGUP_TEST_DEVICE", "sim")


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """Runs code in a new process, because a backend can be renamed once per process and ``import torch`` spends it.

    >>> run_python("import torch; print(torch.sim.device_count())", env={"BRINGUP_SIM": "devices=3"}).stdout
    '3\\n'

    ``env`` adds to this process's environment, where None removes a name; a failing process fails the test unless
    ``check=False``. Tests of errors read ``.returncode`` and ``.stderr``. The process is a fork of one that has torch
    where that makes no difference; ``fresh`` insists on a new one. ``whole_end`` is for tests of how a process ends.
    """

    def run(
        code: str,
        *arguments: str,
        env: Mapping[str, str | None] | None = None,
        check: bool = True,
        timeout: float = 120,
        cwd: Path = ROOT,
        fresh: bool = False,
        whole_end: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        merged: dict[str, str | None] = {**os.environ, **(env or {})}
        environment = {name: value for name, value in merged.items() if value is not None}
        result = fork_server.run(
            textwrap.dedent(code),
            *arguments,
            env=environment,
            cwd=cwd,
            timeout=timeout,
            fresh=fresh,
            whole_end=whole_end,
        )
        if check and result.returncode != 0:
            pytest.fail(f"exit status {result.returncode}\n{result.stdout}\n{result.stderr}", pytrace=False)
        return result

    return run


@pytest.fixture
def keyboard() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt here, also where the tests were started with SIGINT ignored (as by `&`)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
