"""A kernel: a grid of parallel axes, and statements that every grid point runs, in order, on its own.

    >>> from bringup.ir.dtypes import float32
    >>> from bringup.ir.expr import Load
    >>> i, n = AxisVar("i"), Size("n")
    >>> x, y = Buffer("x", float32, (n,), (Size("x_s0"),), "in"), Buffer("y", float32, (n,), (Int(1),), "out")
    >>> double = Kernel(
    ...     "double",
    ...     sizes=(SizeRange("n"), SizeRange("x_s0")),
    ...     buffers=(x, y),
    ...     axes=(Axis("i", n),),
    ...     body=(Store("y", (i,), x[i] * 2.0),),
    ... )

Every name in a kernel is bound once. Buffers of role ``in`` are not written during the kernel; in-place kernels use
``inout``. Locals belong to one grid point and start undefined.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bringup.ir.dtypes import DType
from bringup.ir.expr import Expr, Load
from bringup.ir.index import AxisVar, Index, IndexLike, Int, Size, as_index

AxisKind: TypeAlias = Literal["parallel", "reduce", "sequential"]
Role: TypeAlias = Literal["in", "out", "inout"]
Mode: TypeAlias = Literal["unique", "ordered", "atomic"]


@dataclass(frozen=True)
class Axis:
    """A named range 0 … extent - 1; the extent is made of sizes only."""

    name: str
    extent: Index
    kind: AxisKind = "parallel"

    @property
    def var(self) -> AxisVar:
        """The position on this axis, for index arithmetic."""
        return AxisVar(self.name)


@dataclass(frozen=True)
class SizeRange:
    """A size or stride argument and what is known of it: low ≤ size (≤ high). Strides may be negative: low None."""

    name: str
    low: int | None = 0
    high: int | None = None


class _Elements:
    """What buffers and Locals have in common."""

    name: str
    dtype: DType

    def __getitem__(self, indices: IndexLike | tuple[IndexLike, ...]) -> Load:
        """A Load of one element."""
        return self.at(*(indices if isinstance(indices, tuple) else (indices,)))

    def at(self, *indices: IndexLike) -> Load:
        """A Load of one element; for indices that come in parts: ``x.at(*outer, j)``."""
        return Load(self.name, tuple(as_index(index) for index in indices), self.dtype)


@dataclass(frozen=True)
class Buffer(_Elements):
    """A tensor in device memory. Strides count elements; they lay the tensor out and change no meaning."""

    name: str
    dtype: DType
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    role: Role


@dataclass(frozen=True)
class Local(_Elements):
    """Scratch of one grid point, of a constant size."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def strides(self) -> tuple[Index, ...]:
        """It is contiguous."""
        return _dense(self.shape)

    @property
    def nbytes(self) -> int:
        """What it occupies."""
        return math.prod(self.shape, start=self.dtype.size)


@dataclass(frozen=True)
class ScalarParam:
    """A scalar argument of the launch, such as ``eps`` or a seed."""

    name: str
    dtype: DType


@dataclass(frozen=True)
class Let:
    """Binds a name to a value."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Combine:
    """How two states become one: the results are expressions over the names of the left and the right state."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    results: tuple[Expr, ...]


@dataclass(frozen=True)
class Reduce:
    """Folds a tuple of values over reduce axes into names.

    The outer axes run in order; position p of the innermost axis belongs to lane p % lanes. Each lane starts from the
    inits and takes its values one after the other: state = combine(state, value). Then, for half = lanes / 2 … 1, lane
    l < half becomes combine(lane l, lane l + half); lane 0 is the result. lanes=1 is the plain loop. The body binds
    names for the values; it stores nothing.
    """

    names: tuple[str, ...]
    axes: tuple[Axis, ...]
    body: Block
    values: tuple[Expr, ...]
    inits: tuple[Expr, ...]
    combine: Combine
    lanes: int = 32


@dataclass(frozen=True)
class Scan:
    """Running states along an axis, in order: state = combine(state, value), starting from the inits.

    ``then`` runs at each position with the names bound to the state after (exclusive: before) that position's value.
    """

    names: tuple[str, ...]
    axis: Axis
    body: Block
    values: tuple[Expr, ...]
    inits: tuple[Expr, ...]
    combine: Combine
    then: Block
    exclusive: bool = False


@dataclass(frozen=True)
class Loop:
    """Runs a body along an axis. Sequential: carried names start at the inits, become the updates after each step, and
    keep their last value after the loop. Parallel: nothing is carried, and the steps may run in any order.

    ``count``, an int64 value that is read once before the first step, ends a sequential loop earlier: only the steps
    below it run. The extent stays the bound that proofs use.
    """

    axis: Axis
    body: Block
    carried: tuple[str, ...] = ()
    inits: tuple[Expr, ...] = ()
    updates: tuple[Expr, ...] = ()
    count: Expr | None = None


@dataclass(frozen=True)
class Contract:
    """name = init + sum over the axes of a × b: the matmul and convolution family.

    The sum is in the accumulate type of a and b (float32 for halves), in the order of Reduce with these lanes, each
    step acc = fma(a, b, acc) (``fused``) or acc + a × b with two roundings; the lanes start at 0 and the init is added
    last (with one lane it is the start). A tile is a Contract inside parallel Loops that stores to a Local.
    """

    name: str
    axes: tuple[Axis, ...]
    a: Expr
    b: Expr
    init: Expr | None = None
    lanes: int = 1
    fused: bool = True

    @property
    def dtype(self) -> DType:
        """The type of the sum."""
        return self.a.dtype.accumulate


@dataclass(frozen=True)
class Store:
    """Writes, or combines into, one element of a buffer or Local, where the guard holds.

    unique: no two grid points or parallel steps write the same element (proved by the verifier). ordered: as if the
    whole kernel ran as nested loops, the grid outermost. atomic: any order; needs a combine.
    """

    buffer: str
    indices: tuple[Index, ...]
    value: Expr
    mode: Mode = "unique"
    combine: str | None = None
    guard: Expr | None = None


Stmt: TypeAlias = Let | Reduce | Scan | Loop | Contract | Store
Block: TypeAlias = "tuple[Stmt, ...]"


@dataclass(frozen=True)
class Kernel:
    """One launch: arguments, grid and body."""

    name: str
    sizes: tuple[SizeRange, ...] = ()
    params: tuple[ScalarParam, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    locals: tuple[Local, ...] = ()
    axes: tuple[Axis, ...] = ()
    body: Block = ()

    def buffer(self, name: str) -> Buffer | Local | None:
        """The buffer or Local of a name."""
        return next((memory for memory in self.memories if memory.name == name), None)

    @property
    def memories(self) -> tuple[Buffer | Local, ...]:
        """The buffers, then the Locals."""
        return self.buffers + self.locals

    @property
    def written(self) -> frozenset[str]:
        """The memory that it writes, by name."""
        return frozenset(stmt.buffer for stmt in statements(self.body) if isinstance(stmt, Store))


def offset_of(memory: Buffer | Local, indices: tuple[Index, ...]) -> Index:
    """The offset of an element, in elements.

    >>> offset_of(Local("t", None, (2, 3)), (Int(1), Int(2)))
    Int(value=5)
    """
    return sum((index * stride for index, stride in zip(indices, memory.strides)), as_index(0))


def extent_of(axes: Iterable[Axis]) -> Index:
    """The number of positions on all axes together.

    >>> extent_of((Axis("i", Int(3)), Axis("j", Int(4))))
    Int(value=12)
    """
    total: Index = Int(1)
    for axis in axes:
        total = total * axis.extent
    return total


def statements(block: Block) -> Iterator[Stmt]:
    """Every statement of a block and of the blocks inside, in text order.

    >>> [type(s).__name__ for s in statements((Loop(Axis("i", Int(2)), (Let("t", None),)),))]
    ['Loop', 'Let']
    """
    for stmt in block:
        yield stmt
        for inner in blocks_of(stmt):
            yield from statements(inner)


def blocks_of(stmt: Stmt) -> tuple[Block, ...]:
    """The blocks directly inside a statement.

    >>> blocks_of(Loop(Axis("i", Int(2)), ()))
    ((),)
    """
    if isinstance(stmt, Scan):
        return (stmt.body, stmt.then)
    return (stmt.body,) if isinstance(stmt, (Reduce, Loop)) else ()


def axes_of(stmt: Stmt) -> tuple[Axis, ...]:
    """The axes that a statement opens.

    >>> axes_of(Loop(Axis("i", Int(2)), ()))[0].name
    'i'
    """
    if isinstance(stmt, (Reduce, Contract)):
        return stmt.axes
    return (stmt.axis,) if isinstance(stmt, (Scan, Loop)) else ()


def binds(stmt: Stmt) -> tuple[str, ...]:
    """The value names that are visible after a statement.

    >>> binds(Let("t", None))
    ('t',)
    """
    if isinstance(stmt, (Let, Contract)):
        return (stmt.name,)
    if isinstance(stmt, Reduce):
        return stmt.names
    return stmt.carried if isinstance(stmt, Loop) else ()


def dense(name: str, dtype: DType, shape: tuple[IndexLike, ...], role: Role) -> Buffer:
    """A contiguous buffer: the strides follow from the shape.

    >>> dense("y", None, (Size("n"), Size("m")), "out").strides
    (Size(name='m'), Int(value=1))
    """
    return Buffer(name, dtype, tuple(as_index(extent) for extent in shape), _dense(shape), role)


def _dense(shape: Sequence[IndexLike]) -> tuple[Index, ...]:
    strides: list[Index] = []
    step: Index = Int(1)
    for extent in reversed(shape):
        strides.insert(0, step)
        step = step * extent
    return tuple(strides)


def strided(name: str, dtype: DType, shape: tuple[IndexLike, ...], role: Role) -> Buffer:
    """A buffer of any layout: its strides are the sizes name_s0, name_s1, …

    >>> strided("x", None, (Size("n"),), "in").strides
    (Size(name='x_s0'),)
    """
    strides = tuple(Size(f"{name}_s{d}") for d in range(len(shape)))
    return Buffer(name, dtype, tuple(as_index(extent) for extent in shape), strides, role)
