"""Largest values without their positions: what is left of max pooling when nothing reads the indices."""

from __future__ import annotations

import math
from dataclasses import replace

from bringup.graph.bare_metal.static_program import StaticProgram
from bringup.ir.dtypes import int64
from bringup.ir.expr import Binary, Const, Expr, Name, Unary, Where
from bringup.ir.kernel import Combine, Kernel, Reduce, Stmt
from bringup.ir.walk import all_values


def value_folds(program: StaticProgram) -> StaticProgram:
    """Drops the positions of pooling that nothing reads."""
    return program.with_kernels(without_positions)


def without_positions(kernel: Kernel) -> Kernel:
    """A kernel whose folds keep no position that it does not use.

    >>> without_positions(Kernel("nothing")) == Kernel("nothing")
    True
    """
    used = {part.name for part in all_values(kernel.body) if isinstance(part, Name)}
    return replace(kernel, body=tuple(_shorter(stmt, used) for stmt in kernel.body))


def _shorter(stmt: Stmt, used: set[str]) -> Stmt:
    if not isinstance(stmt, Reduce) or len(stmt.names) != 2 or stmt.names[1] in used or not _first_best(stmt):
        return stmt
    (left, _), (right, _) = stmt.combine.left, stmt.combine.right
    dtype = stmt.inits[0].dtype
    # A value that is larger, or NaN, replaces the old one: also the first one does, as the old one is -inf then.
    larger = Binary("max", Name(right, dtype), Name(left, dtype))
    return replace(
        stmt,
        names=stmt.names[:1],
        values=stmt.values[:1],
        inits=stmt.inits[:1],
        combine=Combine((left,), (right,), (larger,)),
    )


def _first_best(stmt: Reduce) -> bool:
    """True for the fold that lowering/ops/pooling.py writes: the first largest value and its position."""
    (a, at), (b, bt) = stmt.combine.left, stmt.combine.right
    dtype = stmt.inits[0].dtype
    old, new = Name(a, dtype), Name(b, dtype)
    none = Binary("lt", Name(at, int64), _ZERO)
    some = Binary("ge", Name(bt, int64), _ZERO)
    take: Expr = Binary("or", Binary("gt", new, old), Binary("and", none, some))
    take = Binary("or", take, Unary("isnan", new))
    lowest = isinstance(stmt.inits[0], Const) and stmt.inits[0].value == -math.inf
    return lowest and stmt.combine.results == (
        Where(take, new, old),
        Where(take, Name(bt, int64), Name(at, int64)),
    )


_ZERO = Const(0, int64)
