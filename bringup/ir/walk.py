"""Walking and rewriting: the parts of each node, and substitution through values, indices and statements alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from bringup.ir.expr import (
    AsIndex,
    Binary,
    Bits,
    Cast,
    Const,
    Expr,
    Fma,
    IndexValue,
    Load,
    Name,
    Param,
    Philox,
    Unary,
    Where,
)
from bringup.ir.index import AxisVar, Index, Size, atoms, axes_in, rebuild
from bringup.ir.kernel import Axis, Block, Contract, Let, Loop, Reduce, Scan, Stmt, Store, blocks_of, statements


def operands(expr: Expr) -> tuple[Expr, ...]:
    """The values directly inside a value, not those inside its indices.

    >>> from bringup.ir.dtypes import float32
    >>> len(operands(Param("a", float32) + 1.0))
    2
    """
    if isinstance(expr, (Unary, Cast, Bits)):
        return (expr.x,)
    if isinstance(expr, Binary):
        return (expr.a, expr.b)
    if isinstance(expr, Fma):
        return (expr.a, expr.b, expr.c)
    if isinstance(expr, Where):
        return (expr.condition, expr.yes, expr.no)
    if isinstance(expr, Philox):
        return (expr.seed, expr.offset, expr.counter)
    if isinstance(expr, Load):
        return tuple(e for e in (expr.guard, expr.other) if e is not None)
    return ()


def indices_of(expr: Expr) -> tuple[Index, ...]:
    """The indices directly inside a value.

    >>> indices_of(IndexValue(AxisVar("i")))
    (AxisVar(name='i'),)
    """
    if isinstance(expr, Load):
        return expr.indices
    return (expr.index,) if isinstance(expr, IndexValue) else ()


def bridges(index: Index) -> list[AsIndex]:
    """The values that an index takes as indices.

    >>> bridges(AxisVar("i") + 1)
    []
    """
    return [atom for atom in atoms(index) if isinstance(atom, AsIndex)]


def axes_inside(index: Index) -> set[str]:
    """The axes that an index depends on, also through values taken as indices.

    >>> axes_inside(AsIndex(IndexValue(AxisVar("i")), Size("n"), "check") + 1)
    {'i'}
    """
    inner = (i for bridge in bridges(index) for part in subexpressions(bridge.value) for i in indices_of(part))
    return axes_in(index).union(*map(axes_inside, inner))


def subexpressions(expr: Expr) -> Iterator[Expr]:
    """A value and every value inside it, also inside its indices; inner ones first.

    >>> from bringup.ir.dtypes import float32
    >>> [type(e).__name__ for e in subexpressions(Param("a", float32) + 1.0)]
    ['Param', 'Const', 'Binary']
    """
    for index in indices_of(expr):
        for bridge in bridges(index):
            yield from subexpressions(bridge.value)
    for operand in operands(expr):
        yield from subexpressions(operand)
    yield expr


def rewrite(expr: Expr, value: Callable[[Expr], Expr], index: Callable[[Index], Index]) -> Expr:
    """The same node with its direct operands and indices replaced.

    >>> rewrite(IndexValue(AxisVar("i")), lambda e: e, lambda i: i + 1).index == AxisVar("i") + 1
    True
    """
    if isinstance(expr, Unary):
        return Unary(expr.op, value(expr.x))
    if isinstance(expr, Cast):
        return Cast(value(expr.x), expr.type)
    if isinstance(expr, Bits):
        return Bits(value(expr.x), expr.type)
    if isinstance(expr, Binary):
        return Binary(expr.op, value(expr.a), value(expr.b))
    if isinstance(expr, Fma):
        return Fma(value(expr.a), value(expr.b), value(expr.c))
    if isinstance(expr, Where):
        return Where(value(expr.condition), value(expr.yes), value(expr.no))
    if isinstance(expr, Philox):
        return Philox(value(expr.seed), value(expr.offset), value(expr.counter), expr.bits)
    if isinstance(expr, IndexValue):
        return IndexValue(index(expr.index))
    if isinstance(expr, Load):
        return replace(
            expr,
            indices=tuple(index(i) for i in expr.indices),
            guard=None if expr.guard is None else value(expr.guard),
            other=None if expr.other is None else value(expr.other),
        )
    assert isinstance(expr, (Const, Param, Name))
    return expr


def rewrite_inside(
    stmt: Reduce | Scan | Loop | Contract,
    outside: Callable[[Expr], Expr],
    inside: Callable[[Expr], Expr],
    block: Callable[[Block], Block],
) -> Reduce | Scan | Loop | Contract:
    """The same statement with its values and blocks replaced, in the order in which they run; ``inside`` replaces what
    is evaluated at each position of its axes."""
    if isinstance(stmt, Contract):
        init = None if stmt.init is None else outside(stmt.init)
        return replace(stmt, init=init, a=inside(stmt.a), b=inside(stmt.b))
    inits = tuple(map(outside, stmt.inits))
    count = outside(stmt.count) if isinstance(stmt, Loop) and stmt.count is not None else None
    body = block(stmt.body)
    if isinstance(stmt, Loop):
        return replace(stmt, inits=inits, body=body, updates=tuple(map(inside, stmt.updates)), count=count)
    values = tuple(map(inside, stmt.values))
    combine = replace(stmt.combine, results=tuple(map(outside, stmt.combine.results)))
    if isinstance(stmt, Reduce):
        return replace(stmt, inits=inits, body=body, values=values, combine=combine)
    return replace(stmt, inits=inits, body=body, values=values, combine=combine, then=block(stmt.then))


def own_values(stmt: Stmt) -> tuple[Expr, ...]:
    """The values that a statement itself holds (not its inner blocks), without those inside indices.

    >>> from bringup.ir.dtypes import float32
    >>> own_values(Let("t", Param("a", float32)))
    (Param(name='a', type=float32),)
    """
    if isinstance(stmt, Let):
        return (stmt.value,)
    if isinstance(stmt, (Reduce, Scan)):
        return (*stmt.inits, *stmt.values, *stmt.combine.results)
    if isinstance(stmt, Loop):
        return (*stmt.inits, *stmt.updates, *(() if stmt.count is None else (stmt.count,)))
    if isinstance(stmt, Contract):
        return tuple(e for e in (stmt.a, stmt.b, stmt.init) if e is not None)
    bridged = tuple(bridge.value for index in stmt.indices for bridge in bridges(index))
    return (*bridged, stmt.value, *(() if stmt.guard is None else (stmt.guard,)))


def all_values(block: Block) -> Iterator[Expr]:
    """Every value of a block, inner ones included."""
    for stmt in block:
        for expr in own_values(stmt):
            yield from subexpressions(expr)
        for inner in blocks_of(stmt):
            yield from all_values(inner)


def accesses(block: Block) -> Iterator[tuple[str, tuple[Index, ...]]]:
    """Every load and store of a block: the buffer and the indices."""
    for stmt in statements(block):
        for value in own_values(stmt):
            yield from ((part.buffer, part.indices) for part in subexpressions(value) if isinstance(part, Load))
        if isinstance(stmt, Store):
            yield stmt.buffer, stmt.indices


@dataclass(frozen=True)
class Substitution:
    """Replaces axes and sizes by indices, names and params by values, buffer names, and the names that statements bind.

    ``access``, if given, says what each Load and Store touches instead, by buffer and indices as they were. ``load`` is
    asked for each Load after the replacement inside it, and may return another value.

    >>> Substitution(axes={"i": AxisVar("j")}).index(AxisVar("i") + 1) == AxisVar("j") + 1
    True
    """

    axes: Mapping[str, Index] = field(default_factory=dict)
    sizes: Mapping[str, Index] = field(default_factory=dict)
    names: Mapping[str, Expr] = field(default_factory=dict)
    params: Mapping[str, Expr] = field(default_factory=dict)
    buffers: Mapping[str, str] = field(default_factory=dict)
    binders: Mapping[str, str] = field(default_factory=dict)
    load: Callable[[Load], Expr] | None = None
    access: Callable[[str, tuple[Index, ...]], tuple[str, tuple[Index, ...]]] | None = None

    def index(self, index: Index) -> Index:
        """The replaced index, also inside values taken as indices."""
        return rebuild(index, self._atom)

    def _atom(self, atom: Index) -> Index:
        if isinstance(atom, AxisVar):
            return self.axes.get(atom.name, atom)
        if isinstance(atom, Size):
            return self.sizes.get(atom.name, atom)
        if isinstance(atom, AsIndex):
            return AsIndex(self.value(atom.value), self.index(atom.extent), atom.mode)
        return atom

    def value(self, expr: Expr) -> Expr:
        """The replaced value."""
        if isinstance(expr, Name):
            if expr.name in self.names:
                return self.names[expr.name]
            return Name(self.binders.get(expr.name, expr.name), expr.type)
        if isinstance(expr, Param):
            return self.params.get(expr.name, expr)
        if isinstance(expr, Load):
            buffer, indices = self._accessed(expr.buffer, expr.indices)
            guard = None if expr.guard is None else self.value(expr.guard)
            other = None if expr.other is None else self.value(expr.other)
            new = Load(buffer, indices, expr.type, guard, other)
            return self.load(new) if self.load else new
        return rewrite(expr, self.value, self.index)

    def _accessed(self, buffer: str, indices: tuple[Index, ...]) -> tuple[str, tuple[Index, ...]]:
        if self.access is not None:
            return self.access(buffer, indices)
        return self.buffers.get(buffer, buffer), tuple(self.index(i) for i in indices)

    def values(self, exprs: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The replaced values."""
        return tuple(self.value(expr) for expr in exprs)

    def axis(self, axis: Axis) -> Axis:
        """An axis with its extent replaced, and renamed where ``axes`` says so."""
        new = self.axes.get(axis.name, axis.var)
        return replace(axis, name=new.name if isinstance(new, AxisVar) else axis.name, extent=self.index(axis.extent))

    def _bound(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self.binders.get(name, name) for name in names)

    def _axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(self.axis(axis) for axis in axes)

    def block(self, block: Block) -> Block:
        """The replaced statements."""
        return tuple(self.stmt(stmt) for stmt in block)

    def stmt(self, stmt: Stmt) -> Stmt:
        """The replaced statement."""
        if isinstance(stmt, Let):
            return Let(self._bound((stmt.name,))[0], self.value(stmt.value))
        if isinstance(stmt, Store):
            buffer, indices = self._accessed(stmt.buffer, stmt.indices)
            guard = None if stmt.guard is None else self.value(stmt.guard)
            return Store(buffer, indices, self.value(stmt.value), stmt.mode, stmt.combine, guard)
        new = rewrite_inside(stmt, self.value, self.value, self.block)
        if isinstance(new, Contract):
            return replace(new, name=self._bound((new.name,))[0], axes=self._axes(new.axes))
        if isinstance(new, Loop):
            return replace(new, axis=self.axis(new.axis), carried=self._bound(new.carried))
        combine = replace(new.combine, left=self._bound(new.combine.left), right=self._bound(new.combine.right))
        if isinstance(new, Reduce):
            return replace(new, names=self._bound(new.names), axes=self._axes(new.axes), combine=combine)
        return replace(new, names=self._bound(new.names), axis=self.axis(new.axis), combine=combine)
