"""``bringup decompositions``: what graphs are rid of, who does it, and the page docs/decompositions.md."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from bringup.kit.decompositions_command import Decomposed, decomposition_rows, markdown, matching, summary
from tests.fork_server import run_bringup

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "decompositions.md"


@pytest.fixture(scope="module")
def rows() -> dict[str, Decomposed]:
    return {row.op: row for row in decomposition_rows()}


def test_the_table_is_the_one_that_graphs_are_traced_with(rows: dict[str, Decomposed]) -> None:
    from bringup.graph.decompositions import decompositions
    from bringup.graph.lowered import op_name

    assert set(rows) == {name for name in map(op_name, decompositions()) if name.startswith("aten::")}


def test_by_whom_and_why(rows: dict[str, Decomposed]) -> None:
    from bringup.graph.decompositions import OWN

    assert {row.op for row in rows.values() if row.by == "bringup"} == set(OWN)
    assert "PyTorch has no decomposition" in rows["aten::_thnn_fused_gru_cell"].why
    assert rows["aten::square"].by == "PyTorch"
    assert rows["aten::square"].why == "no lowering, made of other ops in eager PyTorch, too"


def test_an_op_with_a_lowering_is_not_taken_apart(rows: dict[str, Decomposed]) -> None:
    assert not {"aten::gelu", "aten::native_layer_norm", "aten::addmm"} & set(rows)


def test_patterns(rows: dict[str, Decomposed]) -> None:
    every = list(rows.values())
    assert [row.op for row in matching(every, "aten::square")] == ["aten::square"]
    assert {row.op for row in matching(every, "square,*gru_cell")} > {"aten::square", "aten::_thnn_fused_gru_cell"}
    assert matching(every, "nosuchop") == []


# ---- the page ----
def test_the_page_has_a_line_for_each() -> None:
    made = [Decomposed("aten::std.dim", "PyTorch", "no lowering"), Decomposed("aten::lstm", "bringup", "no lowering")]
    page = markdown(made, "2.13.0")
    assert "| `std.dim` | PyTorch | no lowering |" in page
    assert "2 overloads of 2 ops: 1 by PyTorch, 1 by bringup." in page


def test_the_page_is_up_to_date(rows: dict[str, Decomposed]) -> None:
    import torch

    text = PAGE.read_text()
    written_for = re.search(r"torch (\d[\w.]*)\)", text)
    assert written_for is not None
    version = torch.__version__.split("+")[0]
    if version != written_for[1]:
        pytest.skip(f"docs/decompositions.md is of torch {written_for[1]}")
    assert text == markdown(list(rows.values()), version), "docs/decompositions.md is not up to date: run `make docs`"


# ---- the command ----
def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_bringup("decompositions", *arguments)


def test_json() -> None:
    done = run("--json", "--op", "_thnn_fused_*_cell")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["count"] == len(found["ops"]) == 2
    assert {row["by"] for row in found["ops"]} == {"bringup"}


def test_the_table_ends_with_the_count(rows: dict[str, Decomposed]) -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == summary(list(rows.values()))


def test_a_pattern_without_a_match_is_one_line() -> None:
    done = run("--op", "nosuchop")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "bringup decompositions: no op that is taken apart matches 'nosuchop'\n"
