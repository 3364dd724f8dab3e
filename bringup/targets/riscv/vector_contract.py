"""Contractions in vector assembly: each number of the rows times a vector of columns, sums in register groups.

Groups of eight registers leave three sums beside the column vector: three rows at once, or one row with up to two
vectors. Every sum runs along k in order, so the bits do not depend on the vector length. Constants are packed: rows so
that the numbers of a tile follow each other, columns so that they are adjacent.

Instructions for each vector multiply-add: 8/3 with three rows (a convolution), 7/2 with one (a matrix times a vector).
Small integers are widened as they are loaded, for sums of int32; what follows such sums is another kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bringup.ir.dtypes import float32, int32
from bringup.ir.expr import Load, Name
from bringup.ir.kernel import Buffer, Kernel, Store
from bringup.targets.riscv.asm import Asm, OutOfRegisters, Pointer
from bringup.targets.riscv.contraction import Contraction, Span, contraction_of, known_steps, merged_k, packable
from bringup.targets.riscv.rendered import Rendered
from bringup.targets.riscv.tiles import Walk, packed_order, pieces, walks
from bringup.targets.riscv.vector_strip import advance, resolved, wrapped
from bringup.targets.riscv.vector_values import Access, Group, NotInVectors, VectorValues

_LMUL = 8
_GROUPS = (8, 16, 24)
#: The column vector: its group is free for masks afterwards.
_FACTOR = 0
#: That of a second vector.
_SECOND = 24
#: Columns from which on no other form can be quicker, if they are adjacent.
_LONG = 4
#: Floating-point registers that sums and their epilogue need besides numbers that stay in registers.
_OTHER_FLOATS = 3


def vector_contract(kernel: Kernel, name: str, constants: frozenset[str], prefix: str = "") -> Rendered | None:
    """The contraction in assembly, under a name that begins with ``prefix``; None for other kernels."""
    c = contraction_of(kernel)
    if c is None or c.macs == 0 or c.contract.dtype not in (float32, int32) or len(kernel.buffers) > 8:
        return None
    for height in (3, 2, 1):
        try:
            return _Writer(c, name, prefix, constants, min(height, c.row.extent)).rendered()
        except OutOfRegisters:
            continue
        except NotInVectors:
            return None
    return None


@dataclass(frozen=True)
class _Factor:
    """One side: its buffer, the bytes of a step on each axis outside of k, and its places along k (elements)."""

    buffer: str
    base: int
    steps: dict[str, int]
    k: tuple[int, ...]
    """One for each axis of the sum."""


class _Writer:
    def __init__(self, c: Contraction, name: str, prefix: str, constants: frozenset[str], height: int) -> None:
        self.c, self.name, self.height = c, name, height
        self.asm = Asm(f"{prefix}{name}_vector", len(c.kernel.buffers))
        self.arguments = {buffer.name: f"a{n}" for n, buffer in enumerate(c.kernel.buffers)}
        self.row, self.column = c.row, c.columns[-1]
        self.integers = c.contract.dtype is int32
        self.row_bytes, self.column_bytes = c.row_buffer.dtype.size, c.column_buffer.dtype.size
        self.row_in_tile = 0
        self.taken: set[str] = set()
        self.packed: dict[str, npt.NDArray[np.int64]] = {}
        self.kept: dict[tuple[int, int], str] = {}
        constants = packable(c, constants)
        self.packs_rows = c.row_buffer.name in constants
        self.packs_columns = c.column_buffer.name in constants
        self.column_factor = self._columns()
        self.row_factor = self._rows()
        self.values = VectorValues(self.asm, _LMUL, self._access)
        self.stores = resolved(c.after)
        if self.integers and [store.value for store in self.stores] != [Name(c.contract.name, int32)]:
            raise NotInVectors("integer sums that are more than stored")
        self.pointers: dict[tuple[str, tuple[tuple[str, int], ...]], Pointer] = {}

    # how the factors lie

    def _columns(self) -> _Factor:
        c, inner = self.c, self.column
        moving = [(span, span.column_step) for span in (*c.batch, *c.columns[:-1])]
        lanes, k = (inner, inner.column_step), [(span.extent, span.column_step) for span in c.k]
        tile = inner.extent if self.packs_columns else 0
        made = self._factor(c.column_buffer, c.column_base, moving, lanes, k, tile)
        if tile:  # all columns are one tile: neighbours are adjacent
            made.steps[inner.axis.name] = self.column_bytes
        return made

    def _rows(self) -> _Factor:
        c, row = self.c, self.row
        moving = [(span, span.row_step) for span in (*c.batch, *c.rows[:-1])]
        lanes, k = (row, row.row_step), [(span.extent, span.row_step) for span in c.k]
        made = self._factor(c.row_buffer, c.row_base, moving, lanes, k, self.height if self.packs_rows else 0)
        # Tiles have other heights at the end: _along_k counts positions and scales them.
        return replace(made, k=_in_line(k, 1)) if self.packs_rows else made

    def _factor(
        self,
        buffer: Buffer,
        base: int,
        moving: Sequence[tuple[Span, int]],
        lanes: tuple[Span, int],
        k: Sequence[tuple[int, int]],
        tile: int,
    ) -> _Factor:
        """A factor as it lies, or packed in tiles of some lanes; axes come with their steps."""
        span, step = lanes
        size = buffer.dtype.size
        if not tile:
            steps = {one.axis.name: size * far for one, far in (*moving, lanes)}
            return _Factor(buffer.name, size * base, steps, tuple(far for _, far in k))
        outer = [(one.extent, far) for one, far in moving if far]
        self.packed[buffer.name] = packed_order(base, outer, (span.extent, step), tile, k)
        steps = _packed_steps(moving, span.extent * self.c.depth, size)
        steps[span.axis.name] = size * self.c.depth
        return _Factor(buffer.name, 0, steps, _in_line(k, tile))

    # pointers

    def _pointer(self, buffer: str, steps: dict[str, int], base: int = 0) -> Pointer:
        register = self.arguments[buffer]
        if buffer in self.taken:
            register = self.asm.take()
            self.values.prologue.append(f"  mv {register}, {self.arguments[buffer]}")
        self.taken.add(buffer)
        if base:
            with self.asm.temporary() as number:
                self.values.prologue += [f"  li {number}, {base}", f"  add {register}, {register}, {number}"]
        return Pointer(register, steps)

    def _access(self, name: str, node: Load | Store) -> Access:
        """Where the epilogue finds an element, for the row of the tile that it is at."""
        c = self.c
        buffer = c.kernel.buffer(name)
        spans = (*c.batch, *c.rows, *c.columns)
        if not isinstance(buffer, Buffer) or buffer.dtype is not c.contract.dtype:
            raise NotInVectors("memory of another type")
        found = known_steps(buffer, node.indices, [span.axis for span in spans])
        if found is None:
            raise NotInVectors("an index that is not a sum of steps")
        steps = {span.axis.name: 4 * step for span, step in zip(spans, found[0])}
        key = (name, tuple(sorted(steps.items())))
        if key not in self.pointers:
            self.pointers[key] = self._pointer(name, steps)
        displacement = 4 * found[1] + self.row_in_tile * steps.get(self.row.axis.name, 0)
        return Access(self.pointers[key].register, displacement, steps[self.column.axis.name] // 4)

    # the function

    def rendered(self) -> Rendered:
        c = self.c
        rows = self._pointer(self.row_factor.buffer, self.row_factor.steps, self.row_factor.base)
        columns = self._pointer(self.column_factor.buffer, self.column_factor.steps, self.column_factor.base)
        self.values.prepare(self.stores)
        if self._column_step not in (0, 1):
            self.values.stride(self._column_step, self.column_bytes)
        outside = [(span.axis.name, span.extent) for span in (*c.batch, *c.rows[:-1])]
        walkers = [rows, columns, *self.pointers.values()]
        row_name = self.row.axis.name
        moved = [self.row.extent * walker.step(row_name) for walker in walkers]
        with self.asm.nest(outside, walkers, moved):
            for starts, height in pieces(self.row.extent, self.height):
                with self.asm.times(len(starts)):
                    self._row_tile(rows, columns, walkers, height)
                    done = self._moved_by_columns(walkers)
                    for walker, far in zip(walkers, done):
                        self.asm.add(walker.register, height * walker.step(row_name) - far)
        self.asm.lines[:0] = self.values.prologue
        made = wrapped(c.kernel, self.name, self.asm, f"vectors, {self.height} rows at once")
        adjacent = self._column_step in (0, 1) and self.column.extent >= _LONG
        return replace(made, packed=self.packed, surely_best=adjacent)

    def _moved_by_columns(self, walkers: Sequence[Pointer]) -> list[int]:
        outer = self.c.columns[:-1]
        if outer:
            return [outer[0].extent * walker.step(outer[0].axis.name) for walker in walkers]
        return self._moved_by_strip(walkers)

    def _moved_by_strip(self, walkers: Sequence[Pointer]) -> list[int]:
        name = self.column.axis.name
        return [0 if self._once else self.column.extent * walker.step(name) for walker in walkers]

    @property
    def _column_step(self) -> int:
        """Elements between neighbours of a column vector."""
        return self.column_factor.steps[self.column.axis.name] // self.column_bytes

    @property
    def _once(self) -> bool:
        """True if the shortest vectors take all columns."""
        return self.column.extent <= 4 * _LMUL

    def _row_tile(self, rows: Pointer, columns: Pointer, walkers: list[Pointer], height: int) -> None:
        asm, name = self.asm, self.column.axis.name
        outer = [(span.axis.name, span.extent) for span in self.c.columns[:-1]]
        self._keep(rows, height)
        with asm.nest(outer, walkers, self._moved_by_strip(walkers)):
            left, count = asm.take(), asm.take()
            asm.load_number(left, self.column.extent)
            if self._once:
                asm.line(f"vsetvli {count}, {left}, e32, m{_LMUL}, ta, ma")
                self._sums(rows, columns, height, 1, count)
                self._epilogue(height, 0)
            else:
                top, single, end = asm.label(), asm.label(), asm.label()
                moving = [walker for walker in walkers if walker is not rows]
                after = [walker for walker in moving if walker is not columns]
                asm.place(top)
                asm.line(f"vsetvli {count}, {left}, e32, m{_LMUL}, ta, ma")
                asm.line(f"sub {left}, {left}, {count}")
                if height == 1:
                    asm.line(f"bltu {left}, {count}, {single}")
                    asm.line(f"sub {left}, {left}, {count}")
                    self._sums(rows, columns, 1, 2, count)
                    advance(asm, [columns], name, count)
                    self._epilogue(1, 0)
                    advance(asm, after, name, count)
                    self._epilogue(1, 1)
                    advance(asm, moving, name, count)
                    asm.line(f"bnez {left}, {top}")
                    asm.line(f"j {end}")
                    asm.place(single)
                self._sums(rows, columns, height, 1, count)
                self._epilogue(height, 0)
                advance(asm, moving, name, count)
                asm.line(f"bnez {left}, {top}")
                asm.place(end)
            asm.give(count)
            asm.give(left)
        for register in self.kept.values():
            asm.give_float(register)
        self.kept = {}

    def _keep(self, rows: Pointer, height: int) -> None:
        """Loads the numbers of a tile once for all columns, if registers hold them all: taps of a small window."""
        spans = self._along_k(height)
        (walk, *more) = walks(spans)
        several = (not self._once or len(self.c.columns) > 1) and not self.integers
        enough = len(walk.inner) * height <= self.asm.floats_left - _OTHER_FLOATS
        if more or walk.outer or not several or not enough:
            return
        for row, _ in walk.inner:
            for i in range(height):
                place = 4 * (row + i) if self.packs_rows else 4 * row + i * rows.step(self.row.axis.name)  # float32
                if not -2048 <= place < 2048:
                    continue
                self.kept[row, i] = self.asm.take_float()
                self.asm.line(f"flw {self.kept[row, i]}, {place}({rows.register})")

    def _along_k(self, height: int) -> Sequence[Span]:
        """The axes of the sum for a tile of some rows."""
        scale = height if self.packs_rows else 1
        spans = [
            Span(span.axis, span.extent, scale * row, column)
            for span, row, column in zip(self.c.k, self.row_factor.k, self.column_factor.k)
        ]
        return merged_k(spans)

    def _sums(self, rows: Pointer, columns: Pointer, height: int, vectors: int, count: str) -> None:
        """The sums of a tile: ``height`` rows of one vector, or one row of two."""
        asm = self.asm
        for group in _GROUPS[: height * vectors]:
            asm.line(f"vmv.v.i v{group}, 0")
        lanes = 1 if self.packs_rows else height
        row_registers = [asm.take() for _ in range(lanes)]
        column_register = asm.take()
        second = asm.take() if vectors == 2 else ""
        if second:
            self._scaled(second, count)
        for i, register in enumerate(row_registers):
            asm.add(register, i * rows.step(self.row.axis.name), rows.register)
        asm.add(column_register, 0, columns.register)
        at = _At(0, 0)
        for walk in walks(self._along_k(height)):
            at = self._walk(walk, row_registers, column_register, second, height, at)
        for register in (*row_registers, column_register, *([second] if second else [])):
            asm.give(register)

    def _walk(self, walk: Walk, rows: list[str], column: str, second: str, height: int, at: _At) -> _At:
        """One way along k; the pointers are ``at`` some elements from the start of the sums, and move on."""
        asm = self.asm
        up, across = self.row_bytes, self.column_bytes
        steps = [Pointer(register, {s.axis.name: up * s.row_step for s in walk.outer}) for register in rows]
        steps.append(Pointer(column, {s.axis.name: across * s.column_step for s in walk.outer}))
        first, last = walk.inner[0], walk.inner[-1]
        for register in rows:
            asm.add(register, up * (first[0] - at.row))
        asm.add(column, across * (first[1] - at.column))
        # Numbers of rows are reached by their displacement; the columns' register moves along.
        moved = [*(0 for _ in rows), across * (last[1] - first[1])]
        with asm.nest([(s.axis.name, s.extent) for s in walk.outer], steps, moved):
            now = first[1]
            for row, place in walk.inner:
                asm.add(column, across * (place - now))
                now = place
                self._products(rows, row, row - first[0], column, second, height)
        if walk.outer:
            # Whoever comes next starts where the loops ended: behind all of their steps.
            span = walk.outer[0]
            return _At(first[0] + span.extent * span.row_step, first[1] + span.extent * span.column_step)
        return _At(first[0], last[1])

    def _products(self, rows: list[str], at: int, offset: int, column: str, second: str, height: int) -> None:
        """One position of k: ``at`` is its place in the rows, ``offset`` that from where the registers point."""
        asm = self.asm
        self._load(_FACTOR, column)
        if second:
            with asm.temporary() as there:
                asm.line(f"add {there}, {column}, {second}")
                self._load(_SECOND, there)
        for i in range(height):
            number = self.kept.get((at, i))
            loaded = number is None
            if number is None:
                base, place = (rows[0], offset + i) if self.packs_rows else (rows[i], offset)
                number = self._number(base, place * self.row_bytes)
            for group, factor in ((_GROUPS[i], _FACTOR), *([(_GROUPS[1], _SECOND)] if second else [])):
                asm.line(f"{'vmacc.vx' if self.integers else 'vfmacc.vf'} v{group}, {number}, v{factor}")
            if loaded:
                (asm.give if self.integers else asm.give_float)(number)

    def _load(self, group: int, address: str) -> None:
        """A vector of columns; small integers are put where their group ends and widened from there."""
        asm, step, size = self.asm, self._column_step, self.column_bytes
        strided, stride = ("", "") if step == 1 else ("s", f", {self.values.stride(step, size)}")
        if size == 4:
            asm.line(f"vl{strided}e32.v v{group}, ({address}){stride}")
            return
        narrow = group + _LMUL - _LMUL * size // 4
        asm.line(f"vl{strided}e{8 * size}.v v{narrow}, ({address}){stride}")
        extend = "vsext" if self.c.column_buffer.dtype.low < 0 else "vzext"
        asm.line(f"{extend}.vf{4 // size} v{group}, v{narrow}")

    def _number(self, base: str, place: int) -> str:
        """A number of the rows in a register."""
        if not -2048 <= place < 2048:
            raise OutOfRegisters("a displacement that no load takes")
        if not self.integers:
            number = self.asm.take_float()
            self.asm.line(f"flw {number}, {place}({base})")
            return number
        number = self.asm.take()
        signed = self.c.row_buffer.dtype.low < 0
        load = {1: "lb" if signed else "lbu", 2: "lh" if signed else "lhu", 4: "lw"}[self.row_bytes]
        self.asm.line(f"{load} {number}, {place}({base})")
        return number

    def _scaled(self, register: str, count: str) -> None:
        """Bytes of as many columns as a register says."""
        nbytes = self._column_step * self.column_bytes
        if nbytes > 0 and nbytes & nbytes - 1 == 0:
            self.asm.line(f"slli {register}, {count}, {nbytes.bit_length() - 1}")
        else:
            self.asm.line(f"mul {register}, {count}, {self.values.stride(self._column_step, self.column_bytes)}")

    def _epilogue(self, height: int, vector: int) -> None:
        used = _GROUPS[vector : vector + height]
        later = (_GROUPS[1],) if height == 1 and vector == 0 else ()
        self.values.free = [group for group in _GROUPS if group not in (*used, *later)]
        sums = Name(self.c.contract.name, float32)
        for i, group in enumerate(used):
            self.row_in_tile = i
            if self.integers:
                self.values.store(Group(group), self._access(self.stores[0].buffer, self.stores[0]))
            else:
                self.values.run(self.stores, {sums: Group(group)})
        self.row_in_tile = 0


@dataclass(frozen=True)
class _At:
    """How many elements a pointer of rows and one of columns are behind the start of the sums."""

    row: int
    column: int


def _packed_steps(moving: Sequence[tuple[Span, int]], size: int, nbytes: int) -> dict[str, int]:
    """Bytes of a step in a packed factor whose innermost piece has ``size`` elements of some bytes."""
    steps = {}
    for span, step in reversed(moving):
        steps[span.axis.name] = nbytes * size if step else 0
        size *= span.extent if step else 1
    return steps


def _in_line(k: Sequence[tuple[int, int]], lanes: int) -> tuple[int, ...]:
    """Steps along k where numbers follow each other, ``lanes`` for each position."""
    return tuple(lanes * math.prod(extent for extent, _ in k[at + 1 :]) for at in range(len(k)))
