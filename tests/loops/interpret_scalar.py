"""The same meaning, told plainly: nested Python loops over one element at a time. Slow; a second opinion for tests.

It counts what it does (operations, elements touched), which is what cost.py is tested against.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bringup.ir import arithmetic
from bringup.ir.arguments import InterpretError, bind_sizes, param_values
from bringup.ir.dtypes import Array, DType, from_storage, to_storage
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
    Number,
    Param,
    Unary,
    Where,
)
from bringup.ir.expr import Philox as PhiloxExpr
from bringup.ir.fused_multiply_add import fma
from bringup.ir.index import AxisVar, Index, Size, evaluate, evaluate_sizes
from bringup.ir.interpret import multiply_add
from bringup.ir.kernel import Axis, Block, Contract, Kernel, Let, Reduce, Scan, Stmt, Store
from bringup.ir.ops import BINARY, UNARY
from bringup.ir.philox import philox


@dataclass
class Counts:
    """What a run did: floating-point operations, transcendental ones among them, and the elements it touched."""

    flops: int = 0
    transcendentals: int = 0
    read: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    written: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)


class _Skip(Exception):
    """An AsIndex of mode skip is out of range: the access does not happen."""


class _Point:
    """One grid point at a time."""

    def __init__(self, kernel: Kernel, buffers: Mapping[str, Array], sizes: dict[str, int], params: dict[str, Array]):
        self.kernel, self.sizes, self.params = kernel, sizes, params
        self.buffers = dict(buffers)
        self.locals: dict[str, dict[tuple[int, ...], Any]] = {}
        self.dtypes: dict[str, DType] = {b.name: b.dtype for b in kernel.memories}
        self.shapes = {name: array.shape for name, array in buffers.items()} | {x.name: x.shape for x in kernel.locals}
        self.axes: dict[str, int] = {}
        self.names: dict[str, Any] = {}
        self.counts = Counts()

    def run(self) -> None:
        for point in self.points(self.kernel.axes):
            self.axes, self.names = dict(point), {}
            self.locals = {local.name: {} for local in self.kernel.locals}
            self.block(self.kernel.body)

    def points(self, axes: tuple[Axis, ...]) -> list[dict[str, int]]:
        ranges = [range(evaluate_sizes(axis.extent, self.sizes)) for axis in axes]
        return [dict(zip((axis.name for axis in axes), point)) for point in itertools.product(*ranges)]

    def block(self, block: Block) -> None:
        for stmt in block:
            self.stmt(stmt)

    def stmt(self, stmt: Stmt) -> None:
        if isinstance(stmt, Let):
            self.names[stmt.name] = self.value(stmt.value)
        elif isinstance(stmt, Store):
            self.store(stmt)
        elif isinstance(stmt, Reduce):
            self.reduce(stmt)
        elif isinstance(stmt, Contract):
            self.contract(stmt)
        elif isinstance(stmt, Scan):
            state = [self.value(init) for init in stmt.inits]
            for point in self.points((stmt.axis,)):
                self.axes.update(point)
                self.block(stmt.body)
                after = self.combine(stmt, state, [self.value(value) for value in stmt.values])
                self.names.update(zip(stmt.names, state if stmt.exclusive else after))
                self.block(stmt.then)
                state = after
        else:
            state = [self.value(init) for init in stmt.inits]
            points = self.points((stmt.axis,))
            for point in points if stmt.count is None else points[: max(0, int(self.value(stmt.count)))]:
                self.axes.update(point)
                self.names.update(zip(stmt.carried, state))
                self.block(stmt.body)
                state = [self.value(update) for update in stmt.updates]
            self.names.update(zip(stmt.carried, state))

    def combine(self, stmt: Reduce | Scan, left: list[Any], right: list[Any]) -> list[Any]:
        self.names.update(zip(stmt.combine.left, left))
        self.names.update(zip(stmt.combine.right, right))
        return [self.value(result) for result in stmt.combine.results]

    def reduce(self, stmt: Reduce) -> None:
        inits = [self.value(init) for init in stmt.inits]
        lanes = [list(inits) for _ in range(stmt.lanes)]
        for point in self.points(stmt.axes):
            self.axes.update(point)
            self.block(stmt.body)
            values = [self.value(value) for value in stmt.values]
            lane = point[stmt.axes[-1].name] % stmt.lanes
            lanes[lane] = self.combine(stmt, lanes[lane], values)
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [self.combine(stmt, lanes[at], lanes[at + half]) for at in range(half)]
        self.names.update(zip(stmt.names, lanes[0]))

    def contract(self, stmt: Contract) -> None:
        dtype = stmt.dtype
        init = None if stmt.init is None else self.value(stmt.init)
        lanes: list[Any] = [arithmetic.zero(dtype) for _ in range(stmt.lanes)]
        if init is not None and stmt.lanes == 1:
            lanes = [init]
        for point in self.points(stmt.axes):
            self.axes.update(point)
            lane = point[stmt.axes[-1].name] % stmt.lanes
            a, b = (arithmetic.cast(self.value(e), e.dtype, dtype) for e in (stmt.a, stmt.b))
            lanes[lane] = multiply_add(a, b, lanes[lane], dtype, stmt.fused)
            self.count(dtype, 2)
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [lanes[at] + lanes[at + half] for at in range(half)]
            self.count(dtype, half)
        if init is not None and stmt.lanes > 1:
            lanes = [init + lanes[0]]
            self.count(dtype, 1)
        self.names[stmt.name] = np.asarray(lanes[0])

    def count(self, dtype: DType, flops: int, transcendental: bool = False) -> None:
        if dtype.is_float:
            self.counts.flops += flops
            self.counts.transcendentals += transcendental

    def value(self, expr: Expr) -> Any:
        if isinstance(expr, Const):
            return np.asarray(expr.value, dtype=expr.type.compute)
        if isinstance(expr, Name):
            return self.names[expr.name]
        if isinstance(expr, Param):
            return self.params[expr.name]
        if isinstance(expr, Load):
            return self.load(expr)
        if isinstance(expr, Binary):
            a, b = self.value(expr.a), self.value(expr.b)
            self.count(expr.a.dtype, 1, BINARY[expr.op].transcendental)
            return arithmetic.binary(expr.op, a, b, expr.a.dtype)
        if isinstance(expr, Unary):
            self.count(expr.x.dtype, 1, UNARY[expr.op].transcendental)
            return arithmetic.unary(expr.op, self.value(expr.x), expr.x.dtype)
        if isinstance(expr, Fma):
            self.count(expr.dtype, 2)
            return fma(self.value(expr.a), self.value(expr.b), self.value(expr.c), expr.dtype)
        if isinstance(expr, Where):
            condition, yes, no = self.value(expr.condition), self.value(expr.yes), self.value(expr.no)
            return yes if condition else no
        if isinstance(expr, Cast):
            return arithmetic.cast(self.value(expr.x), expr.x.dtype, expr.type)
        if isinstance(expr, Bits):
            return arithmetic.reinterpret(self.value(expr.x), expr.type)
        if isinstance(expr, PhiloxExpr):
            return philox(self.value(expr.seed), self.value(expr.offset), self.value(expr.counter), expr.bits)
        assert isinstance(expr, IndexValue)
        return np.asarray(self.place(expr.index), dtype=np.int64)

    def place(self, index: Index) -> int:
        def leaf(atom: Index) -> int:
            if isinstance(atom, AxisVar):
                return self.axes[atom.name]
            if isinstance(atom, Size):
                return self.sizes[atom.name]
            assert isinstance(atom, AsIndex)
            extent, value = self.place(atom.extent), int(self.value(atom.value))
            if atom.mode == "wrap" and -extent <= value < 0:
                value += extent
            if 0 <= value < extent:
                return value
            if atom.mode == "skip":
                raise _Skip
            raise IndexError(f"{self.kernel.name}: index {value} is out of bounds for a dimension of {extent}")

        return int(evaluate(index, leaf))

    def at(self, buffer: str, indices: tuple[Index, ...]) -> tuple[int, ...]:
        place = tuple(self.place(index) for index in indices)
        if not all(0 <= p < extent for p, extent in zip(place, self.shapes[buffer])):
            raise InterpretError(f"{self.kernel.name}: access {buffer}{list(place)} outside {self.shapes[buffer]}")
        return place

    def load(self, expr: Load) -> Any:
        other = arithmetic.zero(expr.type) if expr.other is None else self.value(expr.other)
        if expr.guard is not None and not self.value(expr.guard):
            return other
        try:
            place = self.at(expr.buffer, expr.indices)
        except _Skip:
            return other
        if expr.buffer in self.locals:
            if place not in self.locals[expr.buffer]:
                raise InterpretError(f"{self.kernel.name}: {expr.buffer}{list(place)} is read before it is written")
            return self.locals[expr.buffer][place]
        self.counts.read.add((expr.buffer, place))
        return from_storage(self.buffers[expr.buffer][place], expr.type)

    def store(self, stmt: Store) -> None:
        if stmt.guard is not None and not self.value(stmt.guard):
            return
        try:
            place = self.at(stmt.buffer, stmt.indices)
        except _Skip:
            return
        value, dtype = self.value(stmt.value), self.dtypes[stmt.buffer]
        if stmt.buffer in self.locals:
            memory = self.locals[stmt.buffer]
            memory[place] = value if stmt.combine is None else self.combined(stmt.combine, memory[place], value, dtype)
            return
        array = self.buffers[stmt.buffer]
        self.counts.written.add((stmt.buffer, place))
        if stmt.combine is not None:
            self.counts.read.add((stmt.buffer, place))
            value = self.combined(stmt.combine, from_storage(array[place], dtype), value, dtype)
        array[place] = to_storage(value, dtype)

    def combined(self, op: str, old: Any, new: Any, dtype: DType) -> Any:
        self.count(dtype, 1)
        return arithmetic.binary(op, old, new, dtype)


def run_scalar(
    kernel: Kernel,
    buffers: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    params: Mapping[str, Number] | None = None,
) -> Counts:
    """Runs a kernel as ``interpret.run`` does, element by element, and counts.

    >>> run_scalar(Kernel("nothing"), {}).flops
    0
    """
    point = _Point(kernel, buffers, bind_sizes(kernel, buffers, sizes), param_values(kernel, params))
    with np.errstate(all="ignore"):
        point.run()
    return point.counts
