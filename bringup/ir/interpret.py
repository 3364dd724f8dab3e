"""The meaning of a kernel: a NumPy interpreter that runs all grid points at once where order cannot matter.

    >>> from bringup.ir.parser import parse
    >>> double = parse('''kernel double
    ...   size n
    ...   in x: float32[n] strides [1]
    ...   out y: float32[n] strides [1]
    ...   grid i < n
    ...   {
    ...     store y[i] = (x[i] + x[i])
    ...   }''')
    >>> y = np.zeros(2, np.float32)
    >>> run(double, {"x": np.float32([1, 2]), "y": y})
    >>> y
    array([2., 4.], dtype=float32)

Every parallel axis is a dimension of the NumPy values, inner axes in front, so that outer values broadcast.
Sequential axes are Python loops. interpret_scalar.py runs one grid point after the other, as a second opinion.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    Philox,
    Unary,
    Where,
)
from bringup.ir.fused_multiply_add import fma
from bringup.ir.index import AxisVar, Index, Size, evaluate, evaluate_sizes
from bringup.ir.kernel import Axis, Block, Combine, Contract, Kernel, Let, Loop, Reduce, Scan, Stmt, Store, statements
from bringup.ir.philox import philox

_CHUNK = 1 << 20  # values of a reduction computed at a time: bounds memory, changes no result


@dataclass(frozen=True)
class _Frame:
    """Where execution stands: positions on axes, bound values, and the extents of the vectorised axes (inner first).

    Where the mask is false no index is checked: a guard further out says that nothing happens there.
    """

    axes: dict[str, Any] = field(default_factory=dict)
    names: dict[str, Array] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    mask: Array | None = None

    def masked(self, mask: Array | None) -> _Frame:
        """This frame under a guard."""
        if mask is None:
            return self
        return replace(self, mask=mask if self.mask is None else self.mask & mask)

    def along(self, axis: str, positions: Array) -> _Frame:
        """A frame with one more vectorised axis, in front."""
        column = positions.reshape((-1,) + (1,) * len(self.shape))
        return _Frame({**self.axes, axis: column}, dict(self.names), (positions.size, *self.shape))

    def at(self, axes: Mapping[str, int]) -> _Frame:
        """A frame at given positions of sequential axes."""
        return _Frame({**self.axes, **axes}, dict(self.names), self.shape)


class _Machine:
    """One run of one kernel."""

    def __init__(self, kernel: Kernel, buffers: Mapping[str, Array], sizes: dict[str, int], params: dict[str, Array]):
        self.kernel = kernel
        self.arrays: dict[str, Array] = dict(buffers)
        self.dtypes: dict[str, DType] = {b.name: b.dtype for b in kernel.memories}
        self.local_names = {local.name for local in kernel.locals}
        self.sizes = sizes
        self.params = params
        self.grid_depth = 0

    def run(self) -> None:
        extents = [self.extent(axis) for axis in self.kernel.axes]
        if self._ordered_inside_loop(self.kernel.body):
            for point in itertools.product(*(range(extent) for extent in extents)):
                self._launch(_Frame({axis.name: at for axis, at in zip(self.kernel.axes, point)}))
            return
        frame = _Frame()
        for axis, extent in zip(self.kernel.axes, extents):
            frame = frame.along(axis.name, np.arange(extent))
        if 0 not in frame.shape:
            self._launch(frame)

    def _launch(self, frame: _Frame) -> None:
        self.grid_depth = len(frame.shape)
        for local in self.kernel.locals:
            # Undefined at the start: a value that shows up if it is used.
            poison = np.full((*local.shape, *frame.shape), 0xAB, np.uint8)
            array = np.zeros(poison.shape, local.dtype.storage)
            self.arrays[local.name] = array + (np.nan if array.dtype.kind == "f" else poison.astype(array.dtype))
        self.block(self.kernel.body, frame)

    @staticmethod
    def _ordered_inside_loop(block: Block) -> bool:
        """True if all grid points at once would store in another order than one after the other."""
        inner = [
            s
            for loop in statements(block)
            if isinstance(loop, (Loop, Scan))
            for s in statements(loop.body if isinstance(loop, Loop) else loop.then)
        ]
        return any(isinstance(s, Store) and s.mode == "ordered" for s in inner)

    def extent(self, axis: Axis) -> int:
        return evaluate_sizes(axis.extent, self.sizes)

    def block(self, block: Block, frame: _Frame) -> None:
        for stmt in block:
            self.stmt(stmt, frame)

    def stmt(self, stmt: Stmt, frame: _Frame) -> None:
        if isinstance(stmt, Let):
            frame.names[stmt.name] = self.value(stmt.value, frame)
        elif isinstance(stmt, Store):
            self.store(stmt, frame)
        elif isinstance(stmt, Reduce):
            self.reduce(stmt, frame)
        elif isinstance(stmt, Contract):
            self.contract(stmt, frame)
        elif isinstance(stmt, Scan):
            self.scan(stmt, frame)
        else:
            self.loop(stmt, frame)

    # values

    def value(self, expr: Expr, frame: _Frame) -> Array:
        if isinstance(expr, Const):
            return np.asarray(expr.value, dtype=expr.type.compute)
        if isinstance(expr, Name):
            return frame.names[expr.name]
        if isinstance(expr, Param):
            return self.params[expr.name]
        if isinstance(expr, Load):
            return self.load(expr, frame)
        if isinstance(expr, Binary):
            return arithmetic.binary(expr.op, self.value(expr.a, frame), self.value(expr.b, frame), expr.a.dtype)
        if isinstance(expr, Unary):
            return arithmetic.unary(expr.op, self.value(expr.x, frame), expr.x.dtype)
        if isinstance(expr, Fma):
            return fma(self.value(expr.a, frame), self.value(expr.b, frame), self.value(expr.c, frame), expr.dtype)
        if isinstance(expr, Where):
            return np.where(*(self.value(e, frame) for e in (expr.condition, expr.yes, expr.no)))
        if isinstance(expr, Cast):
            return arithmetic.cast(self.value(expr.x, frame), expr.x.dtype, expr.type)
        if isinstance(expr, Bits):
            return arithmetic.reinterpret(self.value(expr.x, frame), expr.type)
        if isinstance(expr, Philox):
            seed, offset, counter = (self.value(e, frame) for e in (expr.seed, expr.offset, expr.counter))
            return philox(seed, offset, counter, expr.bits)
        assert isinstance(expr, IndexValue)
        places, _ = self.places((expr.index,), frame, None)
        return np.asarray(places[0], dtype=np.int64)

    def places(self, indices: tuple[Index, ...], frame: _Frame, mask: Array | None) -> tuple[list[Any], Array | None]:
        """The positions of an access, and where it happens (None: everywhere)."""

        def leaf(atom: Index) -> Any:
            nonlocal mask
            if isinstance(atom, AxisVar):
                return frame.axes[atom.name]
            if isinstance(atom, Size):
                return self.sizes[atom.name]
            assert isinstance(atom, AsIndex)
            extent = int(evaluate(atom.extent, leaf))
            value = self.value(atom.value, frame.masked(mask))
            inside = (value >= (-extent if atom.mode == "wrap" else 0)) & (value < extent)
            place = np.where(inside, value, 0).astype(np.int64)
            if atom.mode == "skip":
                mask = inside if mask is None else mask & inside
            else:
                checked = frame.masked(mask).mask
                wrong = ~inside if checked is None else ~inside & checked
                if np.any(wrong):
                    bad = np.broadcast_to(value, wrong.shape)[wrong][0]
                    raise IndexError(f"{self.kernel.name}: index {bad} is out of bounds for a dimension of {extent}")
                if atom.mode == "wrap":
                    place = np.where(place < 0, place + extent, place)
            return place

        return [evaluate(index, leaf) for index in indices], mask

    def access(self, buffer: str, places: list[Any], mask: Array | None, frame: _Frame) -> tuple[Any, ...]:
        """The places as a NumPy index; a Local also has the grid's dimensions. Outside the buffer is an error."""
        shape = self.arrays[buffer].shape
        clipped = []
        for place, extent in zip(places, shape):
            wrong = (np.asarray(place) < 0) | (np.asarray(place) >= extent)
            if np.any(wrong if mask is None else wrong & mask):
                raise InterpretError(f"{self.kernel.name}: access outside {buffer}{list(shape)}")
            clipped.append(np.where(wrong, 0, place))
        if buffer in self.local_names:
            grid = frame.shape[len(frame.shape) - self.grid_depth :]
            for at, extent in enumerate(grid):
                clipped.append(np.arange(extent).reshape((-1,) + (1,) * (len(grid) - 1 - at)))
        return tuple(clipped)

    def load(self, expr: Load, frame: _Frame) -> Array:
        mask = None if expr.guard is None else self.value(expr.guard, frame)
        places, mask = self.places(expr.indices, frame, mask)
        array = self.arrays[expr.buffer]
        other = arithmetic.zero(expr.type) if expr.other is None else self.value(expr.other, frame)
        if mask is None:
            return from_storage(array[self.access(expr.buffer, places, mask, frame)], expr.type)
        if not np.any(mask):
            return np.broadcast_to(other, np.broadcast_shapes(np.shape(other), mask.shape))
        loaded = from_storage(array[self.access(expr.buffer, places, mask, frame)], expr.type)
        return np.where(mask, loaded, other)

    # statements

    def store(self, stmt: Store, frame: _Frame) -> None:
        array, dtype = self.arrays[stmt.buffer], self.dtypes[stmt.buffer]
        mask = None if stmt.guard is None else self.value(stmt.guard, frame)
        if frame.mask is not None:  # of a loop that has ended for some grid points
            mask = frame.mask if mask is None else mask & frame.mask
        places, mask = self.places(stmt.indices, frame, mask)
        if mask is not None and not np.any(mask):
            return
        index = self.access(stmt.buffer, places, mask, frame)
        value = self.value(stmt.value, frame.masked(mask))
        # Full size, then the axes outermost first: the order of nested loops.
        everywhere = np.ones(frame.shape, np.bool_) if mask is None else np.broadcast_to(mask, frame.shape)
        here = everywhere.T
        flat = tuple(np.broadcast_to(place, frame.shape).T[here] for place in index)
        values = np.broadcast_to(value, frame.shape).T[here]
        if not flat:  # a single number
            array, flat = array.reshape(1), (np.zeros(values.size, np.int64),)
        if stmt.combine is None:
            array[flat] = to_storage(values, dtype)
        elif stmt.mode == "unique":
            old = from_storage(array[flat], dtype)
            array[flat] = to_storage(arithmetic.binary(stmt.combine, old, values, dtype), dtype)
        elif stmt.combine == "add" and not dtype.is_half and dtype.name != "bool":
            np.add.at(array, flat, values)
        else:
            for at in range(values.size):
                place = tuple(part[at] for part in flat)
                old = from_storage(array[place], dtype)
                array[place] = to_storage(arithmetic.binary(stmt.combine, old, values[at], dtype), dtype)

    def combine(self, combine: Combine, left: list[Array], right: list[Array], frame: _Frame) -> list[Array]:
        names = {**frame.names, **dict(zip(combine.left, left)), **dict(zip(combine.right, right))}
        inner = replace(frame, names=names)
        return [self.value(result, inner) for result in combine.results]

    def chunks(self, axis: Axis, multiple: int, shape: tuple[int, ...]) -> list[Array]:
        """The positions of an axis in runs of bounded size, each but the last a multiple of the lanes."""
        extent = self.extent(axis)
        width = max(1, int(np.prod(shape, dtype=np.int64)))
        step = max(multiple, _CHUNK // width // multiple * multiple)
        return [np.arange(start, min(start + step, extent)) for start in range(0, extent, step)]

    def outer_points(self, axes: tuple[Axis, ...]) -> list[dict[str, int]]:
        ranges = [range(self.extent(axis)) for axis in axes[:-1]]
        return [dict(zip([a.name for a in axes], point)) for point in itertools.product(*ranges)]

    def reduce(self, stmt: Reduce, frame: _Frame) -> None:
        full = (stmt.lanes, *frame.shape)
        state = [np.array(np.broadcast_to(self.value(init, frame), full)) for init in stmt.inits]
        for point in self.outer_points(stmt.axes):
            for positions in self.chunks(stmt.axes[-1], stmt.lanes, frame.shape):
                inner = frame.at(point).along(stmt.axes[-1].name, positions)
                self.block(stmt.body, inner)
                values = [self._stacked(self.value(value, inner), inner) for value in stmt.values]
                for start in range(0, positions.size, stmt.lanes):
                    part = [value[start : start + stmt.lanes] for value in values]
                    count = len(part[0])
                    new = self.combine(stmt.combine, [s[:count] for s in state], part, inner)
                    for old, result in zip(state, new):
                        old[:count] = result
        half = stmt.lanes // 2
        while half:
            left, right = [s[:half] for s in state], [s[half : 2 * half] for s in state]
            merged = self.combine(stmt.combine, left, right, frame)
            state = [np.broadcast_to(m, (half, *frame.shape)) for m in merged]
            half //= 2
        frame.names.update(zip(stmt.names, (s[0] for s in state)))

    @staticmethod
    def _stacked(value: Array, frame: _Frame) -> Array:
        """A value with the front axis spelled out."""
        if value.ndim < len(frame.shape):
            value = value.reshape((1,) * (len(frame.shape) - value.ndim) + value.shape)
        return np.broadcast_to(value, (frame.shape[0], *value.shape[1:]))

    def contract(self, stmt: Contract, frame: _Frame) -> None:
        dtype = stmt.dtype
        state = np.zeros((stmt.lanes, *frame.shape), dtype.compute)
        init = None if stmt.init is None else self.value(stmt.init, frame)
        if init is not None and stmt.lanes == 1:
            state[...] = init
        for point in self.outer_points(stmt.axes):
            for positions in self.chunks(stmt.axes[-1], stmt.lanes, ()):
                inner = frame.at(point).along(stmt.axes[-1].name, positions)
                factors = (arithmetic.cast(self.value(e, inner), e.dtype, dtype) for e in (stmt.a, stmt.b))
                a, b = (self._stacked(factor, inner) for factor in factors)
                for start in range(0, positions.size, stmt.lanes):
                    x, y = a[start : start + stmt.lanes], b[start : start + stmt.lanes]
                    state[: len(x)] = multiply_add(x, y, state[: len(x)], dtype, stmt.fused)
        half = stmt.lanes // 2
        while half:
            state = state[:half] + state[half : 2 * half]
            half //= 2
        frame.names[stmt.name] = state[0] if init is None or stmt.lanes == 1 else init + state[0]

    def scan(self, stmt: Scan, frame: _Frame) -> None:
        state = [np.broadcast_to(self.value(init, frame), frame.shape) for init in stmt.inits]
        for positions in self.chunks(stmt.axis, 1, frame.shape):
            inner = frame.along(stmt.axis.name, positions)
            self.block(stmt.body, inner)
            values = [self._stacked(self.value(value, inner), inner) for value in stmt.values]
            running: list[list[Array]] = [[] for _ in state]
            for at in range(positions.size):
                new = self.combine(stmt.combine, state, [value[at] for value in values], frame)
                new = [np.broadcast_to(value, frame.shape) for value in new]
                for column, value in zip(running, state if stmt.exclusive else new):
                    column.append(value)
                state = new
            inner.names.update(zip(stmt.names, (np.stack(column) for column in running)))
            self.block(stmt.then, inner)

    def loop(self, stmt: Loop, frame: _Frame) -> None:
        extent = self.extent(stmt.axis)
        if stmt.axis.kind == "parallel":
            if extent:
                self.block(stmt.body, frame.along(stmt.axis.name, np.arange(extent)))
            return
        state = [self.value(init, frame) for init in stmt.inits]
        count = None if stmt.count is None else self.value(stmt.count, frame)
        steps = extent if count is None else min(extent, int(np.max(count, initial=0)))
        for at in range(steps):
            inner = frame.at({stmt.axis.name: at})
            runs = None if count is None or np.all(count > at) else np.asarray(count > at)
            inner = inner.masked(runs)
            inner.names.update(zip(stmt.carried, state))
            self.block(stmt.body, inner)
            new = [self.value(update, inner) for update in stmt.updates]
            state = new if runs is None else [np.where(runs, now, was) for now, was in zip(new, state)]
        frame.names.update(zip(stmt.carried, state))


def multiply_add(a: Array, b: Array, c: Array, dtype: DType, fused: bool) -> Array:
    """One step of a Contract.

    >>> from bringup.ir.dtypes import int64
    >>> int(multiply_add(np.int64(2), np.int64(3), np.int64(4), int64, True))
    10
    """
    if fused and dtype.is_float:
        return fma(a, b, c, dtype)
    return np.asarray(a * b) + c


def run(
    kernel: Kernel,
    buffers: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    params: Mapping[str, Number] | None = None,
) -> None:
    """Runs a kernel on NumPy arrays in place; bfloat16 arrays are uint16. An index out of range is an IndexError."""
    machine = _Machine(kernel, buffers, bind_sizes(kernel, buffers, sizes), param_values(kernel, params))
    with np.errstate(all="ignore"):
        machine.run()
