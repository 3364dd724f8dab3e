"""Rows of the matrix of torch versions: what pytest reported, in the order of versions, and why there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import recording
from tests import matrix
from tests.outcomes import outcomes_in

TESTS = """
import os, pytest

def test_passes(): pass
def test_fails(): assert False
@pytest.mark.parametrize("x", [1])
def test_errs(x, nothing_of_this_name): pass
@pytest.mark.skip(reason="no QEMU")
def test_skipped(): pass
def test_ends_the_process(): os._exit(3)
def test_not_reached(): pass
"""
FOUND = {"test_passes": "passed", "test_fails": "failed", "test_errs[1]": "failed", "test_skipped": "skipped"}


@pytest.fixture
def outcomes(tmp_path: Path) -> dict[str, str]:
    """What is known of a run that ended during a test."""
    (tmp_path / "test_cut.py").write_text(TESTS)
    file = tmp_path / "outcomes.jsonl"
    command = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.conftest", f"--outcomes={file}", "test_cut.py"]
    environment = {**os.environ, "PYTHONPATH": str(matrix.ROOT), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, check=False, capture_output=True)
    file.open("a").write('{"test": "cut by a ki')
    return {test.partition("::")[2]: kind for test, kind in outcomes_in(file).items()}


def test_a_run_that_is_cut_names_what_failed(outcomes: dict[str, str]) -> None:
    assert outcomes == {**FOUND, "test_ends_the_process": "started"}
    assert matrix.counted(outcomes) == {
        "passed": 1,
        "failed": 2,
        "skipped": 1,
        "failing": ["test_errs[1]", "test_fails"],
        "not finished": ["test_ends_the_process"],
    }


def test_a_row_says_what_was_run_again() -> None:
    before = {"passed": 5, "failed": 3, "skipped": 0, "failing": ["a", "b", "c"], "not finished": ["d"], "commit": "x"}
    after = matrix.counted_again(before, {"a": "passed", "b": "failed", "d": "passed"})
    assert (after["passed"], after["failed"], after["failing"]) == (7, 2, ["b", "c"])
    assert (after["commit"], after["run again"]["tests"]) == ("x", ["a", "b", "d"])
    assert "not finished" not in after


def test_a_signal_stops_a_run_and_leaves_its_row(tmp_path: Path) -> None:
    """As a time limit does it."""
    (tmp_path / "test_long.py").write_text(
        "import time\ndef test_a(): assert False\ndef test_b(): print('here', flush=True); time.sleep(100)\n"
    )
    command = [
        sys.executable,
        "-m",
        "tests.matrix",
        "--here",
        "--no-record",
        "--",
        "-s",
        "-n",
        "0",
        "-p",
        "tests.conftest",
    ]
    run = subprocess.Popen(
        [*command, str(tmp_path / "test_long.py")], cwd=matrix.ROOT, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    for line in run.stdout:
        if "here" in line:
            break
    run.terminate()
    printed = run.communicate(timeout=60)[0]
    (row,) = json.loads(printed[printed.index("{") :]).values()
    assert [name.partition("::")[2] for name in (*row["failing"], *row["not finished"])] == ["test_a", "test_b"]
    assert row["tests"].endswith("stopped before its end")
    assert run.returncode == 1


def test_rows_are_kept_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (matrix, recording):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    for version in ("2.15.0", "2.9.1", "2.11.0+cu130", "2.9.1"):
        matrix.add_row(version, {"failed": 0})
    assert list(recording.recorded("matrix")["data"]) == ["2.9.1", "2.11.0+cu130", "2.15.0"]


def test_the_copy_has_sources_and_nothing_that_was_built(tmp_path: Path) -> None:
    if not (matrix.ROOT / ".git").exists():
        pytest.skip("not a git checkout")  # but perhaps inside of one, as the copies of `make matrix` are
    matrix.copy_tree(tmp_path)
    assert (tmp_path / "bringup" / "csrc").is_dir()
    assert (tmp_path / "Makefile").is_file()
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize("given", [[], ["2.15.0", "--here"]])
def test_versions_or_here(given: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(sys, "argv", ["matrix", *given])
    with pytest.raises(SystemExit):
        matrix.main()
    assert "name versions of torch, or say --here" in capsys.readouterr().err
