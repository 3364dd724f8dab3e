"""Checks seeds in processes of their own, so that a crash or a hang is one more difference; shrinks what differs.

A checker holds one worker process per mode of the device and starts it again when it dies.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.order.generate import generate
from tests.order.program import Program
from tests.order.waits import script

ROOT = Path(__file__).resolve().parents[2]
#: Options of the simulated device. Kernels run on the stream's own thread alone: order is the question here.
OPTIONS = "devices=2,memory=40M,threads=1,jitter=1"
#: Every fourth program runs with ATen's kernels, which run on the calling thread.
MODES = ("kernels", "kernels", "kernels", "library")
OUT_OF_MEMORY = "OutOfMemoryError"


@dataclass(frozen=True)
class Finding:
    """A program that differs from its sequential self."""

    mode: str
    step: str
    text: str
    program: Program

    def report(self) -> str:
        return f"{script(self.program)}\n-> mode={self.mode}: step {self.step}: {self.text}"


class _Worker:
    def __init__(self, mode: str, root: Path) -> None:
        environment = {**os.environ, "BRINGUP_SIM": f"{OPTIONS},mode={mode}", "BRINGUP_DRIVERS": "sim"}
        environment.update(PYTHONPATH=os.pathsep.join(map(str, dict.fromkeys((root, ROOT)))), OMP_NUM_THREADS="1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.order.worker", mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,  # where `bringup` is taken from
            env=environment,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def answer(self, timeout: float) -> dict[str, str]:
        """Returns the next answer; one without a step says that there is no difference."""
        try:
            line = self.lines.get(timeout=timeout)
        except queue.Empty:
            self.end()
            return {"step": "none", "text": f"no answer within {timeout:.0f} s: the program hangs"}
        if not line:
            return {"step": "none", "text": f"the process ended with status {self.process.wait()}"}
        answer: dict[str, str] = json.loads(line)
        return answer

    def ask(self, timeout: float, **request: object) -> dict[str, str]:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer(timeout)

    def end(self) -> None:
        if self.process.poll() is None:
            assert self.process.stdin
            self.process.stdin.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Checker:
    """Runs programs in worker processes; ``root`` is the tree whose bringup they import.

    >>> with Checker() as checker:
    ...     for seed, finding in checker.seeds(range(100)): ...
    """

    def __init__(self, root: Path = ROOT, timeout: float = 120.0) -> None:
        self.root, self.timeout = root, timeout
        self.workers: dict[str, _Worker] = {}

    def __enter__(self) -> Checker:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.end()

    def run(self, program: Program, mode: str, jitter: int | None = None, racy: bool = False) -> Finding | None:
        """Returns how the program differs, or None; ``racy`` leaves waits out, so that it should."""
        worker = self.workers.get(mode)
        if worker is None or worker.process.poll() is not None:
            worker = self.workers[mode] = _Worker(mode, self.root)
            ready = worker.answer(5 * self.timeout)
            if "ready" not in ready:
                return Finding(mode, "none", f"the device cannot be set up: {ready['text']}", program)
        answer = worker.ask(self.timeout, program=program.to_json(), jitter=jitter, racy=racy)
        return Finding(mode, answer["step"], answer["text"], program) if answer else None

    def seeds(self, seeds: Iterable[int]) -> Iterable[tuple[int, Finding | None]]:
        """Yields each seed with how its program differs."""
        for seed in seeds:
            mode, program = MODES[seed % len(MODES)], generate(seed)
            left_out = set() if hasattr(torch.accelerator, "Graph") else {"capture"}
            if mode == "library":  # it has nothing that a graph could capture; what is sent is the same in both modes
                left_out = {"capture", "remote"}
            program = program.without(s.number for s in program.steps if s.op in left_out)
            yield seed, self.run(program, mode)

    def shrink(self, finding: Finding, *, attempts: int = 6, seconds: float = 60.0) -> Finding:
        """Returns the smallest program found that still differs; each is tried with several seeds of the delays."""
        until = time.monotonic() + seconds

        def fails(program: Program) -> Finding | None:
            for jitter in range(attempts):
                found = self.run(program, finding.mode, program.seed if jitter == 0 else jitter)
                if found and not found.text.startswith(OUT_OF_MEMORY):
                    return found
            return None

        return shrink(finding, fails, lambda: time.monotonic() > until)


def shrink(finding: Finding, fails: Callable[[Program], Finding | None], out_of_time: Callable[[], bool]) -> Finding:
    """Drops steps while the failure remains: halves first, single steps last, until none can go."""
    chunk = max(1, len(finding.program.steps) // 2)
    while not out_of_time():
        numbers = [step.number for step in finding.program.steps]
        dropped = False
        for start in range(0, len(numbers), chunk):
            if out_of_time():
                break
            smaller = finding.program.without(numbers[start : start + chunk])
            if len(smaller.steps) == len(finding.program.steps):
                continue
            found = fails(smaller)
            if found:
                finding, dropped = found, True
        if not dropped and chunk == 1:
            break
        chunk = chunk if dropped else chunk // 2
    return finding
