"""A kernel of the graph while it is being fused: loops over graph-wide names, and memory seen through views.

Names of axes, values and buffers are never the same in two pieces, except for buffers that are the same view of the
same memory; so pieces are put together without renaming.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from bringup.graph.fusion.formulas import Formulas
from bringup.graph.fusion.mixed_radix import MixedRadix, place
from bringup.graph.fusion.recompute_cost import Weight, weight
from bringup.graph.fusion.steps import Memory
from bringup.ir.dtypes import DType
from bringup.ir.expr import Expr, Load, Param
from bringup.ir.index import AxisVar, Index, Int
from bringup.ir.kernel import (
    Axis,
    Block,
    Contract,
    Kernel,
    Let,
    Local,
    Loop,
    Stmt,
    Store,
    axes_of,
    blocks_of,
    statements,
)
from bringup.ir.share import bound_names
from bringup.ir.walk import Substitution, bridges, own_values, subexpressions
from bringup.lowering.call import GivenNumber, LoweredLaunch
from bringup.targets.target import FusionLimits


@dataclass(frozen=True)
class View:
    """Memory as a kernel sees it; shape, strides and offset (in elements) are formulas over the graph's symbols."""

    memory: Memory
    dtype: DType
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index

    def linear(self, indices: tuple[Index, ...]) -> Index:
        """The element of the memory that some indices name."""
        total = self.offset
        for index, stride in zip(indices, self.strides):
            total = total + index * stride
        return total


@dataclass
class Workshop:
    """What all pieces of a graph share: formulas, views by name, numbers by name, and fresh names."""

    formulas: Formulas
    limits: FusionLimits
    views: dict[str, View] = field(default_factory=dict)
    params: dict[str, tuple[DType, GivenNumber]] = field(default_factory=dict)
    _names: dict[View, str] = field(default_factory=dict)
    _linear: dict[tuple[str, tuple[Index, ...]], Index] = field(default_factory=dict)
    _places: dict[tuple[str, tuple[Index, ...]], MixedRadix | None] = field(default_factory=dict)
    _given: dict[tuple[DType, object], str] = field(default_factory=dict)
    _count: int = 0

    def fresh(self, stem: str) -> str:
        """A name that nothing has. The colon keeps it apart from the graph's symbols."""
        self._count += 1
        return f"{stem}:{self._count}"

    def weight(self, statements: Iterable[Stmt]) -> Weight:
        """What the values of some statements cost together."""
        return weight((value for stmt in statements for value in own_values(stmt)), self.limits.slow)

    def buffer(self, view: View) -> str:
        """The name of a view."""
        if view not in self._names:
            name = self._names[view] = f"buffer:{len(self._names)}"
            self.views[name] = view
        return self._names[view]

    def linear(self, buffer: str, indices: tuple[Index, ...]) -> Index:
        """The element of the memory that an access names."""
        key = (buffer, indices)
        if key not in self._linear:
            self._linear[key] = self.views[buffer].linear(indices)
        return self._linear[key]

    def place(self, buffer: str, indices: tuple[Index, ...], extents: Mapping[str, Index]) -> MixedRadix | None:
        """The digits of an access. An axis has one extent, wherever it occurs."""
        key = (buffer, indices)
        if key not in self._places:
            hidden = self.hides_check(buffer, indices)
            self._places[key] = None if hidden else place(self.linear(buffer, indices), extents, self.formulas)
        return self._places[key]

    def hides_check(self, buffer: str, indices: tuple[Index, ...]) -> bool:
        """True if an index that must be checked does not move the access: its dimension has one element, or repeats
        one. The element's number does not show it, so the access must stay as it is."""
        sides = zip(indices, self.views[buffer].strides)
        return any(
            bridge.mode != "skip" and (bridge.extent == Int(1) or stride == Int(0))
            for index, stride in sides
            for bridge in bridges(index)
        )

    def steps(self, axes: Iterable[Axis]) -> int:
        """How many steps some loops have together, in the call that the graph was traced with."""
        total = 1
        for axis in axes:
            total *= self.formulas.hint(axis.extent)
        return total

    def memory(self, buffer: str) -> Memory | None:
        """The memory behind a buffer; None for a Local."""
        view = self.views.get(buffer)
        return None if view is None else view.memory

    def param(self, dtype: DType, given: GivenNumber) -> Param:
        """A number of the launch as a value; the same number is the same param."""
        key = (dtype, len(self.params) if isinstance(given, int) else given)
        if key not in self._given:
            name = self._given[key] = f"number:{len(self.params)}"
            self.params[name] = (dtype, given)
        return Param(self._given[key], dtype)

    def piece(self, launch: LoweredLaunch, number: int) -> Piece:
        """A launch as a piece."""
        kernel = launch.kernel
        assert isinstance(kernel, Kernel)
        sizes = {s.name: self.formulas.formula(n, s.low) for s, n in zip(kernel.sizes, launch.sizes)}
        of_sizes = Substitution(sizes=sizes)
        buffers = {}
        for buffer, tensor in zip(kernel.buffers, launch.buffers):
            buffers[buffer.name] = self.buffer(
                View(
                    tensor.memory,
                    buffer.dtype,
                    tuple(of_sizes.index(extent) for extent in buffer.shape),
                    tuple(of_sizes.index(stride) for stride in buffer.strides),
                    self.formulas.formula(tensor.offset),
                )
            )
        params: dict[str, Expr] = {p.name: self.param(p.dtype, g) for p, g in zip(kernel.params, launch.params)}
        shared = {*sizes, *params, *buffers}
        new = {name: self.fresh(name[0]) for name in sorted(bound_names(kernel) - shared)}
        single = {axis.name for axis in kernel.axes if of_sizes.index(axis.extent) == Int(1)}
        change = Substitution(
            axes={old: Int(0) if old in single else AxisVar(name) for old, name in new.items()},
            sizes=sizes,
            params=params,
            binders=new,
            access=lambda buffer, indices: self._seen(buffers, new, change, buffer, indices),
        )
        axes = tuple(change.axis(axis) for axis in kernel.axes if axis.name not in single)
        axes, body = _all_on_grid(axes, change.block(kernel.body))
        scratch = tuple(replace(local, name=new[local.name]) for local in kernel.locals)
        return Piece(self, kernel.name, axes, body, scratch, (number,))

    def _seen(
        self,
        buffers: Mapping[str, str],
        scratch: Mapping[str, str],
        change: Substitution,
        buffer: str,
        indices: tuple[Index, ...],
    ) -> tuple[str, tuple[Index, ...]]:
        """An access by a view that only its memory decides: dimensions by their strides, those that do not move left
        out. So two kernels that see the same memory in another order of dimensions share a buffer."""
        places = tuple(change.index(index) for index in indices)
        if buffer not in buffers:
            return scratch[buffer], places
        view = self.views[buffers[buffer]]
        sides = [
            side
            for side in zip(places, view.shape, view.strides)
            if side[0] != Int(0) and (side[2] != Int(0) or bridges(side[0]))
        ]
        sides.sort(key=lambda side: -abs(self.formulas.hint(side[2])))
        shape, strides = tuple(side[1] for side in sides), tuple(side[2] for side in sides)
        return self.buffer(replace(view, shape=shape, strides=strides)), tuple(side[0] for side in sides)


def _all_on_grid(axes: tuple[Axis, ...], body: Block) -> tuple[tuple[Axis, ...], Block]:
    """A grid point that only loops over elements is elementwise: its loops are axes of the grid like the others."""
    lets = body[:-1]
    inner, found = body[-1:], axes
    while len(inner) == 1 and isinstance(inner[0], Loop) and inner[0].axis.kind == "parallel":
        found, inner = (*found, inner[0].axis), inner[0].body
    plain = all(isinstance(stmt, Let) for stmt in lets) and all(isinstance(stmt, (Let, Store)) for stmt in inner)
    if not plain or found == axes or any(axis.extent == Int(1) for axis in found):
        return axes, body
    return found, lets + inner


@dataclass(frozen=True)
class Access:
    """One Load or Store: what it touches, and the axes around it inside its grid point, outermost first."""

    buffer: str
    indices: tuple[Index, ...]
    axes: tuple[Axis, ...]
    load: Load | None
    store: Store | None
    stmt: Stmt


def accesses(block: Block, axes: tuple[Axis, ...] = ()) -> Iterator[Access]:
    """Every access of a block, in text order.

    >>> list(accesses(()))
    []
    """
    for stmt in block:
        inner = axes + axes_of(stmt)
        seen: set[Load] = set()
        for value in own_values(stmt):
            for part in subexpressions(value):
                if isinstance(part, Load) and part not in seen:
                    seen.add(part)
                    yield Access(part.buffer, part.indices, inner, part, None, stmt)
        for block_inside in blocks_of(stmt):
            yield from accesses(block_inside, inner)
        if isinstance(stmt, Store):
            yield Access(stmt.buffer, stmt.indices, inner, None, stmt, stmt)


@dataclass(frozen=True)
class Piece:
    """Statements that every point of a grid runs; ``steps`` are the numbers of the launches in it."""

    shop: Workshop
    name: str
    axes: tuple[Axis, ...]
    body: Block
    locals: tuple[Local, ...]
    steps: tuple[int, ...]

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """Every Load and Store."""
        return tuple(accesses(self.body))

    @cached_property
    def statements(self) -> tuple[Stmt, ...]:
        """Every statement, inner ones included."""
        return tuple(statements(self.body))

    @cached_property
    def ordered(self) -> bool:
        """True if the order of the grid has a meaning."""
        return any(isinstance(stmt, Store) and stmt.mode != "unique" for stmt in self.statements)

    @cached_property
    def straight(self) -> bool:
        """True for an elementwise kernel: no loop inside a grid point."""
        return not self.locals and all(isinstance(stmt, (Let, Store)) for stmt in self.body)

    @cached_property
    def contraction(self) -> bool:
        """True if the kernel is a matrix product or a convolution over its whole grid."""
        return any(isinstance(stmt, Contract) for stmt in self.body)

    @cached_property
    def extents(self) -> Mapping[str, Index]:
        """The extent of every axis, also of those inside."""
        return {axis.name: axis.extent for axis in (*self.axes, *(a for s in self.statements for a in axes_of(s)))}

    @cached_property
    def grid(self) -> frozenset[str]:
        """The names of the grid's axes."""
        return frozenset(axis.name for axis in self.axes)

    @cached_property
    def reads(self) -> frozenset[Memory]:
        """Memories that are loaded from, or combined into."""
        return self._memories(a for a in self.accesses if a.store is None or a.store.combine is not None)

    @cached_property
    def writes(self) -> frozenset[Memory]:
        """Memories that are stored to."""
        return self._memories(a for a in self.accesses if a.store is not None)

    def _memories(self, some: Iterable[Access]) -> frozenset[Memory]:
        found = {self.shop.memory(access.buffer) for access in some}
        return frozenset(memory for memory in found if memory is not None)

    def touching(self, memory: Memory) -> list[Access]:
        """The accesses to one memory."""
        return [access for access in self.accesses if self.shop.memory(access.buffer) == memory]

    def followed_by(self, other: Piece, axes: tuple[Axis, ...]) -> Piece:
        """Both pieces, one after the other, on a grid that both have."""
        both = replace(
            self,
            name=f"{self.name}_{other.name}",
            axes=axes,
            body=self.body + other.body,
            locals=self.locals + other.locals,
            steps=tuple(sorted({*self.steps, *other.steps})),
        )
        # Known already: looking again would make a chain of n steps cost n².
        both.__dict__.update(accesses=self.accesses + other.accesses, statements=self.statements + other.statements)
        both.__dict__.update(reads=self.reads | other.reads, writes=self.writes | other.writes)
        return both
