"""A process that runs batches of programs through routes, and says of each what differs."""

from __future__ import annotations

import logging
import os
import resource
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from tests.fuzz.generate import make
from tests.fuzz.judge import Expected, expected
from tests.fuzz.known import left_out
from tests.fuzz.program import SIZES, Program
from tests.fuzz.routes import ROUTES, Found

#: What is said of a failure, at most.
_WORDS = 600


@dataclass(frozen=True)
class Failure:
    """A program that a route gets wrong; ``text`` is the program once it has been made small."""

    seed: int
    route: str
    said: str
    raised: bool = False
    text: str = ""

    @property
    def kind(self) -> str:
        """Its exception, if it has raised one."""
        return self.said.partition(":")[0] if self.raised else ""


@dataclass(frozen=True)
class Outcome:
    """What came of one route for a batch: failures, seeds that PyTorch itself refuses, known ones, and CPU-seconds."""

    route: str
    seeds: tuple[int, ...]
    failures: tuple[Failure, ...]
    refused: tuple[int, ...]
    known: tuple[int, ...]
    seconds: float


Judged = dict[int, list[Expected]]


def quiet() -> None:
    """Keeps tracebacks of Dynamo and deprecations out of a run that reports failures itself."""
    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.CRITICAL + 1)
    torch.set_num_threads(1)


def judged(programs: Sequence[Program]) -> Judged:
    """Returns what programs compute on the CPU, for each choice of sizes."""
    return {program.seed: [expected(program, sizes) for sizes in SIZES] for program in programs}


def differences(route: str, programs: Sequence[Program], right: Judged) -> list[Failure]:
    """Runs programs together and returns those with wrong results; raises what the route raises."""
    way = ROUTES[route]
    found = way.run(programs)
    return list(_compared(route, programs, right, found).values())


def _compared(route: str, programs: Sequence[Program], right: Judged, found: Found) -> dict[int, Failure]:
    way = ROUTES[route]
    failures: dict[int, Failure] = {}
    for number, rans in enumerate(found):
        for program, ran in zip(programs, rans):
            said = right[program.seed][number].difference(
                ran, memory=way.memory, inputs=way.inputs, traced=route != "eager"
            )
            if said:
                sizes = f"with sizes {SIZES[number]}: " if number else ""
                failures.setdefault(program.seed, Failure(program.seed, route, (sizes + said)[:_WORDS]))
    return failures


def run_batch(
    route: str, programs: Sequence[Program], right: Judged, beat: Callable[[], None] = lambda: None
) -> Outcome:
    """Runs a batch through a route; programs of a batch that fails as a whole run one by one."""
    start = cpu_seconds()
    way = ROUTES[route]
    refused = [program.seed for program in programs if way.leaves_out(program)]
    known = [program.seed for program in programs if left_out(program, route)]
    taken = [program for program in programs if program.seed not in (*refused, *known)]
    found: list[Failure] = []
    try:
        found = differences(route, taken, right) if taken else []
    except Exception as error:  # whatever a route raises is what is looked for
        for program in taken:
            beat()
            one = failure_of(route, program, right) if len(taken) > 1 else _raised(route, program, error)
            found += [one] if one is not None else []
    by_seed = {program.seed: program for program in taken}
    failures = [one for one in found if not fails_alone(route, [by_seed[one.seed]], right)]
    failures = [one for one in failures if len(taken) == 1 or not fails_alone(route, taken, right, one)]
    refused += [one.seed for one in found if one not in failures]
    seeds = tuple(program.seed for program in programs)
    return Outcome(route, seeds, tuple(failures), tuple(refused), tuple(known), cpu_seconds() - start)


def fails_alone(route: str, programs: Sequence[Program], right: Judged, failure: Failure | None = None) -> bool:
    """Whether PyTorch itself, without bringup, refuses a program on this route or computes something else.

    With a batch and the failure of one of its programs: whether that fails in just this way. Programs of one call are
    not always independent: TorchScript makes one constant of ``torch.tensor(2)`` and of the 2 of another program, and
    then promotes dtypes for both as for a tensor, or for both as for a number.
    """
    alone = ROUTES[route].alone
    if alone is None:
        return False
    try:
        found = _compared(route, programs, right, alone(programs))
    except Exception:  # whatever PyTorch raises
        return failure is None
    return bool(found) if failure is None else found.get(failure.seed) == failure


def failure_of(route: str, program: Program, right: Judged) -> Failure | None:
    """Runs one program through a route."""
    try:
        return next(iter(differences(route, [program], right)), None)
    except Exception as error:
        return _raised(route, program, error)


def _raised(route: str, program: Program, error: Exception) -> Failure:
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return Failure(program.seed, route, words[:_WORDS], raised=True)


def cpu_seconds() -> float:
    """Returns what this process and the compilers that it ran have used."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


# ---- the process ----
def serve(pipe: Connection, core: int | None) -> None:
    """Answers tasks: ``("run", seeds, routes)`` with an Outcome for each route, ``("shrink", seed, route)``.

    The process keeps to one core: kernels of a graph then compile in one run of the compiler, eight at once.
    """
    from tests.fuzz.shrink import shrunk_failure

    if core is not None:
        os.sched_setaffinity(0, {core})
    quiet()
    while True:
        task: Any = pipe.recv()
        if task is None:
            return
        if task[0] == "shrink":
            pipe.send(("shrunk", shrunk_failure(*task[1:])))
            continue
        _, seeds, routes = task
        start = cpu_seconds()
        programs = [make(seed) for seed in seeds]
        right = judged(programs)
        pipe.send(("made", cpu_seconds() - start))
        for route in routes:
            pipe.send(("starts", route))
            pipe.send(("outcome", run_batch(route, programs, right, lambda: pipe.send(("alive", None)))))
        pipe.send(("done", None))
