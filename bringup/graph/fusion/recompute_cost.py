"""Estimates the cost of recomputing a value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bringup.ir.expr import AsIndex, Binary, Cast, Const, Expr, Load, Name, Param, Philox, Unary
from bringup.ir.index import atoms
from bringup.ir.ops import BINARY, UNARY
from bringup.ir.walk import indices_of, subexpressions


@dataclass(frozen=True)
class Weight:
    """Operations and loads of a value; ``expensive``: it holds a function, a random draw, a division or a gather."""

    operations: int
    loads: int
    expensive: bool


def weight(values: Iterable[Expr], slow: frozenset[str]) -> Weight:
    """What some values cost together; ``slow`` names ops that a target is slow at.

    >>> from bringup.ir.dtypes import float32
    >>> weight([Param("a", float32) + 1.0], frozenset())
    Weight(operations=1, loads=0, expensive=False)
    """
    operations, expensive = 0, False
    loads: set[Load] = set()
    for value in values:
        for part in subexpressions(value):
            if isinstance(part, Load):
                loads.add(part)
            elif not isinstance(part, (Const, Param, Name)):
                operations += 1
            op = UNARY[part.op] if isinstance(part, Unary) else BINARY[part.op] if isinstance(part, Binary) else None
            if isinstance(part, Cast) and part.type.is_half:  # rounded by a dozen integer operations
                expensive = True
            if isinstance(part, Philox) or (op is not None and (op.transcendental or op.name in slow)):
                expensive = True
            if any(isinstance(atom, AsIndex) for index in indices_of(part) for atom in atoms(index)):
                expensive = True
    return Weight(operations, len(loads), expensive)
