"""Sums of products that a lowering wrote as a fold, as contractions: depthwise convolutions."""

from __future__ import annotations

from dataclasses import replace

from bringup.graph.bare_metal.static_program import StaticProgram
from bringup.ir.dtypes import DType, float32, float64, int32
from bringup.ir.expr import Binary, Cast, Const, Expr, Load, Name
from bringup.ir.kernel import Contract, Kernel, Reduce, Stmt


def products(program: StaticProgram) -> StaticProgram:
    """Makes contractions of depthwise convolutions."""
    return program.with_kernels(with_contract)


def with_contract(kernel: Kernel) -> Kernel:
    """A kernel whose folds over products are contractions; a float one rounds once where the fold rounded twice.

    >>> with_contract(Kernel("nothing")) == Kernel("nothing")
    True
    """
    return replace(kernel, body=tuple(_contract(stmt) for stmt in kernel.body))


def _contract(stmt: Stmt) -> Stmt:
    if not isinstance(stmt, Reduce) or len(stmt.names) != 1 or stmt.body or stmt.lanes != 1:
        return stmt
    value, init, dtype = stmt.values[0], stmt.inits[0], stmt.values[0].dtype
    left, right = Name(stmt.combine.left[0], dtype), Name(stmt.combine.right[0], dtype)
    adds = stmt.combine.results[0] in (Binary("add", left, right), Binary("add", right, left))
    from_zero = isinstance(init, Const) and init.bits == 0
    if not adds or not from_zero or not isinstance(value, Binary) or value.op != "mul":
        return stmt
    a, b = _factor(value.a, dtype), _factor(value.b, dtype)
    if a is None or b is None or dtype not in (float32, float64, int32):
        return stmt
    return Contract(stmt.names[0], stmt.axes, a, b)


def _factor(expr: Expr, dtype: DType) -> Load | None:
    """A load of the sum's type, or of a smaller one that is made into it."""
    load = expr.x if isinstance(expr, Cast) else expr
    if not isinstance(load, Load) or load.type.accumulate is not dtype:
        return None
    return load
