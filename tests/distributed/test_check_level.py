"""``bringup check --level distributed`` passes a driver that works and catches one that does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.distributed.ranks import ROOT
from tests.distributed.test_collectives import HERE


def check(driver: str, file: Path) -> tuple[int, dict[str, str]]:
    command = [sys.executable, "-m", "bringup", "check", driver, "--level", "distributed", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    rows = json.loads(file.read_text())["results"]
    return done.returncode, {row["name"]: row["status"] for row in rows}


def test_sim_passes(tmp_path: Path) -> None:
    status, found = check("sim", tmp_path / "found.json")
    assert status == 0
    assert len(found) == 6
    assert set(found.values()) == {"pass"}


def test_a_driver_that_loses_bytes_is_caught(tmp_path: Path) -> None:
    status, found = check(str(HERE / "short_copy_driver.py"), tmp_path / "found.json")
    assert status == 1
    assert found["large_tensors"] == "fail"
