"""Differences that are known and not repaired: programs avoid exactly these constructs, and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.fuzz.program import Input, Program


@dataclass(frozen=True)
class Known:
    """A construct that programs leave out, and a program that shows why: a test fails once it no longer does."""

    pattern: str
    route: str
    program: Program
    reason: str


KNOWN: tuple[Known, ...] = (
    Known(
        r"F\.one_hot",
        "export",
        Program(1, (Input("p0", "torch.int64", (3,)),), ("t0 = F.one_hot(p0, 3)",), ("integer",), ("t0",)),
        "aten::_assert_async, which checks the classes, has no kernel: the export says so",
    ),
)


def avoided(line: str) -> bool:
    """Whether a statement has a construct of the list."""
    return any(re.search(one.pattern, line) for one in KNOWN)
