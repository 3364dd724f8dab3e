"""Worker processes that outlive what programs do to them: one that dies or hangs is replaced, and its batch runs one by
one, so that the seed is known."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.fuzz.routes import ROUTES
from tests.fuzz.worker import Failure, Outcome, serve

#: Programs in one call of a route. Twice as many took as long for each; half as many 1.3 times.
BATCH = 16
#: A worker is replaced after this many batches: a process may have 65,530 mappings, and a loaded kernel takes two.
_BATCHES_OF_A_WORKER = 60


@dataclass(frozen=True)
class Task:
    """Seeds, and the routes they still have to take."""

    seeds: tuple[int, ...]
    routes: tuple[str, ...]


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    core: int | None
    batches: int = 0
    task: Task | None = None
    route: str = ""
    heard: float = field(default_factory=time.monotonic)


def tasks(first: int, last: int, routes: Sequence[str], everything: bool = False) -> list[Task]:
    """Returns the batches of a range of seeds; routes that cost much take a share of the batches only."""
    found = []
    for start in range(first - first % BATCH, last, BATCH):
        seeds = tuple(seed for seed in range(start, start + BATCH) if first <= seed < last)
        taken = [one for one in routes if everything or start // BATCH % ROUTES[one].share == 0]
        found.append(Task(seeds, tuple(taken)))
    return found


class Pool:
    """Runs tasks on ``workers`` processes; ``limit`` is how many seconds a worker may say nothing."""

    def __init__(self, workers: int, limit: float) -> None:
        self._count, self._limit = workers, limit
        self._context = multiprocessing.get_context("spawn")
        self._cores = sorted(os.sched_getaffinity(0))

    def run(
        self, given: Iterable[Task], ended: Callable[[Task], None], outcome: Callable[[Outcome], None],
        made: Callable[[float], None] = lambda seconds: None,
    ) -> None:  # fmt: skip
        """Runs tasks; ``outcome`` gets what came of each route of a task, ``ended`` the task when all have run."""
        self._waiting = deque(given)
        self._outcome, self._ended, self._made = outcome, ended, made
        self._owed: dict[tuple[int, ...], int] = {}
        workers = [self._start(n) for n in range(min(self._count, max(1, len(self._waiting))))]
        try:
            while True:
                for n, worker in enumerate(workers):
                    if worker.task is None and self._waiting:
                        if worker.batches >= _BATCHES_OF_A_WORKER:
                            _stop(worker)
                            workers[n] = worker = self._start(n)
                        self._give(worker, self._waiting.popleft())
                busy = [worker for worker in workers if worker.task is not None]
                if not busy:
                    return
                ready = wait([worker.pipe for worker in busy], timeout=1.0)
                for n, worker in enumerate(workers):
                    if worker.task is None:
                        continue
                    if worker.pipe in ready and not self._hear(worker):
                        workers[n] = self._lost(worker, n, "")
                    elif time.monotonic() - worker.heard > self._limit:
                        workers[n] = self._lost(worker, n, f"ran for more than {self._limit:.0f} s")
        finally:
            for worker in workers:
                _stop(worker)

    def _start(self, number: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        core = self._cores[number % len(self._cores)] if self._count > 1 else None
        process = self._context.Process(target=serve, args=(theirs, core), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours, core)

    def _give(self, worker: _Worker, task: Task) -> None:
        worker.task, worker.route, worker.heard = task, "", time.monotonic()
        worker.batches += 1
        worker.pipe.send(("run", task.seeds, task.routes))

    def _hear(self, worker: _Worker) -> bool:
        """Takes a message; False if the process has died."""
        assert worker.task is not None
        worker.heard = time.monotonic()
        try:
            kind, content = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            return False
        if kind == "starts":
            worker.route = content
        elif kind == "made":
            self._made(content)
        elif kind == "outcome":
            self._outcome(content)
        elif kind == "done":
            self._ended(worker.task)
            worker.task = None
        return True

    def _lost(self, worker: _Worker, number: int, said: str) -> _Worker:
        """Replaces a worker; its batch runs one by one, or if it was one program, that has failed."""
        task = worker.task
        assert task is not None
        worker.process.kill() if said else None
        worker.process.join()
        words = said or f"the process ended by {_ending(worker.process.exitcode)}"
        route = worker.route or task.routes[0]
        rest = task.routes[task.routes.index(route) + 1 :]
        if len(task.seeds) == 1:
            failure = Failure(task.seeds[0], route, words)
            self._outcome(Outcome(route, task.seeds, (failure,), (), (), 0.0))
            self._waiting.appendleft(Task(task.seeds, rest))
        else:
            self._waiting.extendleft([Task((seed,), (route, *rest)) for seed in task.seeds])
        return self._start(number)


def _ending(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"


def _stop(worker: _Worker) -> None:
    if worker.task is None and worker.process.is_alive():
        worker.pipe.send(None)
        worker.process.join(10)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    worker.pipe.close()


def shrunk(failures: Sequence[Failure], workers: int, limit: float) -> list[Failure]:
    """Returns failures with their programs made small, each in a process of its own; as they are where that fails."""
    pool = Pool(workers, limit)
    found: list[Failure] = []
    for failure in failures:
        worker = pool._start(0)
        worker.pipe.send(("shrink", failure.seed, failure.route))
        small = None
        if worker.pipe.poll(limit):
            try:
                _, small = worker.pipe.recv()
            except EOFError:
                small = None  # it crashes, which was reported, and cannot be made small in one process
        _stop(worker)
        found.append(small or failure)
    return found
