"""Random programs with fixed seeds through every route, and the fuzzer's own parts: it must find what is wrong."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import bringup.jit
from tests.fuzz.found_again import numbers_without_promotion
from tests.fuzz.generate import make
from tests.fuzz.judge import Runs, expected
from tests.fuzz.known import KNOWN, Known, left_out
from tests.fuzz.pool import BATCH, Pool, Task, tasks
from tests.fuzz.program import FLOATS, INTEGERS, SIZES, Input, Program
from tests.fuzz.routes import ROUTES
from tests.fuzz.shrink import shrunk_failure
from tests.fuzz.templates import KINDS
from tests.fuzz.worker import Failure, Outcome, fails_alone, failure_of, judged, quiet, run_batch
from tests.optional_packages import skip_without_a_riscv_compiler

pytestmark = pytest.mark.filterwarnings("ignore")

#: Batches of the fixed run by route: together 46 CPU-seconds with an empty cache.
FIXED = {"eager": 1, "compile": 2, "dynamic": 1, "export": 1, "jit": 1, "riscv": 1}


@pytest.fixture(scope="module", autouse=True)
def quiet_here() -> Iterator[None]:
    """As in the workers, and as it was afterwards."""
    logger, threads = logging.getLogger("torch"), torch.get_num_threads()
    level = logger.level
    quiet()
    yield
    logger.setLevel(level)
    torch.set_num_threads(threads)
    bringup.jit.disable()


def _reported(outcome: Outcome) -> str:
    lines = []
    for failure in outcome.failures:
        small = shrunk_failure(failure.seed, failure.route) or failure
        lines.append(f"{small.route}, seed {small.seed}: {small.said}\n{small.text}")
    return "\n\n".join(lines)


@pytest.mark.parametrize("route", FIXED)
def test_fixed_programs(route: str) -> None:
    if route == "riscv":
        skip_without_a_riscv_compiler()
    for start in range(0, FIXED[route] * BATCH, BATCH):
        programs = [make(seed) for seed in range(start, start + BATCH)]
        outcome = run_batch(route, programs, judged(programs))
        assert not outcome.failures, _reported(outcome)
        assert len(outcome.refused) <= BATCH // 2, "PyTorch refuses most of the programs: they show nothing"


@pytest.mark.sweep
def test_many_programs() -> None:
    """A thousand programs with other seeds, in worker processes."""
    failures: list[Failure] = []
    programs = tasks(100_000, 101_000, list(ROUTES))
    workers = len(os.sched_getaffinity(0))
    Pool(workers, 600).run(programs, lambda task: None, lambda outcome: failures.extend(outcome.failures))
    assert not failures, "\n".join(f"{one.route} {one.seed}: {one.said}" for one in failures)


# ---- programs ----
def test_a_seed_is_one_program_with_every_torch() -> None:
    """What a torch version changes about shapes, dtypes or errors would change the programs: seeds name others then."""
    text = "\n".join(make(seed).text() for seed in range(40))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "97b081030aecc241"


def test_programs_are_varied() -> None:
    programs = [make(seed) for seed in range(200)]
    assert min(len(program.statements) for program in programs) >= 4
    assert {kind for program in programs for kind in program.kinds} == set(KINDS)
    inputs = [one for program in programs for one in program.inputs]
    assert {one.dtype for one in inputs} == {*FLOATS, *INTEGERS}
    assert {one.order for one in inputs} == {"rows", "columns", "every other"}
    assert any(one.special for one in inputs)
    assert any(0 in one.shape for one in inputs)
    assert any(program.changed for program in programs)
    text = "\n".join(program.source() for program in programs)
    templates = [one for words, _ in KINDS.values() for one in words]
    for word in "sum( @ torch.where( torch.cat( [p0] expand( .shape[ torch.tensor( topk( softmax(".split():
        assert word in text, word
    assert len(templates) == len(set(templates))


def test_a_program_runs_as_printed() -> None:
    said: list[str] = []
    exec(make(3).text(), {"print": lambda *words: said.append(str(words))})
    assert "tensor(" in said[0]


# ---- the rule ----
def _program(statement: str, kind: str = "arithmetic", dtype: str = "f32") -> Program:
    return Program(1, (Input("x0", dtype, ("n", 60)),), (f"t0 = {statement}",), (kind,), ("t0",))


@pytest.mark.parametrize(
    ("statement", "kind", "wrong", "seen"),
    [
        ("x0 + 1", "arithmetic", lambda x: x + 1 + 1e-6, True),  # no rounding: every bit counts
        ("x0.tanh()", "smooth", lambda x: x.tanh() * (1 + 2**-23), False),
        ("x0.tanh()", "smooth", lambda x: x.tanh() * (1 + 2**-17), True),
        ("x0 > 0", "decision", lambda x: x >= 0, True),
        ("x0 + 1", "arithmetic", lambda x: (x + 1).double(), True),
        ("x0 + 1", "arithmetic", lambda x: (x + 1)[None], True),
        ("x0 + 1", "arithmetic", lambda x: (x + 1).t().contiguous().t(), True),
        ("x0.reciprocal()", "smooth", lambda x: x.reciprocal().nan_to_num(posinf=3e38), True),
        ("x0[0]", "view", lambda x: x[0].clone(), True),
        ("x0 + 1", "arithmetic", lambda x: x.add_(1).clone(), True),
    ],
)
def test_the_rule(statement: str, kind: str, wrong: object, seen: bool) -> None:
    from tests.fuzz.judge import left_behind

    program = _program(statement, kind)
    inputs = program.arguments(SIZES[0])
    ran = left_behind(inputs, [wrong(inputs[0])])  # type: ignore[operator]
    assert bool(expected(program, SIZES[0]).difference(ran, memory=True, inputs=True, traced=True)) is seen


def test_perturbation_follows_cancellation() -> None:
    """After a cancellation the error of the operands is all there is, and the rule allows for it."""
    inputs = (Input("x0", "f32", ("n",)),)
    statements = ("t0 = x0.exp()", "t1 = t0 + 100", "t2 = t1 - 100")
    program = Program(1, inputs, statements, ("smooth", "arithmetic", "arithmetic"), ("t2",))
    (allowed, _) = expected(program, SIZES[0]).allowed
    assert 1e-5 < allowed < 1e-3


def test_decisions_see_no_rounding() -> None:
    runs = Runs(_program("x0.tanh()", "smooth"), SIZES[0])
    assert runs.is_unrounded("x0")
    assert not runs.is_unrounded("t0")
    runs.add("t1 = t0[0]", "view")
    assert not runs.is_unrounded("t1")
    runs.add("x0.add_(t0)", "in place")
    assert not runs.is_unrounded("x0")


# ---- failures ----
def test_a_wrong_route_is_caught_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled sums that are one too large: the report names the statement, in a few lines."""

    def wrong(programs: list[Program]) -> object:
        changed = [
            replace(one, statements=tuple(line.replace(".sum(", ".add(1).sum(") for line in one.statements))
            for one in programs
        ]
        return ROUTES["eager"].run(changed)

    monkeypatch.setitem(ROUTES, "compile", replace(ROUTES["compile"], run=wrong, sizes=SIZES))
    seed = next(
        n for n in range(200) if ".sum(" in make(n).source() and failure_of("compile", make(n), judged([make(n)]))
    )
    small = shrunk_failure(seed, "compile")
    assert small is not None
    body = small.text.split("def program")[1].split("    return")[0].splitlines()[1:]
    assert ".sum(" in small.text
    assert len(body) <= 3, small.text


def test_what_pytorch_itself_cannot_export_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes to windows that overlap: torch.export takes them, its functional form does not."""
    monkeypatch.setattr("tests.fuzz.judge.overlaps_itself", lambda tensor: False)
    lines = ("t0 = x0.unfold(1, 2, 1)", "t0.mul_(2)")
    program = Program(1, (Input("x0", "f32", ("n", 6)),), lines, ("view", "in place"), ("t0",))
    outcome = run_batch("export", [program], judged([program]))
    assert (outcome.refused, outcome.failures) == ((1,), ())


def test_what_torchscript_makes_of_two_programs_is_not_ours() -> None:
    """It takes the tensor of the second for the number of the first, and promotes as for a number."""
    inputs = (Input("x0", "f32", ()),)
    number = Program(1, inputs, ("t0 = x0 + 0.5",), ("arithmetic",), ("t0",))
    tensor = Program(2, inputs, ("t0 = x0 + torch.tensor(0.5, dtype=f64)",), ("arithmetic",), ("t0",))
    right = judged([number, tensor])
    outcome = run_batch("jit", [number, tensor], right)
    assert (outcome.refused, outcome.failures) == ((2,), ())
    assert failure_of("jit", tensor, right) is None


def test_a_mistake_put_back_is_found() -> None:
    """Python numbers that do not promote: the 28th program is the first that sees it, on every route that had it."""
    program = make(27)
    right = judged([program])
    with numbers_without_promotion():
        failure = failure_of("compile", program, right)
    assert failure is not None
    assert not failure.raised
    assert failure_of("compile", program, right) is None


def test_a_lost_process_names_its_seed() -> None:
    """A worker that dies is replaced, and what it was at is a failure of that seed alone."""
    outcomes: list[Outcome] = []
    ended: list[Task] = []
    given = [Task((5,), ("no such route",)), Task((7,), ("eager",))]
    Pool(1, 600).run(given, ended.append, outcomes.append)
    lost = {failure.seed: failure.said for one in outcomes for failure in one.failures}
    assert lost == {5: "the process ended by exit status 1"}
    assert any(one.route == "eager" and one.seeds == (7,) and not one.failures for one in outcomes)


@pytest.mark.parametrize(("known", "route"), [(one, route) for one in KNOWN for route in one.routes])
def test_known_differences_are_still_there(known: Known, route: str) -> None:
    program = known.program
    assert left_out(program, route)
    if fails_alone(route, [program], judged([program])):
        pytest.skip(f"PyTorch {torch.__version__} refuses it itself")
    assert failure_of(route, program, judged([program])), f"repaired, so programs may have it again: {known}"
