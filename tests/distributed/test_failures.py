"""Ranks that die, are late or disagree: every other rank hears why, in time, and no process hangs at its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.distributed import ranks
from tests.distributed.test_collectives import HERE

MODULE = "tests.distributed.failing"


def run(program: str, folder: Path, size: int, timeout: float = 90, rank_env: dict[int, dict[str, str]] | None = None,
        **extra: str) -> list[tuple[int, str]]:  # fmt: skip
    """Exit status and output of every rank."""
    env = ranks.environment(size, **{"BRINGUP_DRIVERS": "sim", **extra})
    processes = ranks.start(["-W", "ignore", "-m", MODULE, program, str(folder)], size, env, folder, rank_env or {})
    end = time.monotonic() + timeout
    for process in processes:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return [(process.returncode, (folder / f"output{rank}").read_text()) for rank, process in enumerate(processes)]


@pytest.mark.parametrize("drivers", ["sim", "staged_driver.py"])
def test_a_killed_rank_is_heard_of_by_all_others(drivers: str, tmp_path: Path) -> None:
    chosen = drivers if drivers == "sim" else str(HERE / drivers)
    done = run("killed", tmp_path, 4, BRINGUP_DRIVERS=chosen)
    assert done[3][0] == -signal.SIGKILL
    for rank, (status, text) in enumerate(done[:3]):
        first, second = re.findall(r"raised (\w+) after ([\d.]+) s: (.*)", text)
        assert float(first[1]) < 20, text
        assert f"rank {rank} of 4: all_reduce (call 2 of group" in first[2], text
        assert "Float [1000]" in first[2], text
        assert "start again from a checkpoint" in first[2], text
        assert second[0] == "DistBackendError", text
        assert "an earlier call of this group failed" in second[2], text
        assert "goes on\nend of the program" in text
        assert status == 0, text


def test_a_late_rank_is_a_timeout_that_names_the_collective(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    done = run("late", tmp_path, 2, TORCH_FR_BUFFER_SIZE="100", TORCH_FR_DUMP_TEMP_FILE=str(dump))
    (status, text), (_, other) = done
    (found,) = re.findall(r"raised (\w+) after ([\d.]+) s: (.*)", text) or [text]
    assert 4 < float(found[1]) < 11, text
    assert "rank 0 of 2: all_reduce (call 2 of group" in found[2], text
    assert "Timed out" in found[2], text
    assert status == 0
    assert "slept" in other
    import pickle

    recorded = pickle.loads(Path(f"{dump}0").read_bytes())
    assert any("all_reduce" in entry["profiling_name"] for entry in recorded["entries"]), recorded


@pytest.mark.parametrize(
    "drivers", ["sim", "device/chip_driver.py", "distributed/staged_driver.py", "distributed/own_collectives_driver.py"]
)
def test_a_program_that_ends_in_a_collective_does_not_hang(drivers: str, tmp_path: Path) -> None:
    chosen = drivers if drivers == "sim" else str(HERE.parent / drivers)
    env = ranks.environment(2, BRINGUP_DRIVERS=chosen)
    first, other = ranks.start(["-W", "ignore", "-m", MODULE, "forgotten", str(tmp_path)], 2, env, tmp_path)
    try:
        assert first.wait(50) == 0, (tmp_path / "output0").read_text()
        assert other.poll() is None, "the other rank must be there for this to mean anything"
    finally:
        for process in (first, other):
            process.kill()
            process.wait()
    text = (tmp_path / "output0").read_text()
    assert "ends\nend of the program" in text
    assert "this rank exits while it waits" in text, text


def test_a_rank_that_ends_while_another_exits_does_not_abort_it(tmp_path: Path) -> None:
    (status, text), _ = run("forgotten_until_the_interpreter_ends", tmp_path, 2)
    assert "this rank exits while it waits" in text, text
    assert status == 0, text


def test_ranks_on_different_drivers_are_refused_on_all_ranks(tmp_path: Path) -> None:
    other = {1: {"BRINGUP_DRIVERS": str(HERE.parent / "device" / "chip_driver.py")}}
    for status, text in run("drivers", tmp_path, 2, rank_env=other):
        assert status == 0, text
        assert "must use the same driver" in text, text
        assert "rank 0: driver 'sim'" in text, text
        assert "rank 1: driver 'chip'" in text, text


def test_mismatched_shapes_and_dtypes_in_debug_mode(tmp_path: Path) -> None:
    for status, text in run("mismatched", tmp_path, 2, TORCH_DISTRIBUTED_DEBUG="DETAIL"):
        assert status == 0, text
        assert text.count("raised RuntimeError") == 2, text
        assert "Detected mismatch between collectives on ranks" in text, text


def test_elastic_restart_resumes_from_the_checkpoint(tmp_path: Path) -> None:
    losses = []
    for kill in ("", "1"):
        folder = tmp_path / f"run{kill}"
        folder.mkdir()
        words = ["-m", "torch.distributed.run", "--nproc-per-node=4", "--max-restarts=1", "--monitor-interval=0.5"]
        words += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "-m", MODULE, "elastic", str(folder)]
        env = {**os.environ, "BRINGUP_DRIVERS": "sim", "KILL": kill, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *words], cwd=ranks.ROOT, env=env, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr[-3000:]
        loss, first = (folder / "loss").read_text().split()
        losses.append(float(loss))
        assert int(first) == (6 if kill else 0), "the second run starts where the checkpoint ends"
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
