"""Which axis runs in vectors: decided for a whole kernel from the strides of its loads and stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from bringup.ir.expr import Binary, Expr, Name, Philox, Unary
from bringup.ir.index import AxisVar, Index, Int, axes_in, coefficient
from bringup.ir.kernel import (
    Block,
    Buffer,
    Contract,
    Kernel,
    Let,
    Loop,
    Reduce,
    Scan,
    Stmt,
    Store,
    axes_of,
    binds,
    blocks_of,
    offset_of,
    statements,
)
from bringup.ir.ops import BINARY, UNARY
from bringup.ir.walk import accesses, axes_inside, bridges, indices_of, operands, own_values, subexpressions
from bringup.targets.c.expr import draws_in_a_row, index_order
from bringup.targets.c.options import COptions

_PRIVATE_LIMIT = 1 << 16  # bytes of Locals when each lane has its own: they stay in the second-level cache
_CHEAP_NODES = 40  # operations in a loop body that is written out twice: whole vectors, and the rest

Style = Literal["scalar", "grid", "rows"]


@dataclass(frozen=True)
class Plan:
    """``grid``: the innermost grid axis runs in vectors. ``rows``: each reduction and parallel loop inside does."""

    style: Style
    one_unit: bool
    """Stores whose order has a meaning: the whole grid is one work unit."""


def plan(kernel: Kernel, target: COptions) -> Plan:
    """How to render a kernel."""
    one_unit = any(stmt.mode != "unique" for stmt in statements(kernel.body) if isinstance(stmt, Store))
    if target.vector_bytes == 0:
        return Plan("scalar", one_unit)
    grid, rows = _grid_allowed(kernel, target), _rows(kernel)
    if grid and _only_scatters(kernel):
        return Plan("scalar", one_unit)
    if not rows:
        return Plan("grid" if grid else "scalar", one_unit)
    if not grid:
        return Plan("rows", one_unit)
    inner = kernel.axes[-1].name
    spread_rows = sum(_spread(kernel, stmt, axes_of(stmt)[-1].name) for stmt in rows)
    spread_grid = sum(_spread(kernel, stmt, inner) for stmt in rows)
    return Plan("rows" if spread_rows <= spread_grid else "grid", one_unit)


def _grid_allowed(kernel: Kernel, target: COptions) -> bool:
    if not kernel.axes or kernel.axes[-1].extent == Int(1):
        return False
    inside = [s for stmt in kernel.body for block in blocks_of(stmt) for s in statements(block)]
    if any(isinstance(stmt, Store) and stmt.mode != "unique" for stmt in inside):
        return False
    if any(isinstance(stmt, Loop) and stmt.count is not None for stmt in statements(kernel.body)):
        return False  # each grid point ends its loops on its own
    scratch = sum(local.nbytes for local in kernel.locals)
    return scratch * target.vector_bytes // 4 <= _PRIVATE_LIMIT


def _only_scatters(kernel: Kernel) -> bool:
    """True if lanes of the grid would store by index, one after the other, and load nothing side by side either.

    scatter_add along rows of 1,000 × 1,000: 0.7 of ATen's time one after the other, 3.4 in lanes.
    """
    stores = [stmt for stmt in statements(kernel.body) if isinstance(stmt, Store)]
    by_index = [s for s in stores if any(True for index in s.indices for _ in bridges(index))]
    inside = [stmt for stmt in kernel.body if isinstance(stmt, Loop)]
    if not by_index or not inside:
        return False
    touched = [a for a in accesses(kernel.body) if isinstance(kernel.buffer(a[0]), Buffer)]
    return _spread_of(kernel, touched, kernel.axes[-1].name) == len(touched)


def _rows(kernel: Kernel) -> list[Stmt]:
    """The statements that could run in vectors on their own."""
    return [stmt for stmt in statements(kernel.body) if vectorisable(stmt)]


def vectorisable(stmt: Stmt) -> bool:
    """True if the innermost axis of a statement may run in vectors, and nothing inside it would do so better.

    >>> from bringup.ir.kernel import Axis
    >>> vectorisable(Loop(Axis("j", Int(4)), ())), vectorisable(Loop(Axis("j", Int(4), "sequential"), ()))
    (True, False)
    """
    if isinstance(stmt, (Reduce, Contract)):
        return stmt.lanes > 1 and not any(vectorisable(s) for b in blocks_of(stmt) for s in statements(b))
    if not isinstance(stmt, Loop) or stmt.axis.kind != "parallel":
        return False
    inside = list(statements(stmt.body))
    if any(vectorisable(inner) for inner in inside):
        return False
    if any(isinstance(inner, Loop) and inner.count is not None for inner in inside):
        return False
    deeper = [s for inner in stmt.body for block in blocks_of(inner) for s in statements(block)]
    return not any(isinstance(s, Store) and s.mode != "unique" for s in deeper)


def _spread(kernel: Kernel, stmt: Stmt, axis: str) -> int:
    """How many accesses of a statement are neither contiguous nor constant along an axis."""
    return _spread_of(kernel, accesses((stmt,)), axis)


def _spread_of(kernel: Kernel, found: Iterable[tuple[str, tuple[Index, ...]]], axis: str) -> int:
    count = 0
    for buffer, indices in found:
        memory = kernel.buffer(buffer)
        if not isinstance(memory, Buffer):
            continue
        scale, rest = coefficient(offset_of(memory, indices), AxisVar(axis))
        free = axis not in axes_in(scale) and axis not in axes_inside(rest)
        count += not (free and scale in (Int(0), Int(1)))
    return count


def widest_bits(block: Block, values: Iterable[Expr], axis: str) -> int:
    """32 or 64: the widest value that differs between steps of an axis, which decides the number of lanes.

    >>> from bringup.ir.expr import IndexValue
    >>> widest_bits((), [IndexValue(AxisVar("j"))], "j")
    64
    """
    changing: set[str] = set()

    def changes(expr: Expr) -> bool:
        for part in subexpressions(expr):
            if isinstance(part, Name) and part.name in changing:
                return True
            if any(axis in axes_in(index) for index in indices_of(part)):
                return True
        return False

    wide = False
    roots = list(values)
    for stmt in statements(block):
        own = own_values(stmt)
        if isinstance(stmt, Let):
            if changes(stmt.value):
                changing.add(stmt.name)
        else:
            changing.update(binds(stmt))
            if isinstance(stmt, (Reduce, Scan)):
                changing.update((*stmt.names, *stmt.combine.left, *stmt.combine.right))
            # A variable of a statement has a value for each lane, whether or not it varies.
            wide = wide or (stmt.dtype.size == 8 if isinstance(stmt, Contract) else any(v.dtype.size == 8 for v in own))
        roots.extend(own)
    wide = wide or any(part.dtype.size == 8 and changes(part) for root in roots for part in _computed(root, axis))
    return 64 if wide else 32


def _computed(expr: Expr, axis: str) -> Iterator[Expr]:
    """A value and those inside it that become vectors: neither the sides of a comparison of indices nor the numbers of
    draws that follow each other."""
    yield expr
    if isinstance(expr, Binary) and index_order(expr, axis) is not None:
        return
    if isinstance(expr, Philox) and draws_in_a_row(expr, axis) is not None:
        return
    for operand in operands(expr):
        yield from _computed(operand, axis)


def cheap(block: Block, values: Iterable[Expr]) -> bool:
    """True for straight-line code of few operations: worth writing out twice."""
    nodes = 0
    for root in (*values, *(value for stmt in statements(block) for value in own_values(stmt))):
        for part in subexpressions(root):
            nodes += 1
            if isinstance(part, Unary) and UNARY[part.op].transcendental:
                return False
            if isinstance(part, Binary) and (BINARY[part.op].transcendental or part.op in ("fmod", "remainder")):
                return False
    return nodes <= _CHEAP_NODES and all(isinstance(stmt, (Let, Store)) for stmt in statements(block))
