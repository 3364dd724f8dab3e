"""Simplification that keeps every bit: constants, indices, exact identities, shared values, dead statements.

>>> from bringup.ir.parser import parse
>>> from bringup.ir.printer import kernel_text
>>> k = parse("kernel k out y: float32[4] strides [1] grid i < 4 "
...           "{ store y[((i + 4) % 4)] = (float32(1.5) + float32(2.0)) }")
>>> print(kernel_text(simplify(k)).splitlines()[-2].strip())
store y[i] = float32(3.5)
"""

from __future__ import annotations

from dataclasses import replace

from bringup.ir.dtypes import boolean, int64
from bringup.ir.expr import AsIndex, Binary, Const, Expr, IndexValue, Load, Name, Param, const
from bringup.ir.fold_values import fold_value, may_raise
from bringup.ir.guards import index_of
from bringup.ir.index import Index, Int, rebuild
from bringup.ir.index_proof import Facts
from bringup.ir.kernel import Axis, Block, Kernel, Let, Loop, Reduce, Scan, Stmt, Store, axes_of, binds, statements
from bringup.ir.share import share
from bringup.ir.walk import Substitution, all_values, own_values, rewrite, rewrite_inside


class _Folder:
    """Folds the values and indices of a block under the facts that hold there."""

    def __init__(self, facts: Facts, names: dict[str, Expr], outputs: frozenset[str]):
        self.facts = facts
        self.outputs = outputs  # their stores stay, even one that never happens: the verifier wants one
        self.names = names  # Lets of a constant, a param or another name: replaced where they are used

    def inside(self, axes: tuple[Axis, ...]) -> _Folder:
        return _Folder(self.facts.with_axes({axis.name: axis.extent for axis in axes}), self.names, self.outputs)

    def index(self, index: Index) -> Index:
        return self.facts.simplify(rebuild(index, self._atom))

    def _atom(self, atom: Index) -> Index:
        if not isinstance(atom, AsIndex):
            return atom
        value, extent = self.value(atom.value), self.facts.simplify(atom.extent)
        known = value.index if isinstance(value, IndexValue) else None
        known = Int(int(value.value)) if isinstance(value, Const) else known
        if known is not None and self.facts.in_range(known, extent):
            return known
        return AsIndex(value, extent, atom.mode)

    def value(self, expr: Expr) -> Expr:
        if isinstance(expr, Name):
            return self.names.get(expr.name, expr)
        new = rewrite(expr, self.value, self.index)
        if isinstance(new, IndexValue) and isinstance(new.index, Int):
            return const(new.index.value, int64)
        if isinstance(new, Binary):
            decided = self._compare(new)
            if decided is not None:
                return decided
        return fold_value(new)

    def _compare(self, expr: Binary) -> Expr | None:
        """A comparison of indices that the facts decide."""
        a, b = index_of(expr.a), index_of(expr.b)
        if a is None or b is None:
            return None
        facts = self.facts
        if expr.op in ("gt", "ge"):
            a, b = b, a
        if expr.op in ("lt", "gt"):
            yes, no = facts.always_less(a, b), facts.always_at_most(b, a)
        elif expr.op in ("le", "ge"):
            yes, no = facts.always_at_most(a, b), facts.always_less(b, a)
        elif expr.op in ("eq", "ne"):
            yes, no = a == b, facts.always_less(a, b) or facts.always_less(b, a)
            yes, no = (yes, no) if expr.op == "eq" else (no, yes)
        else:
            return None
        return const(yes, boolean) if yes or no else None

    def block(self, block: Block) -> Block:
        return tuple(new for stmt in block for new in self.stmt(stmt))

    def stmt(self, stmt: Stmt) -> tuple[Stmt, ...]:
        if isinstance(stmt, Let):
            value = self.value(stmt.value)
            if isinstance(value, (Const, Param, Name)):
                self.names[stmt.name] = value
                return ()
            return (Let(stmt.name, value),)
        if isinstance(stmt, Store):
            guard = None if stmt.guard is None else self.value(stmt.guard)
            if isinstance(guard, Const):
                if not guard.value and stmt.buffer not in self.outputs:
                    return ()
                guard = None if guard.value else guard
            indices = tuple(self.index(index) for index in stmt.indices)
            return (replace(stmt, indices=indices, value=self.value(stmt.value), guard=guard),)
        inner = self.inside(axes_of(stmt))
        return (rewrite_inside(stmt, self.value, inner.value, inner.block),)


def _checks(stmt: Stmt) -> bool:
    """True if a statement may raise an IndexError: then it is not dead."""
    return any(may_raise(value) for value in own_values(stmt))


def _without_dead(kernel: Kernel) -> Kernel:
    loaded = {part.buffer for part in all_values(kernel.body) if isinstance(part, Load)}
    used = {part.name for part in all_values(kernel.body) if isinstance(part, Name)}
    scratch = {local.name for local in kernel.locals}

    def alive(stmt: Stmt) -> bool:
        if isinstance(stmt, Store):
            return stmt.buffer not in scratch or stmt.buffer in loaded or _checks(stmt)
        inside = [inner for inner in statements((stmt,)) if inner is not stmt]
        if any(isinstance(inner, Store) for inner in inside):
            return True
        return any(name in used for name in binds(stmt)) or any(_checks(inner) for inner in (stmt, *inside))

    def clean(block: Block) -> Block:
        kept: list[Stmt] = []
        for stmt in block:
            if isinstance(stmt, (Loop, Reduce)):
                stmt = replace(stmt, body=clean(stmt.body))
            elif isinstance(stmt, Scan):
                stmt = replace(stmt, body=clean(stmt.body), then=clean(stmt.then))
            if alive(stmt):
                kept.append(stmt)
        return tuple(kept)

    kernel = replace(kernel, body=clean(kernel.body))
    touched = kernel.written | loaded
    return replace(kernel, locals=tuple(x for x in kernel.locals if x.name in touched))


def simplify(kernel: Kernel) -> Kernel:
    """The same kernel, shorter; the interpreter gives the same bits for both. Signature and names of axes stay."""
    facts = Facts(sizes={size.name: (size.low, size.high) for size in kernel.sizes})
    facts = facts.with_axes({axis.name: axis.extent for axis in kernel.axes})
    outputs = frozenset(buffer.name for buffer in kernel.buffers if buffer.role == "out")
    for _ in range(8):  # a fixed point after two or three rounds
        before = kernel
        names: dict[str, Expr] = {}
        body = _Folder(facts, names, outputs).block(kernel.body)
        kernel = _without_dead(replace(kernel, body=Substitution(names=names).block(body)))
        if kernel == before:
            break
    return share(kernel)
