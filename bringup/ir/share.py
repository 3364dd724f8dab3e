"""Common subexpressions: a value that a block computes twice gets a name and is computed once.

Values are shared inside one block only, nothing moves into or out of a loop. Reads of written memory stay where they
are, and so do guards about indices, which the verifier reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bringup.ir.expr import AsIndex, Binary, Bits, Cast, Expr, Fma, Load, Name, Param, Philox, Unary, Where
from bringup.ir.fold_values import may_raise
from bringup.ir.guards import guard_facts
from bringup.ir.index import Index, rebuild
from bringup.ir.kernel import Block, Contract, Kernel, Let, Loop, Reduce, Scan, Stmt, Store, axes_of, statements
from bringup.ir.walk import bridges, indices_of, operands, rewrite, subexpressions


def bound_names(kernel: Kernel) -> set[str]:
    """Every name that a kernel binds or declares.

    >>> sorted(bound_names(Kernel("k", body=(Let("t", None),))))
    ['t']
    """
    names = {x.name for x in kernel.sizes} | {x.name for x in kernel.params} | {x.name for x in kernel.memories}
    names |= {axis.name for axis in kernel.axes}
    for stmt in statements(kernel.body):
        names |= {axis.name for axis in axes_of(stmt)}
        if isinstance(stmt, (Let, Contract)):
            names.add(stmt.name)
        elif isinstance(stmt, Loop):
            names |= set(stmt.carried)
        elif isinstance(stmt, (Reduce, Scan)):
            names |= {*stmt.names, *stmt.combine.left, *stmt.combine.right}
    return names


@dataclass
class _Sharer:
    written: frozenset[str]
    taken: set[str]
    count: int = 0

    def fresh(self) -> str:
        while True:
            name = f"v{self.count}"
            self.count += 1
            if name not in self.taken:
                self.taken.add(name)
                return name

    def shareable(self, expr: Expr) -> bool:
        if not isinstance(expr, (Unary, Binary, Fma, Where, Cast, Bits, Philox, Load)):
            return False
        parts = list(subexpressions(expr))
        if any(isinstance(part, Load) and part.buffer in self.written for part in parts) or guard_facts(expr):
            return False
        return any(isinstance(part, (Load, Name, Param)) for part in parts)

    def repeated(self, roots: Iterable[tuple[Expr, bool]]) -> set[Expr]:
        """The values that occur at least twice; one that may raise must also occur outside every guard."""
        seen: dict[Expr, int] = {}
        open_: set[Expr] = set()

        def visit(expr: Expr, guarded: bool) -> None:
            if not guarded:
                open_.add(expr)
            seen[expr] = seen.get(expr, 0) + 1
            if seen[expr] > 1:
                return  # what is inside is counted once: it will be computed once
            inner = guarded or (isinstance(expr, Load) and expr.guard is not None)
            for index in indices_of(expr):
                for bridge in bridges(index):
                    visit(bridge.value, inner)
            for operand in operands(expr):
                visit(operand, guarded)

        for root, guarded in roots:
            visit(root, guarded)
        return {e for e, n in seen.items() if n > 1 and self.shareable(e) and (e in open_ or not may_raise(e))}

    def block(self, block: Block, roots: tuple[Expr, ...] = ()) -> tuple[Block, tuple[Expr, ...]]:
        """A block and the values evaluated at its end."""
        own: list[tuple[Expr, bool]] = []
        for stmt in block:
            own += self.roots(stmt)
        own += [(root, False) for root in roots]
        repeated = self.repeated(own)
        names: dict[Expr, Name] = {}
        out: list[Stmt] = []

        def value(expr: Expr) -> Expr:
            if expr in names:
                return names[expr]
            new = rewrite(expr, value, index)
            if expr in repeated:
                names[expr] = Name(self.fresh(), expr.dtype)
                out.append(Let(names[expr].name, new))
                return names[expr]
            return new

        def index(place: Index) -> Index:
            def atom(at: Index) -> Index:
                return AsIndex(value(at.value), at.extent, at.mode) if isinstance(at, AsIndex) else at

            return rebuild(place, atom)

        for stmt in block:
            if isinstance(stmt, Let) and stmt.value in repeated and stmt.value not in names:
                inner = rewrite(stmt.value, value, index)
                names[stmt.value] = Name(stmt.name, stmt.value.dtype)  # it has a name already
                out.append(Let(stmt.name, inner))
                continue
            if isinstance(stmt, Let):
                out.append(Let(stmt.name, value(stmt.value)))
            elif isinstance(stmt, Store):
                guard = None if stmt.guard is None else value(stmt.guard)
                indices = tuple(index(place) for place in stmt.indices)
                out.append(replace(stmt, guard=guard, indices=indices, value=value(stmt.value)))
            elif isinstance(stmt, Contract):
                out.append(replace(stmt, init=None if stmt.init is None else value(stmt.init)))
            elif isinstance(stmt, Loop):
                inits = tuple(value(init) for init in stmt.inits)
                count = None if stmt.count is None else value(stmt.count)
                body, updates = self.block(stmt.body, stmt.updates)
                out.append(replace(stmt, inits=inits, body=body, updates=updates, count=count))
            else:
                inits = tuple(value(init) for init in stmt.inits)
                body, values = self.block(stmt.body, stmt.values)
                new = replace(stmt, inits=inits, body=body, values=values)
                out.append(replace(new, then=self.block(new.then)[0]) if isinstance(new, Scan) else new)
        ends = tuple(value(root) for root in roots)
        return tuple(out), ends

    @staticmethod
    def roots(stmt: Stmt) -> list[tuple[Expr, bool]]:
        """The values a statement evaluates in its own block, and whether a guard stands before them."""
        if isinstance(stmt, Let):
            return [(stmt.value, False)]
        if isinstance(stmt, Store):
            guarded = stmt.guard is not None
            bridged = [(bridge.value, guarded) for place in stmt.indices for bridge in bridges(place)]
            guard = [(stmt.guard, False)] if stmt.guard is not None else []
            return [*guard, *bridged, (stmt.value, guarded)]
        if isinstance(stmt, Contract):
            return [(stmt.init, False)] if stmt.init is not None else []
        count = [(stmt.count, False)] if isinstance(stmt, Loop) and stmt.count is not None else []
        return [*((init, False) for init in stmt.inits), *count]


def share(kernel: Kernel) -> Kernel:
    """The kernel with a Let for each value that a block computes more than once."""
    body, _ = _Sharer(kernel.written, bound_names(kernel)).block(kernel.body)
    return replace(kernel, body=body)
