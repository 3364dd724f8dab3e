"""Contractions in scalar C: a tile of sums in registers, constants packed so that each tile reads them in one line.

Every product needs its fused multiply-add; what can be saved are loads. A tile of r rows and p columns loads r + p
numbers for r × p products, and compilers keep 16 sums in registers beside them: 4 × 4 costs 1.5 instructions a product
(less where taps of a convolution share numbers), a single row (a matrix times a vector) 2.06.

Integers have no such instruction. On cores of 64 bits two rows of bytes are one number, a + b · 2³²: its product with
a column is both products, and one sum of 64 bits holds two of 32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bringup.ir.index import AxisVar
from bringup.ir.kernel import Kernel, Store
from bringup.ir.walk import Substitution
from bringup.targets.c.options import COptions
from bringup.targets.c.parts import Parts
from bringup.targets.c.value import Value, bits_of, ctype, kind_of, storage_of
from bringup.targets.riscv.contraction import Contraction, Span, contraction_of, packable
from bringup.targets.riscv.rendered import Rendered
from bringup.targets.riscv.static_function import static_part
from bringup.targets.riscv.tiles import (
    INTEGER_SUMS,
    SUMS,
    Walk,
    best_height,
    best_pair_tile,
    best_tile,
    packed_order,
    pieces,
    walks,
)
from bringup.targets.riscv.windows import Window, starts_with_first, windowed_of

#: Variables that one asm statement may change; compilers allow 30 operands, and these count twice.
_OPERANDS = 8
#: Products of bytes that 32 bits hold in any case.
_PAIR_DEPTH = 1 << 15


def scalar_contract(kernel: Kernel, name: str, target: COptions, constants: frozenset[str]) -> Rendered | None:
    """The function of a contraction (perhaps with the pooling that follows it); None for other kernels.

    ``constants`` names the buffers whose contents are known: they are packed.
    """
    window = windowed_of(kernel)
    contraction = contraction_of(kernel) if window is None else window.contraction
    if contraction is None or contraction.macs == 0:
        return None
    return _Writer(kernel, name, target, constants, contraction, window).rendered()


@dataclass(frozen=True)
class _Side:
    """One factor: the loops that move it besides its tile, the axis of the tile's lanes, and how it is laid out."""

    buffer: str
    base: int
    outer: tuple[tuple[Span, int], ...]
    """Axis and step."""
    extent: int
    step: int
    tile: int
    k: tuple[tuple[int, int], ...]
    """Extent and step of each axis of the sum."""
    packed: bool

    @property
    def depth(self) -> int:
        """Numbers of each lane."""
        return math.prod(extent for extent, _ in self.k)

    @property
    def moving(self) -> list[tuple[Span, int]]:
        """The loops that really move it."""
        return [(span, step) for span, step in self.outer if step]

    def order(self) -> npt.NDArray[np.int64]:
        """The elements as the tiles read them."""
        outer = [(span.extent, step) for span, step in self.moving]
        return packed_order(self.base, outer, (self.extent, self.step), self.tile, self.k)


class _Writer:
    def __init__(
        self,
        kernel: Kernel,
        name: str,
        target: COptions,
        constants: frozenset[str],
        c: Contraction,
        window: Window | None,
    ) -> None:
        parts = Parts(kernel, target)
        self.w, self.values, self.statements, self.loops = parts.w, parts.values, parts.statements, parts.loops
        self.kernel, self.entry, self.c, self.window = kernel, name, c, window
        self.kind = kind_of(c.contract.dtype)
        self.scalar = ctype(self.kind)
        self.stored = {b.name: f"{storage_of(b.dtype)}_m" for b in (c.row_buffer, c.column_buffer)}
        self.row = c.row
        inside = window.columns if window else c.columns[-1:]
        self.outer_columns = tuple(span for span in c.columns if span not in inside)
        width = math.prod(span.extent for span in inside)
        most = SUMS if self.kind[0] == "f" else INTEGER_SUMS
        height = self.row.extent
        self.pairs = window is None and _in_pairs(c, target.isa)
        if self.pairs:
            self.tile = best_pair_tile(height, width)
        else:
            self.tile = (best_height(height, width, most), width) if window else best_tile(height, width, most)
        constants = packable(c, constants, window.rest if window else ())
        self.rows = _Side(
            c.row_buffer.name,
            c.row_base,
            tuple((span, span.row_step) for span in (*c.batch, *c.rows[:-1])),
            self.row.extent,
            self.row.row_step,
            self.tile[0],
            tuple((span.extent, span.row_step) for span in c.k),
            c.row_buffer.name in constants,
        )
        self.columns = _Side(
            c.column_buffer.name,
            c.column_base,
            tuple((span, span.column_step) for span in (*c.batch, *self.outer_columns)),
            width,
            inside[-1].column_step,
            self.tile[1],
            tuple((span.extent, span.column_step) for span in c.k),
            c.column_buffer.name in constants and window is None,
        )

    def rendered(self) -> Rendered:
        across = [span.axis for span in self.outer_columns]
        with self.loops.nest([span.axis for span in (*self.c.batch, *self.c.rows[:-1])]):
            for rows, height in pieces(self.row.extent, self.tile[0]):
                with self._tiles(rows) as row, self._rows_known(row, height), self.loops.nest(across):
                    if self.window:
                        self._one_tile(row, height, "0", self.tile[1])
                        continue
                    for columns, width in pieces(self.columns.extent, self.tile[1]):
                        with self._tiles(columns) as column:
                            self._one_tile(row, height, column, width)
        part = static_part(self.w, self.kernel, self.entry)
        packed = {side.buffer: side.order() for side in (self.rows, self.columns) if side.packed}
        more = ", pooled" if self.window else ", two in each" if self.pairs else ""
        how = f"{self.tile[0]} × {self.tile[1]} sums in registers{more}"
        return Rendered(part, packed, how=how)

    # loops

    @contextmanager
    def _tiles(self, starts: range) -> Iterator[str]:
        """A loop over tiles; gives the C text of where the tile begins."""
        if len(starts) == 1:
            yield str(starts[0])
            return
        at = self.w.fresh("t")
        with self.w.scope(f"for (int64_t {at} = 0; {at} < {starts.stop}; {at} += {starts.step}) {{"):
            yield at

    @contextmanager
    def _rows_known(self, row: str, height: int) -> Iterator[None]:
        """Each row of the tile as an axis of its own: what an integer epilogue computes from it leaves the loops."""
        if self.kind[0] == "f":
            yield
            return
        with self.w.scope() as scope:
            scope.axes |= {self._row_name(i): _plus(row, i) for i in range(height)}
            yield

    def _row_name(self, i: int) -> str:
        return f"{self.row.axis.name} {i}"

    # one tile

    def _one_tile(self, row: str, height: int, column: str, width: int) -> None:
        lines = (height + 1) // 2 if self.pairs else height
        sums = [[self.w.fresh("s") for _ in range(width)] for _ in range(lines)]
        for line in sums:
            self.w.line(f"{'int64_t' if self.pairs else self.scalar} {', '.join(f'{one} = 0' for one in line)};")
        rows = self._pointer(self.rows, row)
        columns = self._pointer(self.columns, column)
        # Compilers must not load a tile's numbers ahead of its loop and keep them on the stack: -7 % on a CNN.
        self.w.line(f'__asm__("" : "+r"({rows}), "+r"({columns}));')
        done = 0
        for walk in walks(self.c.k):
            self._walk(walk, rows, columns, sums, height, done)
            done += math.prod(span.extent for span in walk.outer) * len(walk.inner)
        self._settle([one for line in sums for one in line])
        if self.pairs:
            sums = self._apart(sums, height)
        if self.window:
            self._pool(sums, row)
        else:
            self._finish(sums, row, column)

    def _settle(self, sums: list[str]) -> None:
        """All sums are in registers here: clang would move their last products behind the epilogues of others."""
        kind = "f" if self.kind[0] == "f" else "r"
        if kind == "f" and bits_of(self.kind) > _float_bits(self.w.target.isa):
            return
        for at in range(0, len(sums), _OPERANDS):
            named = ", ".join(f'"+{kind}"({one})' for one in sums[at : at + _OPERANDS])
            self.w.line(f'__asm__("" : {named});')

    def _pointer(self, side: _Side, lane: str) -> str:
        """A pointer to the first number of a tile."""
        terms = [(self.w.axis(span.axis.name)[0], step) for span, step in side.outer] + [(lane, side.step)]
        base = side.base
        if side.packed:
            base, size = 0, side.extent * side.depth
            terms = [(lane, side.depth)]
            for span, _ in reversed(side.moving):
                terms.append((self.w.axis(span.axis.name)[0], size))
                size *= span.extent
        elif self.window and side is self.columns:
            terms.pop()
        name = self.w.fresh("p")
        self.w.line(f"const {self.stored[side.buffer]} *{name} = b_{side.buffer} + {_affine(base, terms)};")
        return name

    def _walk(self, walk: Walk, rows: str, columns: str, sums: list[list[str]], height: int, done: int) -> None:
        """The products of a tile along k; ``done`` is how many of each sum were before."""
        width = len(sums[0])
        row_lanes = [i * self.rows.step for i in range(height)]
        column_lanes = [j * self.columns.step for j in range(width)]
        if self.window:
            spans = self.window.columns
            column_lanes = [sum(a * s.column_step for a, s in zip(at, spans)) for at in self.window.positions]
        row_at, column_at = [r for r, _ in walk.inner], [c for _, c in walk.inner]
        row_move, column_move = [s.row_step for s in walk.outer], [s.column_step for s in walk.outer]
        if self.rows.packed:
            row_lanes, row_at, row_move = _in_line(walk, height, done)
        if self.columns.packed:
            column_lanes, column_at, column_move = _in_line(walk, width, done)
        with ExitStack() as stack:
            for span, up, across in zip(walk.outer, row_move, column_move):
                at, r, c = self.w.fresh("k"), self.w.fresh("p"), self.w.fresh("p")
                moves = f"{at}++, {r} += {up}, {c} += {across}"
                self.w.line(f"const {self.stored[self.rows.buffer]} *{r} = {rows};")
                self.w.line(f"const {self.stored[self.columns.buffer]} *{c} = {columns};")
                stack.enter_context(self.w.scope(f"for (int64_t {at} = 0; {at} < {span.extent}; {moves}) {{"))
                rows, columns = r, c
            loaded: dict[str, str] = {}  # a number that several taps of a convolution read is loaded once
            for up, across in zip(row_at, column_at):
                a = [f"{rows}[{lane + up}]" for lane in row_lanes]
                b = [f"{columns}[{lane + across}]" for lane in column_lanes]
                (self._pair_products if self.pairs else self._products)(sums, a, b, loaded)
                if self.kind[0] != "f":  # clang would multiply first, add later, and run out of registers
                    self._settle([one for line in sums for one in line])
                    self.w.line('__asm__ volatile("" ::: "memory");')  # nor keep numbers for later taps
                    loaded.clear()

    def _products(self, sums: list[list[str]], rows: list[str], columns: list[str], loaded: dict[str, str]) -> None:
        """One step along k: the shorter side is loaded first and kept, the other as it is needed."""
        down = len(rows) <= len(columns)
        first = [self._number_at(text, loaded) for text in (rows if down else columns)]
        for at, text in enumerate(columns if down else rows):
            other = self._number_at(text, loaded)
            for number, one in enumerate(first):
                i, j = (number, at) if down else (at, number)
                a, b = (one, other) if down else (other, one)
                self.w.line(f"{sums[i][j]} = {self._added(a, b, sums[i][j])};")

    def _pair_products(
        self, sums: list[list[str]], rows: list[str], columns: list[str], loaded: dict[str, str]
    ) -> None:
        """The same with two rows in each number; the last of an odd number of rows is alone."""
        first = []
        for at in range(0, len(rows), 2):
            low, *high = [self._number_at(text, loaded) for text in rows[at : at + 2]]
            first.append(self.w.fresh())
            more = f" + (int64_t)((uint64_t)(int64_t){high[0]} << 32)" if high else ""
            self.w.line(f"const int64_t {first[-1]} = {low}{more};")
        for at, text in enumerate(columns):
            other = self._number_at(text, loaded)
            for line, one in zip(sums, first):
                self.w.line(f"{line[at]} += {one} * {other};")

    @staticmethod
    def _apart(sums: list[list[str]], height: int) -> list[list[str]]:
        """The sums of 32 bits that those of 64 hold: below, and above what is left without the lower one.

        They are written where they are used: as variables they would all be alive at once.
        """
        low = [[f"((int32_t){both})" for both in line] for line in sums]
        high = [[f"((int32_t)(({both} - (int32_t){both}) >> 32))" for both in line] for line in sums]
        return [line for pair in zip(low, high) for line in pair][:height]

    def _added(self, a: str, b: str, total: str) -> str:
        """C of the next sum."""
        return self.w.call("fma", self.kind, 1, a, b, total) if self.kind[0] == "f" else f"{total} + {a} * {b}"

    def _number_at(self, text: str, loaded: dict[str, str]) -> str:
        if text not in loaded:
            loaded[text] = self.w.fresh()
            self.w.line(f"const {self.scalar} {loaded[text]} = {text};")
        return loaded[text]

    # what follows the sums

    def _finish(self, sums: list[list[str]], row: str, column: str) -> None:
        inner = self.c.columns[-1].axis.name
        if self.kind[0] != "f":
            self._finish_integers(sums, column)
            return
        for i, line in enumerate(sums):
            with self.w.scope() as outside, self.w.pinned():
                outside.axes[self.row.axis.name] = _plus(row, i)
                for j, one in enumerate(line):
                    with self.w.scope() as scope:
                        scope.axes[inner] = _plus(column, j)
                        scope.names[self.c.contract.name] = Value(one, self.kind, 1, self.w.depth)
                        self.statements.block(self.c.after)

    def _finish_integers(self, sums: list[list[str]], column: str) -> None:
        """Multipliers, shifts and biases of a row cost more than a sum of int8: they are there before the columns."""
        for i, line in enumerate(sums):
            rename = Substitution(axes={self.row.axis.name: AxisVar(self._row_name(i))})
            for j, one in enumerate(line):
                with self.w.scope() as scope:
                    scope.axes[self.c.columns[-1].axis.name] = _plus(column, j)
                    scope.names[self.c.contract.name] = Value(one, self.kind, 1, self.w.depth)
                    self.statements.block(rename.block(self.c.after))

    def _pool(self, sums: list[list[str]], row: str) -> None:
        window = self.window
        assert window is not None
        *lets, store = self.c.after
        assert isinstance(store, Store)
        for i, line in enumerate(sums):
            with self.w.scope() as scope, self.w.pinned():
                scope.axes[self.row.axis.name] = _plus(row, i)
                state = None if starts_with_first(window.reduce) else self.values.value(window.reduce.inits[0])
                for at, one in zip(window.positions, line):
                    # Each place has its own values under the same names.
                    scope.memo.clear()
                    scope.axes |= {span.axis.name: str(place) for span, place in zip(window.columns, at)}
                    scope.names[self.c.contract.name] = Value(one, self.kind, 1, self.w.depth)
                    self.statements.block(tuple(lets))
                    combine = window.reduce.combine
                    value = self.values.value(store.value)
                    if state is not None:
                        scope.names[combine.left[0]], scope.names[combine.right[0]] = state, value
                        value = self.values.value(combine.results[0])
                    state = value
                scope.memo.clear()
                assert state is not None
                scope.names[window.reduce.names[0]] = state
                self.statements.block(window.rest)


def _in_pairs(c: Contraction, isa: str) -> bool:
    """True if two rows fit into a number of 64 bits: the lower sum never needs more than 32."""
    bytes_only = c.row_buffer.dtype.size == c.column_buffer.dtype.size == 1 and not c.contract.dtype.is_float
    return isa.startswith("rv64") and bytes_only and c.row.extent > 1 and c.depth <= _PAIR_DEPTH


def _float_bits(isa: str) -> int:
    """The width of an instruction set's floating-point registers.

    >>> [_float_bits(isa) for isa in ("rv64gcv", "rv32imfc", "rv32imc_zicsr")]
    [64, 32, 0]
    """
    letters = isa[4:].partition("_")[0]
    return 64 if not isa or set(letters) & set("gdv") else 32 if "f" in letters else 0


def _in_line(walk: Walk, lanes: int, done: int) -> tuple[list[int], list[int], list[int]]:
    """Offsets of lanes and steps, and the moves of the loops, in a packed factor."""
    count = len(walk.inner)
    moves: list[int] = []
    size = count * lanes
    for span in reversed(walk.outer):
        moves.insert(0, size)
        size *= span.extent
    return list(range(lanes)), [(done + at) * lanes for at in range(count)], moves


def _plus(text: str, number: int) -> str:
    if text.isdigit():
        return str(int(text) + number)
    return f"({text} + {number})" if number else text


def _affine(base: int, terms: Sequence[tuple[str, int]]) -> str:
    """C of base + Σ variable × factor.

    >>> _affine(3, [("a", 4), ("b", 0), ("2", 5)])
    '(13 + 4 * a)'
    """
    base += sum(int(text) * factor for text, factor in terms if text.isdigit())
    words = [f"{factor} * {text}" for text, factor in terms if factor and not text.isdigit()]
    return f"({' + '.join([str(base), *words])})"
