"""``bringup trace``: the timeline of a program, and timelines of several ranks as one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bringup.profiler.merged import merge_traces
from tests.optional_packages import need_the_command

PROGRAM = """
import sys, torch
x = torch.ones(64, 64, device="sim")
print("arguments:", sys.argv[1:], (x @ x).sum().item())
if "fail" in sys.argv:
    raise ValueError("on purpose")
if "interrupt" in sys.argv:
    raise KeyboardInterrupt
sys.exit(3 if "exit" in sys.argv else 0)
"""


def trace(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    need_the_command()
    command = [sys.executable, "-m", "bringup", "trace", *arguments]
    environment = {**os.environ, "BRINGUP_DRIVERS": "sim", **env}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    (folder / "program.py").write_text(PROGRAM)
    return folder


def kernels(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "kernel"]


def test_a_program_and_the_traces_of_two_ranks(folder: Path) -> None:
    for rank, argument in enumerate(["exit", "fail"]):
        done = trace(folder, "program.py", "-o", "t.json", "--", "a", argument, RANK=str(rank))
        assert f"arguments: ['a', '{argument}'] 262144.0" in done.stdout
        assert "bringup_mm" in done.stdout, done.stderr
        assert done.returncode == (3, 1)[rank]
        assert ("ValueError: on purpose" in done.stderr) == (rank == 1)
    names = ["t.rank0.json", "t.rank1.json"]
    parts = [folder / name for name in names]
    assert all(len(kernels(part)) >= 2 for part in parts)

    done = trace(folder, *names, "-o", "all.json")
    assert done.returncode == 0, done.stderr
    merged = json.loads((folder / "all.json").read_text())
    found = kernels(folder / "all.json")
    assert len(found) == sum(len(kernels(part)) for part in parts)
    assert len({event["pid"] for event in found}) == 2
    processes = {event["args"]["name"] for event in merged["traceEvents"] if event["name"] == "process_name"}
    assert {"rank 0: sim:0", "rank 1: sim:0"} <= processes
    arrows = [event for event in merged["traceEvents"] if event.get("cat") == "ac2g" and event["ph"] == "s"]
    assert len({event["id"] for event in arrows}) == len(arrows) >= 4


def test_a_program_that_is_interrupted_has_a_trace(folder: Path) -> None:
    done = trace(folder, "program.py", "-o", "ended.json", "--", "interrupt")
    assert done.returncode == 130, done.stderr
    assert kernels(folder / "ended.json")


def test_traces_of_other_starts_lie_on_one_axis(tmp_path: Path) -> None:
    for rank, base in enumerate([5_000_000, 2_000_000]):
        events = [{"ph": "X", "name": "k", "ts": 10.0, "dur": 1.0, "pid": 7, "tid": 0}]
        text = {"baseTimeNanoseconds": base, "distributedInfo": {"rank": 1 - rank}, "traceEvents": events}
        (tmp_path / f"{rank}.json").write_text(json.dumps(text))
    merged = merge_traces([tmp_path / "0.json", tmp_path / "1.json"])
    assert [event["ts"] for event in merged["traceEvents"]] == [3010.0, 10.0]
    assert [event["pid"] for event in merged["traceEvents"]] == [0, 1]
    assert merged["baseTimeNanoseconds"] == 2_000_000


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"traceEvents": 3}', None])
def test_what_is_not_a_trace_is_an_error(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "wrong.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=r"wrong\.json is not a trace"):
        merge_traces([path])


def test_bad_arguments_are_errors(folder: Path) -> None:
    assert "there is no file nothing.py" in trace(folder, "nothing.py").stderr
    assert "there is no folder" in trace(folder, "program.py", "-o", "nowhere/t.json").stderr
    assert "nothing.json is not a trace" in trace(folder, "nothing.json").stderr
