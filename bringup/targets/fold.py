"""What Reduce and Contract have in common, for the code that folds: values at a position, one step, and the join."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bringup.ir.expr import Binary, Cast, Expr, Fma, Name, const
from bringup.ir.kernel import Axis, Block, Combine, Contract, Reduce


@dataclass(frozen=True)
class Fold:
    """``step`` takes the state (left) and the values at a position (right); ``join`` takes two states."""

    names: tuple[str, ...]
    axes: tuple[Axis, ...]
    body: Block
    values: tuple[Expr, ...]
    inits: tuple[Expr, ...]
    step: Combine
    join: Combine
    lanes: int
    last: Expr | None = None
    """Added to the one result at the end."""


def fold_of(stmt: Reduce | Contract) -> Fold:
    """The fold of a statement.

    >>> from bringup.ir.dtypes import float32
    >>> from bringup.ir.expr import Param
    >>> x = Param("x", float32)
    >>> fold_of(Contract("dot", (), x, x)).inits[0].value
    0.0
    """
    if isinstance(stmt, Reduce):
        parts = (stmt.names, stmt.axes, stmt.body, stmt.values, stmt.inits, stmt.combine, stmt.combine, stmt.lanes)
        return Fold(*parts)
    dtype = stmt.dtype
    # A space is in no name of the IR, so these meet none of the kernel's.
    total, other, a, b = (Name(f"{stmt.name} {part}", dtype) for part in ("sum", "other", "a", "b"))
    product: Expr = Fma(a, b, total) if stmt.fused and dtype.is_float else Binary("add", Binary("mul", a, b), total)
    fold = Fold(
        names=(stmt.name,),
        axes=stmt.axes,
        body=(),
        values=tuple(e if e.dtype == dtype else Cast(e, dtype) for e in (stmt.a, stmt.b)),
        inits=(const(0, dtype),),
        step=Combine((total.name,), (a.name, b.name), (product,)),
        join=Combine((total.name,), (other.name,), (Binary("add", total, other),)),
        lanes=stmt.lanes,
    )
    if stmt.init is None:
        return fold
    return replace(fold, inits=(stmt.init,)) if stmt.lanes == 1 else replace(fold, last=stmt.init)
