"""Windows in C: depthwise convolutions with the image of a work unit packed, and a tile of outputs in registers.

A unit is a block of outputs of one image and channel (or one vector of channels). What it reads is evaluated once, with
padding and types as the kernel says, into a block of the stack; then a tile of neighbouring outputs sums all its taps
without a test. Sums run over the taps in order, so their bits are those of the plain loops.

One core of Zen 5, float32, against oneDNN (torch 2.13): 7 x 7 on 1 x 96 x 56 x 56 takes 1.0 of its time, channels last
0.75 (the plain loops: 43 and 27); 3 x 3 with stride 2 on 1 x 64 x 112 x 112 takes 1.3 and 1.4 (22 and 4.6). Rows of 7
fill less than half of a vector: 5 x 5 on 4 x 576 x 7 x 7 takes 2.0, channels last 0.8 (85 and 19).
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.ir.index import AxisVar, Index, Int
from bringup.ir.kernel import Kernel
from bringup.ir.walk import Substitution
from bringup.ir.window_form import Window, WindowForm, recognise_window
from bringup.targets.c.options import COptions
from bringup.targets.c.parts import Parts
from bringup.targets.c.plan import widest_bits
from bringup.targets.c.scope import Vector
from bringup.targets.c.unit import Part, declare_arguments, entry_head, entry_name
from bringup.targets.c.value import Value, ctype, kind_of

#: Positions of a packed block, at most: it stays in the second-level cache with what else there is.
_BLOCK_BYTES = 96 << 10
#: Outputs of a tile: sums that wait for each other take two or three cycles an addition, and two go at a time.
_TILE = {1: 8, 2: 4, 3: 2, 4: 2}
_ROW, _COLUMN = "window row", "window column"  # no names of the IR


def windowed(kernel: Kernel, target: COptions) -> Part | None:
    """The function of a kernel of windows; None for every other kernel, and for cores without a stack or vectors."""
    if target.vector_bytes < 16 or target.isa.startswith("rv"):
        return None
    form = recognise_window(kernel)
    return None if form is None else _Windows(form, target).part()


class _Windows:
    """The function of one kernel."""

    def __init__(self, form: WindowForm, target: COptions) -> None:
        self.form, self.kernel = form, form.kernel
        self.parts = parts = Parts(form.kernel, target)
        self.w, self.loops = parts.w, parts.loops
        self.kind = kind_of(form.reduce.inits[0].dtype)
        self.inner = form.kernel.axes[-1]
        values = (form.value, form.factor, *form.reduce.inits)
        bits = max(widest_bits((*form.before, *form.after), values, self.inner.name), int(self.kind[1:]))
        self.lanes = target.vector_bytes * 8 // bits
        self.across = 1 if form.along else self.lanes
        self.column = form.windows[-1]
        self.row: Window | None = form.windows[0] if len(form.windows) == 2 else None
        self._sizes()

    def _sizes(self) -> None:
        """Chooses the tile, and the largest block of outputs whose input fits."""
        lanes, column, row = self.lanes, self.column, self.row
        jammed = row if self.form.along else column
        self.tile = 4 if jammed is None else _TILE[jammed.scale]
        most = _BLOCK_BYTES // (int(self.kind[1:]) // 8)
        if self.form.along:
            self.columns = 8 * lanes * (1 if row is not None else 8)
            self.phases = column.scale
            self.phase = self.columns + -(-column.reach // column.scale) + lanes
            self.phase = -(-self.phase // lanes) * lanes
            self.pitch = self.phases * self.phase
        else:
            self.columns = 64 // column.scale
            self.phases, self.phase = 1, 0
            self.pitch = column.length(self.columns) * lanes
        self.rows = 1
        if row is not None:
            self.rows = 32
            while self.rows > self.tile and row.length(self.rows) * self.pitch > most:
                self.rows -= self.tile if self.form.along else 4
        # A tile may begin at the last output of a block.
        spare = self.tile if self.form.along and row is not None else 0
        self.input_rows = 1 if row is None else row.length(self.rows + spare)
        self.length = self.input_rows * self.pitch + (0 if self.form.along else column.scale * self.tile * lanes)

    @property
    def vector(self) -> str:
        """The C type of a vector of sums."""
        return ctype(self.kind, self.lanes)

    @property
    def scalar(self) -> str:
        """The C type of a sum."""
        return ctype(self.kind)

    def part(self) -> Part:
        """The functions, and the number of work units."""
        declare_arguments(self.parts, self.kernel)
        units = self._entry()
        text = self._tile_function() + (self._split_function() if self.phases > 1 else "")
        text += f"{entry_head(self.kernel)}{self.w.text()}}}\n"
        return Part(entry_name(self.kernel), units, text, frozenset(self.w.needs), self.w.snippets)

    # the tile

    def _tile_function(self) -> str:
        """Sums of neighbouring outputs: rows of one vector, or columns of one vector of channels."""
        jam, lines = range(self.tile), []
        for j in jam:
            lines.append(f"{self.vector} s{j} = {{0}};")
        for row_tap, rows in self._row_taps():
            lines += self._row_of_taps(row_tap, rows)
        for j in jam:
            lines.append(f"*({self.vector} *)(out + {j * self.lanes}) = s{j};")
        body = "".join(f"  {line}\n" for line in lines)
        scalar = self.scalar
        return f"static inline void bu_window_tile(const {scalar} *x, const {scalar} *f, {scalar} *out) {{\n{body}}}\n"

    def _row_taps(self) -> Sequence[tuple[int, list[tuple[int, int]]]]:
        """For each input row, in the order of the taps: its distance, and which (output of the tile, tap) read it."""
        row = self.row
        if row is None:
            return [(0, [(j, 0) for j in range(self.tile)])]
        if not self.form.along:
            return [(row.tap_at(r), [(j, r) for j in range(self.tile)]) for r in range(row.taps)]
        found: dict[int, list[tuple[int, int]]] = {}
        for j in range(self.tile):
            for r in range(row.taps):
                found.setdefault(row.scale * j + row.tap_at(r), []).append((j, r))
        return sorted(found.items(), reverse=row.step < 0)

    def _row_of_taps(self, distance: int, readers: list[tuple[int, int]]) -> list[str]:
        """C that adds what the outputs of a tile read from one input row."""
        column, lines = self.column, []
        start = distance * self.pitch
        vector, load = self.vector, f"*(const {self.kind}x{self.lanes}_m *)"
        if self.form.along:
            wide = range(self.tile) if self.row is None else range(1)
            for r in range(column.taps):
                at = column.tap_at(r)
                place = start + at % self.phases * self.phase + at // self.phases
                for part in wide:
                    lines.append(f"{{ const {vector} v = {load}(x + {place + part * self.lanes});")
                    for j, tap in readers if self.row is not None else [(part, 0)]:
                        lines.append(self._added(j, f"f[{tap * column.taps + r}]"))
                    lines.append("}")
            return lines
        tap = readers[0][1]
        names = []
        for r in range(column.taps):
            names.append(f"f{tap}_{r}")
            lines.append(f"const {vector} {names[-1]} = {load}(f + {(tap * column.taps + r) * self.lanes});")
        found: dict[int, list[tuple[int, int]]] = {}
        for j in range(self.tile):
            for r in range(column.taps):
                found.setdefault(column.scale * j + column.tap_at(r), []).append((j, r))
        for at, readers_here in sorted(found.items(), reverse=column.step < 0):
            lines.append(f"{{ const {vector} v = {load}(x + {start + at * self.lanes});")
            lines += [self._added(j, names[r]) for j, r in readers_here]
            lines.append("}")
        return lines

    def _added(self, j: int, factor: str) -> str:
        product = f"{factor} * v" if self.form.factor_first else f"v * {factor}"
        return f"  s{j} += {product};"

    def _split_function(self) -> str:
        """Even positions of a packed row to its first half, odd ones to its second."""
        lanes, load = self.lanes, f"*(const {self.kind}x{self.lanes}_m *)"
        even = ", ".join(str(2 * k) for k in range(lanes))
        odd = ", ".join(str(2 * k + 1) for k in range(lanes))
        return f"""static inline void bu_window_split(const {self.scalar} *line, {self.scalar} *to, int64_t count) {{
  for (int64_t k = 0; k < count; k += {lanes}) {{
    const {self.vector} a = {load}(line + 2 * k), b = {load}(line + 2 * k + {lanes});
    *({self.kind}x{lanes}_m *)(to + k) = __builtin_shufflevector(a, b, {even});
    *({self.kind}x{lanes}_m *)(to + {self.phase} + k) = __builtin_shufflevector(a, b, {odd});
  }}
}}
"""

    # the units

    def _entry(self) -> Index:
        w, form = self.w, self.form
        aligned = "__attribute__((aligned(64)))"
        w.line(f"{self.scalar} image[{self.length + self.lanes}] {aligned};")
        taps = self.column.taps * (1 if self.row is None else self.row.taps)
        w.line(f"{self.scalar} factors[{taps * self.across}] {aligned}, sums[{self.tile * self.lanes}] {aligned};")
        if self.phases > 1:
            w.line(f"{self.scalar} line[{2 * self.pitch}] {aligned};")
        blocks = [(axis, 1) for axis in form.outer]
        if self.row is not None:
            blocks.append((self.row.u, self.rows))
        blocks.append((self.column.u, self.columns))
        if not form.along:
            blocks.append((self.inner, self.lanes))
        units: Index = Int(1)
        extents, positions = [], [w.fresh("a") for _ in blocks]
        for axis, size in blocks:
            units = units * ((axis.extent + (size - 1)) // size)
            extent = self.loops.extent(axis)
            if size > 1:
                extents.append(w.fresh("n"))
                w.line(f"const int64_t {extents[-1]} = ({extent} + {size - 1}) / {size};")
            else:
                extents.append(extent)
        w.line("if (begin >= end) return;")
        rest = "begin"
        for at in range(len(extents) - 1, 0, -1):
            left = w.fresh("u")
            w.line(f"int64_t {positions[at]} = {rest} % {extents[at]}, {left} = {rest} / {extents[at]};")
            rest = left
        w.line(f"int64_t {positions[0]} = {rest};")
        with w.scope("for (int64_t unit = begin; unit < end; unit++) {") as scope, w.pinned():
            starts = {}
            for (axis, size), position in zip(blocks, positions):
                if size > 1:
                    starts[axis.name] = w.fresh("a")
                    w.line(f"const int64_t {starts[axis.name]} = {position} * {size};")
                scope.axes[axis.name] = starts.get(axis.name, position)
            with self.loops.knowing(*form.outer):
                self._factors()
                self._pack()
                self._tiles()
            text = f"{positions[0]}++;"
            for at in range(1, len(positions)):
                text = f"if (++{positions[at]} == {extents[at]}) {{ {positions[at]} = 0; {text} }}"
            w.line(text)
        return units

    def _left(self, window: Window, most: int) -> str:
        """A C name of how many outputs of a dimension this unit has."""
        start, extent, name = self.w.axis(window.u.name)[0], self.loops.extent(window.u), self.w.fresh("n")
        self.w.line(f"const int64_t {name} = {extent} - {start} < {most} ? {extent} - {start} : {most};")
        return name

    def _spread(self, value: Value, lanes: int) -> str:
        return self.parts.ops.spread(value, lanes).text

    def _channels(self) -> Vector:
        """The vector of channels of this unit; its count is a C variable."""
        count = self.loops.counted(self.loops.extent(self.inner), self.w.axis(self.inner.name)[0], self.lanes)
        return Vector(self.inner.name, self.lanes, count)

    def _factors(self) -> None:
        w, place = self.w, ""
        axes = self.form.reduce.axes
        with w.scope("{"), w.pinned():
            vector = None if self.form.along else self._channels()
            with self.loops.nest(axes), w.pinned():
                place = w.axis(axes[-1].name)[0]
                if len(axes) == 2:
                    place = f"({w.axis(axes[0].name)[0]} * {self.column.taps} + {place})"
                with w.along(vector):
                    value = self.parts.values.value(self.form.factor)
                    if vector is None:
                        w.line(f"factors[{place}] = {value.text};")
                    else:
                        at = f"factors + {place} * {self.lanes}"
                        w.line(f"*({self.vector} *)({at}) = {self._spread(value, self.lanes)};")

    def _pack(self) -> None:
        """Evaluates what the unit reads."""
        w, form, lanes, column, row = self.w, self.form, self.lanes, self.column, self.row
        with w.scope("{"), w.pinned():
            axes = dict(column.at(AxisVar(column.u.name), AxisVar(_COLUMN)))
            columns = self._left(column, self.columns)
            wide = w.fresh("n")
            w.line(f"const int64_t {wide} = ({columns} - 1) * {column.scale} + {column.reach + 1};")
            header, at = "{", "0"
            if row is not None:
                axes |= row.at(AxisVar(row.u.name), AxisVar(_ROW))
                rows, high, at = self._left(row, self.rows), w.fresh("n"), w.fresh("a")
                w.line(f"const int64_t {high} = ({rows} - 1) * {row.scale} + {row.reach + 1};")
                header = f"for (int64_t {at} = 0; {at} < {high}; {at}++) {{"
            value = Substitution(axes=axes).value(form.value)
            position = w.fresh("a")
            vector = None if form.along else self._channels()
            with w.scope(header) as scope, w.pinned():
                scope.axes[_ROW] = at
                step = lanes if form.along else 1
                target = "line" if self.phases > 1 else f"image + {at} * {self.pitch}"
                header = f"for (int64_t {position} = 0; {position} < {wide}; {position} += {step}) {{"
                with w.scope(header) as inside, w.pinned():
                    inside.axes[_COLUMN] = position
                    if vector is None:
                        count = self.loops.counted(wide, position, lanes)
                    with w.along(vector or Vector(_COLUMN, lanes, count)):
                        text = self._spread(self.parts.values.value(value), lanes)
                    place = position if form.along else f"{position} * {lanes}"
                    w.line(f"*({self.kind}x{lanes}_m *)({target} + {place}) = {text};")
                if self.phases > 1:
                    w.line(f"bu_window_split(line, image + {at} * {self.pitch}, ({wide} + 1) / 2);")

    def _tiles(self) -> None:
        """The loops over the tiles of a unit, each with its epilogue."""
        w, form, lanes, column, row = self.w, self.form, self.lanes, self.column, self.row
        columns = self._left(column, self.columns)
        if form.along:
            step = lanes if row is not None else lanes * self.tile
            jammed = row
        else:
            step, jammed = self.tile, column
        height, at_row = "1", "0"
        if row is not None:
            height, at_row = self._left(row, self.rows), w.fresh("a")
        at = w.fresh("a")
        row_step = self.tile if form.along else 1
        header = f"for (int64_t {at_row} = 0; {at_row} < {height}; {at_row} += {row_step}) {{" if row else "{"
        with w.scope(header), w.scope(f"for (int64_t {at} = 0; {at} < {columns}; {at} += {step}) {{"), w.pinned():
            place = at if form.along else f"{at} * {column.scale * lanes}"
            if row is not None:
                place = f"{at_row} * {row.scale * self.pitch} + {place}"
            w.line(f"bu_window_tile(image + {place}, factors, sums);")
            limit, first = (height, at_row) if form.along and row is not None else (columns, at)
            j, each = w.fresh("j"), lanes if jammed is None else 1
            with w.scope(
                f"for (int64_t {j} = 0; {j} < {self.tile} && {first} + {j} * {each} < {limit}; {j}++) {{"
            ) as scope:
                # Positions in the kernel's own axes.
                self._position(scope.axes, column, f"{at} + {j} * {each}" if jammed is not row or row is None else at)
                if row is not None:
                    self._position(scope.axes, row, f"{at_row} + {j}" if form.along else at_row)
                if form.along:
                    count = self.loops.counted(self.loops.extent(column.u), w.axis(column.u.name)[0], lanes)
                    vector = Vector(self.inner.name, lanes, count)
                else:
                    vector = self._channels()
                with w.pinned(), self.loops.knowing(*self.kernel.axes), w.along(vector):
                    total = w.declare(f"*({self.vector} *)(sums + {j} * {lanes})", self.kind, lanes, w.depth)
                    scope.names[form.reduce.names[0]] = total
                    self.parts.statements.block((*form.before, *form.after))

    def _position(self, axes: dict[str, str], window: Window, place: str) -> None:
        start, name = self.w.axis(window.u.name)[0], self.w.fresh("a")
        self.w.line(f"const int64_t {name} = {start} + {place};")
        axes[window.u.name] = name
