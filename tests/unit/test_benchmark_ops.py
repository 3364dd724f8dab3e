"""benchmarks/ops.py measures, records, resumes and compares; every op with a kernel is in it. No times are asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _run(*arguments: str | Path) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / "ops.py"), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_op_with_a_kernel_is_measured_or_has_a_reason() -> None:
    assert "every op with a kernel" in _run("--coverage")


def test_a_sample_is_measured_recorded_and_compared(tmp_path: Path) -> None:
    file = tmp_path / "ops.json"
    shown = _run("--size", "small", "--sample", "6", "--seconds", "0", "--json", file)
    assert "the worst 6 of 6" in shown
    data = json.loads(file.read_text())["data"]
    assert len(data["rows"]) == 6
    assert all(row["cpu"] > 0 and row["device"] > 0 and row["ratio"] > 0 for row in data["rows"])
    assert [row["ratio"] for row in data["rows"]] == sorted((row["ratio"] for row in data["rows"]), reverse=True)
    before = {row["key"]: row["cpu"] for row in data["rows"]}

    _run("--size", "small", "--sample", "7", "--seconds", "0", "--json", file)  # goes on: all but one are there
    after = {row["key"]: row["cpu"] for row in json.loads(file.read_text())["data"]["rows"]}
    assert len(after) >= 7
    assert before.items() <= after.items()
    assert "geometric mean of new ÷ old: 1.000" in _run("--compare", file, file)


def test_noisy_rows_are_not_judged() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import ops
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    quiet = ops.Row("a", "f", "a", "", (1,), "cache", "float32", "forward", 1.0, 0.5, 0.5, 1.0, 0.01, False)
    loud = ops.Row("b", "f", "b", "", (1,), "cache", "float32", "forward", 1.0, 9.0, 9.0, 1.3, 0.30, True)
    assert "1 of them noisy" in ops.summary([quiet, loud])[0]
    assert "geometric mean over families 0.50, aim 0.95: met" in ops.summary([quiet, loud])[1]
    assert "rows above 2.0 at the two larger sizes: 0" in ops.summary([quiet, loud])


def test_a_file_that_is_no_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("[]")
    command = [sys.executable, str(ROOT / "benchmarks" / "ops.py"), "--compare", str(file), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "is not a run recorded by benchmarks/ops.py" in done.stderr


@pytest.mark.parametrize("chosen", ["nothing", "sorting/none"])
def test_a_choice_without_rows_says_so(chosen: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "ops.py"), "--only", chosen]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "--list shows what there is" in done.stderr
