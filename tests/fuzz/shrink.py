"""Makes a failing program small: statements, outputs and inputs go while it still fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.generate import make
from tests.fuzz.judge import Unsuitable
from tests.fuzz.program import Program
from tests.fuzz.worker import Failure, failure_of, judged


def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Returns a program that still fails, of which no statement and no output can be left out."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(program):
            try:
                failed = fails(candidate)
            except (Unsuitable, NameError):
                continue
            if failed:
                program, smaller = candidate, True
                break
    return _without_unused_inputs(program)


def shrunk_failure(seed: int, route: str) -> Failure | None:
    """Returns the failure of a seed with its program made small; None if it does not fail."""
    program = make(seed)
    said = failure_of(route, program, judged([program]))
    if said is None:
        return None

    def fails(candidate: Program) -> bool:
        found = failure_of(route, candidate, judged([candidate]))
        # One that raises is not made small to one with a wrong number, nor to one that raises something else.
        return found is not None and (found.raised, found.kind) == (said.raised, said.kind)

    small = shrunk(program, fails)
    found = failure_of(route, small, judged([small]))
    return None if found is None else replace(found, text=small.text())


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with less in them, the largest cuts first."""
    for name in program.returned:
        if len(program.returned) > 1:
            yield without_unused(replace(program, returned=(name,)))
    for n in range(len(program.returned)):
        if len(program.returned) > 2:
            yield without_unused(replace(program, returned=program.returned[:n] + program.returned[n + 1 :]))
    for n in reversed(range(len(program.statements))):
        yield _without(program, n)
        # What a statement made may be returned in place of what was made of it.
        if (made := re.match(r"(t\d+) = ", program.statements[n])) and program.returned != (made[1],):
            kept = replace(program, statements=program.statements[: n + 1], kinds=program.kinds[: n + 1])
            yield without_unused(replace(kept, returned=(made[1],)))


def _without(program: Program, index: int) -> Program:
    kept = [n for n in range(len(program.statements)) if n != index]
    return replace(
        program,
        statements=tuple(program.statements[n] for n in kept),
        kinds=tuple(program.kinds[n] for n in kept),
    )


def without_unused(program: Program) -> Program:
    """Returns the program without variables that nothing uses."""
    while True:
        for n, line in enumerate(program.statements):
            made = re.match(r"(t\d+) = ", line)
            rest = "\n".join([*program.statements[n + 1 :], *program.returned])
            if made and not re.search(r"_\(", line) and not re.search(rf"\b{made[1]}\b", rest):
                program = _without(program, n)
                break
        else:
            return program


def _without_unused_inputs(program: Program) -> Program:
    text = "\n".join([*program.statements, *program.returned])
    used = tuple(one for one in program.inputs if re.search(rf"\b{one.name}\b", text))
    return replace(program, inputs=used)
