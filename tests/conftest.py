"""Fixtures every test may use: the name of the device under test, and fresh Python processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

RunPython = Callable[..., subprocess.CompletedProcess[str]]


def pytest_configure(config: pytest.Config) -> None:
    """Kernels of one session are compiled once, for all its processes, and leave the user's cache alone."""
    # Threads of ATen that wait do not spin: with two processes on two cores the training tests took 80 s instead of 17.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if "BRINGUP_CACHE" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="bringup-test-kernels-")
        os.environ["BRINGUP_CACHE"] = folder.name  # workers of xdist inherit it
        config.add_cleanup(folder.cleanup)


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
    ``check=False``. Tests of errors read ``.returncode`` and ``.stderr``.
    """

    def run(
        code: str,
        *arguments: str,
        env: Mapping[str, str | None] | None = None,
        check: bool = True,
        timeout: float = 120,
        cwd: Path = ROOT,
    ) -> subprocess.CompletedProcess[str]:
        merged: dict[str, str | None] = {**os.environ, **(env or {})}
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            env={name: value for name, value in merged.items() if value is not None},
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
