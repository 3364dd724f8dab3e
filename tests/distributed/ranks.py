"""Runs test programs on several ranks: one process each, connected by a file, every program on all of them in turn.

A program is a function of a ``Ranks``; it fails where any rank raises. The processes of one variant (driver, number of
ranks) run all programs of a file, since starting them takes longer than the programs do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = "tests.distributed"
PROGRAMS: dict[str, Callable[[Ranks], None]] = {}


@dataclass(frozen=True)
class Ranks:
    """Who runs: this process among the others, and the type of its device."""

    rank: int
    size: int
    device: str


def program(run: Callable[[Ranks], None]) -> Callable[[Ranks], None]:
    """Registers a program under its function's name."""
    PROGRAMS[run.__name__] = run
    return run


def names_in(file: str) -> list[str]:
    """The programs of a file, without importing torch."""
    lines = (Path(__file__).parent / f"{file}.py").read_text().splitlines()
    return [later.removeprefix("def ").split("(")[0] for line, later in pairwise(lines) if line == "@program"]


def environment(size: int, **extra: str) -> dict[str, str]:
    """Of every rank; two cores are shared by all of them."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(size), **extra}


def start(
    words: Sequence[str],
    size: int,
    env: Mapping[str, str],
    folder: Path,
    rank_env: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
) -> list[subprocess.Popen[str]]:
    """Starts one process per rank; each writes to a file of its own. ``rank_env`` is for one rank only."""
    processes = []
    for rank in range(size):
        with (folder / f"output{rank}").open("w") as output:
            own = {**env, "RANK": str(rank), "LOCAL_RANK": str(rank), **rank_env.get(rank, {})}
            command = [sys.executable, *words]
            processes.append(
                subprocess.Popen(command, cwd=ROOT, env=own, stdout=output, stderr=subprocess.STDOUT, text=True)
            )
    return processes


def run_file(file: str, size: int, timeout: float = 240, **extra: str) -> dict[str, str]:
    """Runs the programs of a file on ``size`` ranks; returns what went wrong of each: nothing where all is well."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = environment(size, **extra)
        processes = start(["-W", "ignore", "-m", f"{HERE}.ranks", file, name], size, env, folder)
        end = time.monotonic() + timeout
        for process in processes:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        wrong = dict.fromkeys(names_in(file), "")
        for rank in range(size):
            output = (folder / f"output{rank}").read_text()
            found = {}
            for line in output.splitlines():
                if line.startswith('{"program"'):
                    entry = json.loads(line)
                    found[entry["program"]] = entry["wrong"]
            for each in wrong:
                text = found.get(each, f"did not run:\n{output[-3000:]}" if not any(found.values()) else "did not run")
                wrong[each] += f"rank {rank}: {text}\n" if text else ""
            if "No backend of type" in output:  # PyTorch warns of a group that names no owner
                wrong["exit"] = wrong.get("exit", "") + f"rank {rank}: {output[-3000:]}"
            if processes[rank].returncode:
                wrong["exit"] = (
                    wrong.get("exit", "") + f"rank {rank} ended with {processes[rank].returncode}: {output[-3000:]}"
                )
        return wrong


def main(file: str, folder: str) -> None:
    """One rank."""
    import faulthandler

    faulthandler.dump_traceback_later(220, exit=True)
    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch._C._get_privateuse1_backend_name()
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group(
        f"cpu:gloo,{device}:bringup", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    import_module(f"{HERE}.{file}")
    ranks = Ranks(rank, size, device)
    for name, run in PROGRAMS.items():
        wrong = ""
        try:
            run(ranks)
        except Exception:
            wrong = traceback.format_exc()
        print(json.dumps({"program": name, "wrong": wrong}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def tensors_equal(got: Any, expected: Any) -> None:
    """Compares bits, also of dtypes that assert_close does not know."""
    import torch

    assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    a, b = (x.cpu().contiguous().flatten().view(torch.uint8) for x in (got, expected))
    assert torch.equal(a, b), (got, expected)


if __name__ == "__main__":
    module = import_module(f"{HERE}.ranks")  # the programs register with this one
    module.main(*sys.argv[1:])
