"""Rows of the matrix of torch versions: what pytest reported, in the order of versions, and why there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import recording
from tests import matrix

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_one"/>
<testcase classname="tests.unit.test_a" name="test_two[x]"><failure message="no"/></testcase>
<testcase classname="tests.unit.test_b" name="test_three"><error message="no"/></testcase>
<testcase classname="tests.unit.test_b" name="test_four"><skipped message="no QEMU"/></testcase>
</testsuite></testsuites>"""


def test_outcomes_are_counted(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert matrix.failing(tmp_path / "report.xml") == (
        {"passed": 1, "failed": 2, "skipped": 1},
        ["tests.unit.test_a::test_two[x]", "tests.unit.test_b::test_three"],
    )


def test_rows_are_kept_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (matrix, recording):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    for version in ("2.15.0", "2.9.1", "2.11.0+cu130", "2.9.1"):
        matrix.add_row(version, {"failed": 0})
    assert list(recording.recorded("matrix")["data"]) == ["2.9.1", "2.11.0+cu130", "2.15.0"]


def test_the_copy_has_sources_and_nothing_that_was_built(tmp_path: Path) -> None:
    try:
        matrix.copy_tree(tmp_path)
    except matrix.subprocess.CalledProcessError:
        pytest.skip("not a git checkout")
    assert (tmp_path / "bringup" / "csrc").is_dir()
    assert (tmp_path / "Makefile").is_file()
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize("given", [[], ["2.15.0", "--here"]])
def test_versions_or_here(given: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(sys, "argv", ["matrix", *given])
    with pytest.raises(SystemExit):
        matrix.main()
    assert "name versions of torch, or say --here" in capsys.readouterr().err
