"""What fusion takes and gives: launches and other steps in order, why two are one kernel now, or are not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from bringup.lowering.call import LoweredLaunch
from bringup.lowering.call import Memory as Memory


class Rule(str, Enum):
    """Why two steps stay apart; docs/rules.md says more about each."""

    LOOPS = "same loops"
    RECOMPUTE = "nothing expensive twice"
    ORDER = "order of writes"
    SIZES = "sizes proved equal"
    SCRATCH = "scratch memory"
    LIMITS = "size of a kernel"


@dataclass(frozen=True)
class Opaque:
    """A step that is not a kernel (an eager op): nothing moves across it on the allocations that it touches."""

    reads: frozenset[Memory]
    writes: frozenset[Memory]
    label: str


Step: TypeAlias = LoweredLaunch | Opaque


@dataclass(frozen=True)
class Decision:
    """Two steps, whether they became one kernel, and the rule that decided, in words."""

    producer: str
    consumer: str
    memory: Memory | None
    fused: bool
    rule: Rule
    reason: str
    #: The last step of each, as a number of the steps that fusion was given.
    steps: tuple[int, int] = (-1, -1)


@dataclass(frozen=True)
class Fused:
    """The new steps; ``origins[n]`` are the numbers of the given steps that step n is made of."""

    steps: tuple[Step, ...]
    decisions: tuple[Decision, ...]
    origins: tuple[tuple[int, ...], ...]


class Refused(Exception):
    """Two steps stay apart, by a rule."""

    def __init__(self, rule: Rule, reason: str) -> None:
        super().__init__(reason)
        self.rule, self.reason = rule, reason


def need(good: bool, rule: Rule, reason: str) -> None:
    """Refuses unless ``good``.

    >>> need(True, Rule.LOOPS, "never seen")
    """
    if not good:
        raise Refused(rule, reason)
