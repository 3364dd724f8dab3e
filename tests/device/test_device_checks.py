"""``bringup check --level profiler``, ``dlpack`` and ``ipc``: a good driver passes, and a broken one is caught."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bringup.kit import ipc_checks
from bringup.kit.driver_checks import Wrong
from tests.optional_packages import need_the_command

PROGRAM = """
import sys
from bringup.kit.device_checks import main_device
sys.exit(main_device(sys.argv[1], sys.argv[2], 0, sys.argv[3]))
"""

#: sim, and what is wrong with the traces of the driver; each is found by the check that is named.
BROKEN = """
import dataclasses
from bringup.drivers.sim import Driver as Sim

class Driver(Sim):
    name = "broken"

    def __init__(self):
        super().__init__("devices=1,mode=kernels")

    def trace_read(self, device, limit):
        records, dropped = super().trace_read(device, limit)
        return [self.changed(record) for record in records], dropped

    def changed(self, record):
        {change}
"""
CHANGES = {
    "rows_belong_to_ops": "return dataclasses.replace(record, correlation=record.correlation and 10**9)",
    "times_agree_with_events": (
        "return dataclasses.replace(record, end_ns=record.start_ns + (record.end_ns - record.start_ns) // 2)"
    ),
    "rows_of_a_stream_are_in_order": "return dataclasses.replace(record, end_ns=record.end_ns + 10**6)",
    "work_has_rows": "return dataclasses.replace(record, bytes=0)",
}


def checked(run_python: Callable[..., Any], folder: Path, level: str, driver: str) -> tuple[int, dict[str, str]]:
    """The exit status of a level, and the status of each check."""
    need_the_command()
    out = folder / "results.json"
    environment = {"BRINGUP_DRIVERS": None, "BRINGUP_SIM": "mode=kernels"}
    code = f"import sys; sys.argv = ['x', {level!r}, {driver!r}, {str(out)!r}]; exec({PROGRAM!r})"
    result = run_python(code, env=environment, check=False, fresh=True)
    rows = json.loads(out.read_text())["results"] if out.exists() else []
    assert rows, result.stdout + result.stderr
    return result.returncode, {row["name"]: row["status"] for row in rows}


@pytest.mark.parametrize("level", ["profiler", "dlpack"])
def test_a_good_driver_passes(level: str, run_python: Callable[..., Any], tmp_path: Path) -> None:
    status, found = checked(run_python, tmp_path, level, "sim")
    assert set(found.values()) == {"pass"}, found
    assert status == 0


@pytest.mark.parametrize("check", CHANGES)
def test_a_driver_with_wrong_traces_is_caught(check: str, run_python: Callable[..., Any], tmp_path: Path) -> None:
    driver = tmp_path / "broken.py"
    driver.write_text(BROKEN.format(change=CHANGES[check]))
    status, found = checked(run_python, tmp_path, "profiler", str(driver))
    assert status == 1
    assert found[check] == "fail", found


@pytest.mark.sweep
def test_a_process_that_hangs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc_checks, "_SECONDS", 2)
    with pytest.raises(Wrong, match="the other process has not answered for 2 s"):
        ipc_checks._answer(time.sleep, 100)


def test_a_driver_whose_ops_run_on_the_host_passes(run_python: Callable[..., Any], tmp_path: Path) -> None:
    status, found = checked(run_python, tmp_path, "profiler", "examples/drivers/dictmem.py")
    assert status == 0
    assert found["times_agree_with_events"] == "skip"
    assert "fail" not in found.values(), found


@pytest.mark.sweep
def test_memory_and_events_in_other_processes(tmp_path: Path) -> None:
    need_the_command()
    command = [sys.executable, "-m", "bringup", "check", "sim", "--level", "ipc", "--json", "results.json"]
    environment = {**os.environ, "BRINGUP_DRIVERS": "sim"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed, 0 failed" in done.stdout


def test_a_driver_without_shared_memory_has_nothing_to_check(tmp_path: Path) -> None:
    need_the_command()
    driver = Path(__file__).resolve().parents[2] / "examples" / "drivers" / "dictmem.py"
    command = [sys.executable, "-m", "bringup", "check", str(driver), "--level", "ipc"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "nothing that --level ipc could check" in done.stderr
