"""``bringup ops``: routes in the table's words, the counts, and the page docs/ops.md, which follows the registry."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from bringup.kit.op_table import (
    OpRow,
    OpTable,
    base_of,
    definition_places,
    grouped,
    lowered_ops,
    markdown,
    named_rows,
)
from bringup.lowering.registry import Kind
from tests.fork_server import run_bringup

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "ops.md"

ROUTES = {
    "aten::exp": "kernel",
    "aten::exp_": "kernel",
    "aten::exp.out": "kernel",
    "aten::sort": "library",
    "aten::nonzero": "library",
    "aten::view": "native",
    "aten::rand": "random",
    "aten::chunk": "composite",
    "aten::_cudnn_rnn": "error",
    "bringup::attention": "kernel",
}


def routes_of(rows: list[OpRow]) -> dict[str, str]:
    return {row.overload: row.route for row in rows}


def test_routes_of_a_device_that_runs_kernels() -> None:
    found = routes_of(named_rows(ROUTES, host_library=False, kernels=True, own={"aten::nonzero": "native"}))
    assert found == {
        "aten::exp": "kernel",
        "aten::exp_": "kernel",
        "aten::exp.out": "kernel",
        "aten::sort": "fallback",
        "aten::nonzero": "native",
        "aten::view": "native",
        "aten::rand": "native",
        "aten::chunk": "decomposition",
        "aten::_cudnn_rnn": "error",
    }


def test_a_device_without_kernels_has_none_though_another_one_has() -> None:
    assert routes_of(named_rows(ROUTES, host_library=False, kernels=False))["aten::exp"] == "fallback"
    assert routes_of(named_rows(ROUTES, host_library=True, kernels=False))["aten::exp"] == "library"


def test_an_op_that_torch_does_not_have_gets_no_row() -> None:
    assert "aten::gone" not in routes_of(named_rows(ROUTES, True, True, own={"aten::gone": "native"}))


@pytest.mark.parametrize(
    ("overload", "base"),
    [
        ("aten::add_.Tensor", "aten::add"),
        ("aten::__ilshift__.Scalar", "aten::__ilshift__"),
        ("aten::_foreach_add_.List", "aten::_foreach_add"),
        ("aten::exp", "aten::exp"),
    ],
)
def test_base(overload: str, base: str) -> None:
    assert base_of(overload) == base


def table() -> OpTable:
    rows = named_rows(ROUTES, host_library=False, kernels=True)
    return OpTable("sim:0", rows, lowered_ops(["aten::exp", "bringup::attention"]))


def test_counts_leave_out_decompositions_and_fallbacks() -> None:
    counted = table()
    assert counted.by_route == {"kernel": 3, "native": 2, "decomposition": 1, "fallback": 2, "error": 1}
    assert counted.native == 5
    assert counted.lowered == {"aten::exp"}
    assert [row.overload for row in counted.only(["error"])] == ["aten::_cudnn_rnn"]


def test_the_page_has_one_line_per_op_and_route() -> None:
    page = markdown(table(), "bringup ops", "2.13.0")
    assert "| exp | kernel | default, out, in-place |" in page
    assert "- 1 distinct ops have a lowering of their own." in page
    assert page.count("| exp ") == 1
    assert ("sort", "fallback", "default") in grouped(table().rows)


def test_every_definition_says_where_it_is() -> None:
    from bringup.lowering.registry import DEFINITIONS

    shown = definition_places()
    assert {kind for _, kind in DEFINITIONS} == set(get_args(Kind))
    for name, kind in [
        ("aten::addcmul", "lowering"),
        ("aten::_softmax", "lowering"),
        ("aten::nonzero", "composed"),
        ("bringup::nonzero_", "on CPU"),
        ("aten::slice_scatter", "graph lowering"),
        ("aten::_assert_async.msg", "file lowering"),
        ("aten::zero", "decomposition"),
        ("aten::upsample_nearest2d.vec", "export decomposition"),
    ]:
        place = DEFINITIONS[name, kind].place
        file, _, line = place.rpartition(":")
        assert name in "".join((ROOT / file).read_text().splitlines()[int(line) - 1 : int(line) + 9]), place
        assert f"{place.removeprefix('bringup/').removeprefix('lowering/')} ({kind})" in shown[name]


# ---- docs/ops.md ----
def test_the_page_names_every_lowered_op() -> None:
    from bringup.lowering import ops
    from bringup.lowering.registry import LOWERINGS

    ops.load()
    expected = lowered_ops(LOWERINGS)
    text = PAGE.read_text()
    section = text.partition("## Ops with a lowering")[2].partition("\n## ")[0]
    named = {f"aten::{name}" for name in re.findall(r"`(\w+)`", section)}
    hint = "docs/ops.md is not up to date: run `make docs`"
    assert named == expected, f"{hint}; differs in {sorted(named ^ expected)[:10]}"
    assert f"- {len(expected)} distinct ops have a lowering" in text, hint


def test_the_counts_of_the_page_are_those_of_its_rows() -> None:
    text = PAGE.read_text()
    counts = {route: int(count) for route, count in re.findall(r"^\| (\w+) \| (\d+) \|$", text, re.MULTILINE)}
    rows = re.findall(r"^\| \w+ \| (\w+) \| (.+) \|$", text.partition("## All overloads")[2], re.MULTILINE)
    found = dict.fromkeys(counts, 0)
    for route, overloads in rows:
        if route in found:
            found[route] += overloads.count(", ") + 1
    assert found == counts
    assert f"- {counts['kernel'] + counts['native']} overloads run on the device" in text


# ---- the command ----
def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("BRINGUP_DRIVERS", "BRINGUP_SIM")}
    return run_bringup("ops", *arguments, env={**inherited, "COLUMNS": "160", **environment})


@pytest.fixture(scope="module")
def kernels() -> dict[str, dict]:
    done = run("--mode", "kernels", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_issue_s_numbers(kernels: dict[str, dict]) -> None:
    assert kernels["summary"]["lowered_ops"] >= 350
    assert kernels["summary"]["native_overloads"] >= 900


def test_routes_from_the_real_registry(kernels: dict[str, dict]) -> None:
    ops = kernels["ops"]
    assert ops["aten::exp"] == {"aten::exp": "kernel", "aten::exp.out": "kernel", "aten::exp_": "kernel"}
    assert ops["aten::view"]["aten::view"] == "native"
    assert ops["aten::nonzero"]["aten::nonzero"] == "native"
    assert ops["aten::linalg_qr"]["aten::linalg_qr"] == "fallback"
    assert ops["aten::chunk"]["aten::chunk"] == "decomposition"
    assert ops["aten::_cudnn_rnn"]["aten::_cudnn_rnn"] == "error"
    (place,) = kernels["defined"]["aten::_softmax"]
    assert re.fullmatch(r"ops/softmax\.py:\d+ \(lowering\)", place)
    assert [place.partition(" ")[2] for place in kernels["defined"]["aten::convolution"]] == ["(graph lowering)"]


def test_the_page_is_what_the_command_writes(kernels: dict[str, dict]) -> None:
    import torch

    written_for = re.search(r"torch (\d[\w.]*)\)", PAGE.read_text())
    assert written_for is not None
    if torch.__version__.split("+")[0] != written_for[1]:
        pytest.skip(f"docs/ops.md is of torch {written_for[1]}")
    counts = re.findall(r"^\| (\w+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    shown = {route: int(count) for route, count in counts}
    assert shown == kernels["summary"]["routes"], "run `make docs`"


def test_missing_shows_only_what_is_missing() -> None:
    done = run("--mode", "kernels", "--missing", "--json")
    ops = json.loads(done.stdout)["ops"]
    assert {route for overloads in ops.values() for route in overloads.values()} == {"fallback", "error"}
    assert "aten::exp" not in ops


def test_sim_in_library_mode_has_a_library_and_no_lowering() -> None:
    done = run("--mode", "library", BRINGUP_SIM="devices=1")
    assert done.returncode == 0, done.stderr
    assert "0 distinct ops have a lowering of their own" in done.stdout
    line = next(line for line in done.stdout.splitlines() if line.startswith("│ exp "))
    assert "library" in line


def test_an_unknown_driver_is_one_line() -> None:
    done = run("--driver", "nosuchchip")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("bringup ops: ")
    assert "nosuchchip" in done.stderr
    assert len(done.stderr.splitlines()) == 1
