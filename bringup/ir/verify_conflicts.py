"""The verifier's rules for memory that is written: no two parallel steps meet on an element, no read races a write."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.ir.expr import Load
from bringup.ir.index import Index, axes_in
from bringup.ir.index_proof import Facts
from bringup.ir.injective import disjoint, injective
from bringup.ir.kernel import Axis, Block, Buffer, Kernel, Stmt, Store, axes_of, blocks_of
from bringup.ir.verify_error import VerifyError
from bringup.ir.walk import bridges, own_values, subexpressions


@dataclass(frozen=True)
class _Access:
    """One Load or Store, with the axes around it, outermost first."""

    buffer: str
    indices: tuple[Index, ...]
    axes: tuple[Axis, ...]
    stmt: Stmt
    store: Store | None


def _accesses(block: Block, axes: tuple[Axis, ...], out: list[_Access]) -> None:
    for stmt in block:
        inner = axes + axes_of(stmt)
        values = list(own_values(stmt))
        loads = {part for value in values for part in subexpressions(value) if isinstance(part, Load)}
        out.extend(_Access(load.buffer, load.indices, inner, stmt, None) for load in loads)
        if isinstance(stmt, Store):
            out.append(_Access(stmt.buffer, stmt.indices, inner, stmt, stmt))
        for block_inside in blocks_of(stmt):
            _accesses(block_inside, inner, out)


def _parallel(kernel: Kernel, access: _Access) -> list[str]:
    """The axes whose steps may run at the same time on this memory: a Local has the grid to itself."""
    private = not isinstance(kernel.buffer(access.buffer), Buffer)
    grid = set() if not private else {axis.name for axis in kernel.axes}
    return [axis.name for axis in access.axes if axis.kind == "parallel" and axis.name not in grid]


def _facts(kernel: Kernel, *accesses: _Access) -> Facts:
    sizes = {size.name: (size.low, size.high) for size in kernel.sizes}
    axes = {axis.name: axis.extent for access in accesses for axis in access.axes}
    return Facts(sizes=sizes).with_axes(axes)


def _apart(kernel: Kernel, a: _Access, b: _Access) -> bool:
    """True if parallel steps never meet: where both indices agree, they tell the common parallel axes apart."""
    common = [name for name in _parallel(kernel, a) if name in _parallel(kernel, b)]
    if not common:
        return True
    facts = _facts(kernel, a, b)
    shared = set(common)
    pinned = [x for x, y in zip(a.indices, b.indices) if x == y and axes_in(x) <= shared and not bridges(x)]
    return injective(pinned, common, facts) or disjoint(a.indices, b.indices, facts)


def check_conflicts(kernel: Kernel) -> None:
    """Raises VerifyError for a unique store that is not proved unique, and for reads and writes that may meet."""
    found: list[_Access] = []
    _accesses(kernel.body, kernel.axes, found)
    stores = [access for access in found if access.store]
    for access in stores:
        store = access.store
        assert store is not None
        others = [other for other in found if other.buffer == access.buffer and other is not access]
        if store.mode != "unique":
            if others:
                text = f"{access.buffer} is touched elsewhere too, next to an {store.mode} store"
                raise VerifyError(kernel, access.stmt, "conflict", text)
            continue
        if not injective(access.indices, _parallel(kernel, access), _facts(kernel, access)):
            text = f"not proved that each step stores to its own element of {access.buffer}; declare ordered or atomic"
            raise VerifyError(kernel, access.stmt, "conflict", text)
        for other in others:
            same = access.indices == other.indices and access.axes == other.axes
            if not same and not _apart(kernel, access, other):
                what = "store to" if other.store else "read of"
                text = f"this {what} {access.buffer} may meet the store of another parallel step"
                raise VerifyError(kernel, other.stmt, "conflict", text)
