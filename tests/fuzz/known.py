"""Differences that are known and not repaired: programs avoid exactly these constructs, and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """A construct that programs leave out, and a program that shows why: a test fails once it no longer does."""

    pattern: str
    route: str
    statement: str
    reason: str


KNOWN: tuple[Known, ...] = ()


def avoided(line: str) -> bool:
    """Whether a statement has a construct of the list."""
    return any(re.search(one.pattern, line) for one in KNOWN)
