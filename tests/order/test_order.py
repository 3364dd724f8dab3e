"""Random programs give what they give one step after the other, whatever the order in which the device works.

The programs, their waits and the shrinker are checked without a device; `tests/README.md` says how to run more seeds.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.order.check import OUT_OF_MEMORY, Checker, Finding, shrink
from tests.order.generate import generate
from tests.order.program import ERROR_STREAM, EXPRESSIONS, Program
from tests.order.waits import DONE, HOST, conflicts, ends_on, plan, script, starts_on


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as checker:
        yield checker


def differences(checker: Checker, seeds: range) -> list[str]:
    found = [finding for _, finding in checker.seeds(seeds) if finding]
    starved = [finding for finding in found if finding.text.startswith(OUT_OF_MEMORY)]
    assert len(starved) <= len(seeds) / 10, "out of memory too often: hardly anything was checked"
    wrong = [finding for finding in found if finding not in starved]
    return [checker.shrink(finding, seconds=20).report() for finding in wrong[:3]] + [f.text for f in wrong[3:]]


def test_programs_give_their_sequential_result(checker: Checker) -> None:
    assert not differences(checker, range(60))


@pytest.mark.sweep
@pytest.mark.timeout(1200)
def test_many_programs_give_their_sequential_result(checker: Checker) -> None:
    assert not differences(checker, range(1000, 3000))


def test_a_missing_wait_is_found(checker: Checker) -> None:
    """The same programs without most waits of their streams: the device is asynchronous enough to show it."""
    programs = [generate(seed) for seed in range(2000, 2040)]
    found = [checker.run(program, "kernels", racy=True) for program in programs]
    assert sum(finding is not None for finding in found) >= 10


# ---- without a device ----
def test_a_seed_is_one_program() -> None:
    assert generate(11) == generate(11) != generate(12)
    assert Program.from_json(generate(11).to_json()) == generate(11)
    assert script(generate(11)) == script(Program.from_json(generate(11).to_json()))


def test_programs_use_every_feature() -> None:
    """Also each of the ones in which memory or an error is handed on at the wrong time."""
    ops = [step.op for seed in range(40) for step in generate(seed).steps]
    all_features = {*EXPRESSIONS, "peer", "h2d", "d2h", "replay", "remote", "bad", "drop_graph"}
    assert not {op for op in all_features if ops.count(op) < 8}
    assert len({step.stream for seed in range(5) for step in generate(seed).steps}) == ERROR_STREAM + 1


@pytest.mark.parametrize("dropping", [False, True], ids=["whole", "with steps dropped"])
def test_programs_are_free_of_races(dropping: bool) -> None:
    """For each pair of conflicting steps there is a chain of orders from the end of one to the start of the other."""
    for seed in range(60):
        program = generate(seed)
        if dropping:
            program = program.without(step.number for step in program.steps if (step.number * 7 + seed) % 5 == 0)
        assert not unordered(program), script(program)


def unordered(program: Program) -> list[tuple[int, int, str]]:
    """Returns conflicting pairs without an order, by following orders one by one, as plan() does not."""
    issued: dict[int, set[int]] = {}  # steps certainly issued when this one is
    done: dict[int, set[tuple[int, int]]] = {}  # (step, stream) certainly over before this one starts
    after: dict[int, set[tuple[int, int]]] = {}  # … before anything starts that its stream gets later
    of_stream: dict[int, set[tuple[int, int]]] = {}
    of_thread: dict[int, tuple[set[int], set[tuple[int, int]]]] = {}
    waits, wrong = plan(program), []
    pairs = conflicts(program)
    for step in program.steps:
        known, over = (set(x) for x in of_thread.get(step.thread, (set(), set())))
        for number in waits[step.number].issued:
            known |= issued[number] | {number}
            over |= after[number]
        stream_over = set(over)
        for earlier, ends, where, kind in waits[step.number].queued:
            assert earlier in known, "an event is waited for before it was recorded"
            gained = {(earlier, ends)} | done[earlier]
            if where == HOST or kind == "host":
                over |= gained
            stream_over |= gained
        on_stream = of_stream.setdefault(step.stream, set())
        start = over | stream_over | {(n, s) for n, s in on_stream if n in known}
        for earlier_step, later, name in pairs:
            if later is not step:
                continue
            starts, ends = starts_on(step, name), ends_on(earlier_step, name)
            unissued = earlier_step.thread != step.thread and earlier_step.number not in known
            if unissued or (
                (DONE not in (starts, ends) and starts != ends) and (earlier_step.number, ends) not in start
            ):
                wrong.append((earlier_step.number, step.number, name))
        issued[step.number], done[step.number], after[step.number] = known, start, over
        for name in (*step.reads(), *step.writes()):
            if ends_on(step, name) not in (DONE, HOST):
                of_stream.setdefault(ends_on(step, name), set()).add((step.number, ends_on(step, name)))
        of_thread[step.thread] = (known | {step.number}, over)
    return wrong


def test_a_program_without_its_waits_has_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail."""
    real = plan

    def without_queued_waits(program: Program):
        waits = real(program)
        for w in waits.values():
            w.queued = []
        return waits

    monkeypatch.setitem(globals(), "plan", without_queued_waits)
    assert sum(bool(unordered(generate(seed))) for seed in range(20)) > 10


def test_shrinking_leaves_the_steps_that_matter() -> None:
    """A failure that needs one capture and one replay keeps those, what they need, and nothing else."""
    seed = next(seed for seed in range(100) if any(step.op == "replay" for step in generate(seed).steps))
    program = generate(seed)

    def fails(smaller: Program) -> Finding | None:
        ops = [step.op for step in smaller.steps]
        return Finding("kernels", "0", "wrong", smaller) if "replay" in ops else None

    small = shrink(Finding("kernels", "0", "wrong", program), fails, lambda: False).program
    assert [step.op for step in small.steps].count("replay") == 1
    assert len(small.steps) <= 6
    assert {name for step in small.steps for name in step.inputs} <= {step.output for step in small.steps}
