"""What a guard says about indices: comparisons of index values, joined by ``and``, as inequalities for proofs."""

from __future__ import annotations

from bringup.ir.dtypes import int64
from bringup.ir.expr import Binary, Const, Expr, IndexValue
from bringup.ir.index import Index, Int


def index_of(expr: Expr) -> Index | None:
    """The index that an int64 value is, if it is one.

    >>> from bringup.ir.dtypes import int64
    >>> index_of(Const(3, int64))
    Int(value=3)
    """
    if isinstance(expr, IndexValue):
        return expr.index
    if isinstance(expr, Const) and expr.type is int64:
        return Int(int(expr.value))
    return None


def conjuncts(guard: Expr) -> list[Expr]:
    """The parts that must all hold."""
    if isinstance(guard, Binary) and guard.op in ("and", "mul"):
        return conjuncts(guard.a) + conjuncts(guard.b)
    return [guard]


def guard_facts(guard: Expr | None) -> tuple[Index, ...]:
    """Indices that are ≥ 0 wherever the guard holds; parts that say nothing about indices are passed over.

    >>> from bringup.ir.index import AxisVar, Size
    >>> guard_facts(Binary("lt", IndexValue(AxisVar("i")), IndexValue(Size("n")))) == (Size("n") - AxisVar("i") - 1,)
    True
    """
    return () if guard is None else tuple(fact for part in conjuncts(guard) for fact in comparison(part))


def comparison(guard: Expr) -> tuple[Index, ...]:
    """Indices that are ≥ 0 where a comparison of indices holds; none if it is not one."""
    if not isinstance(guard, Binary):
        return ()
    a, b = index_of(guard.a), index_of(guard.b)
    if a is None or b is None:
        return ()
    terms = {"lt": (b - a - 1,), "le": (b - a,), "gt": (a - b - 1,), "ge": (a - b,), "eq": (a - b, b - a)}
    return terms.get(guard.op, ())


def within(index: Index, extent: Index) -> Expr:
    """The guard 0 ≤ index < extent, for padded access.

    >>> from bringup.ir.index import AxisVar, Size
    >>> len(guard_facts(within(AxisVar("i") - 1, Size("n"))))
    2
    """
    low = Binary("ge", IndexValue(index), IndexValue(Int(0)))
    return Binary("and", low, Binary("lt", IndexValue(index), IndexValue(extent)))
