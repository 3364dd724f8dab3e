"""Differences that are known and not repaired: programs with exactly these constructs do not take these routes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.fuzz.program import Input, Program


@dataclass(frozen=True)
class Known:
    """A construct that routes leave out, and a program that shows why: a test fails once it no longer does."""

    pattern: str
    routes: tuple[str, ...]
    program: Program
    reason: str


KNOWN: tuple[Known, ...] = (
    Known(
        r"\[p0\[0\]\]",
        ("export",),
        Program(
            1,
            (Input("x0", "f32", (3, 4)), Input("p0", "torch.int64", (3,))),
            ("t0 = x0[p0[0]]",),
            ("index",),
            ("t0",),
        ),
        "torch.export makes it a view whose offset only the data know, which a file cannot hold: an ExportError",
    ),
)


def left_out(program: Program, route: str) -> bool:
    """Whether a program has a construct of the list for this route."""
    return any(
        route in one.routes and any(re.search(one.pattern, line) for line in program.statements) for one in KNOWN
    )
