"""Dot products: a contraction with 32 lanes whose factors both lie along k, as the few-row case of a linear layer.

Lane l of a sum takes the products at k = l, l + 32, …; one vector load gives the next lanes of a factor, so nothing
is packed. Several columns (and two rows where registers allow) go together, so that each load of a row serves all.
"""

from __future__ import annotations

from dataclasses import replace

from bringup.ir.contraction_form import Affine, Form
from bringup.ir.index import Int
from bringup.ir.kernel import extent_of
from bringup.targets.c.contract_function import Unit, batch_position, opened
from bringup.targets.c.contract_micro import Tile
from bringup.targets.c.contract_pack import converting_load
from bringup.targets.c.contract_tile import tile_function
from bringup.targets.c.contract_transpose import SHUFFLE
from bringup.targets.c.options import COptions
from bringup.targets.c.unit import Part, entry_head
from bringup.targets.c.value import kind_of, storage_of

_LANES = 32
_UNIT_ROWS, _UNIT_COLUMNS = 8, 64


def fits(form: Form) -> bool:
    """True if both factors are plain rows along the one axis of the sum, with 32 lanes."""
    affines = (form.rows.affine, form.columns.affine)
    return (
        form.contract.lanes == _LANES
        and len(form.k) == 1
        and all(affine is not None and affine.plain and affine.unit_k for affine in affines)
    )


class DotUnit(Unit):
    """The translation unit of one contraction by dot products."""

    def __init__(self, form: Form, target: COptions) -> None:
        super().__init__(target)
        self.form = form
        lanes = max(1, target.vector_bytes // form.dtype.size)
        self.parts = _LANES // lanes  # vectors of one sum
        registers = {64: 16, 32: 8}.get(target.vector_bytes, 8)
        self.columns = max(1, min(4, registers // self.parts))
        self.row_counts = (2, 1) if 2 * self.columns * self.parts <= registers else (1,)
        self.tile = Tile(kind_of(form.dtype), self.row_counts, self.parts, lanes)
        self.w = opened(form.kernel, target, form.batch).w

    def affine(self, rows: bool) -> Affine:
        """The affine form of a factor."""
        found = self.form.rows.affine if rows else self.form.columns.affine
        assert found is not None
        return found

    def whole(self) -> Part:
        """All functions, and the number of work units."""
        form, tile = self.form, self.tile
        if form.fused:
            self.w.needs |= {("fma", tile.kind, tile.lanes), ("fma", tile.kind, 1)}
        self.w.snippet("shuffle", SHUFFLE)
        around = opened(form.kernel, self.target, form.batch)
        finish = tile_function("bu_finish", form, tile, around, False)
        body = self.tail() + "".join(self.dots(rows) for rows in self.row_counts) + finish + self.entry_function()
        self.collect(self.w)
        self.collect(around.w)
        rows, columns = extent_of(form.rows.axes), extent_of(form.columns.axes)
        units = (rows + (_UNIT_ROWS - 1)) // _UNIT_ROWS * ((columns + (_UNIT_COLUMNS - 1)) // _UNIT_COLUMNS)
        return self.part(form.kernel, extent_of(form.batch) * units, body)

    def load(self, rows: bool, lanes: int, place: str) -> str:
        """A load of a factor, in the type of the sum."""
        return converting_load(self.w, self.affine(rows).buffer.dtype, self.tile, lanes, place)

    def pointers(self) -> tuple[str, str]:
        """The C types of the memory of rows and columns."""
        x, y = (f"{storage_of(self.affine(rows).buffer.dtype)}_m" for rows in (True, False))
        return x, y

    def tail(self) -> str:
        """The last, incomplete step: only the lanes that have a product change."""
        x, y = self.pointers()
        one = replace(self.tile, lanes=1)
        step = one.step(self.load(True, 1, "x + l"), self.load(False, 1, "y + l"), "lane[l]", self.form.fused)
        head = f"static __attribute__((noinline)) void bu_tail({self.tile.scalar} *lane, const {x} *x, const {y} *y,"
        return f"{head}\n    int64_t n) {{\n  for (int64_t l = 0; l < n; l++) lane[l] = {step};\n}}\n"

    def dots(self, rows: int) -> str:
        """``bu_dot_R(n, x, y, out)``: the sums of R rows with all columns of a group."""
        tile, parts = self.tile, self.parts
        v, m, zero = tile.vector, tile.memory, "{0}" if tile.lanes > 1 else "0"
        pairs = [(r, c) for r in range(rows) for c in range(self.columns)]
        x, y = self.pointers()
        lines = [
            f"static __attribute__((noinline)) void bu_dot_{rows}(int64_t n, const {x} *const *x, const {y} *const *y, "
            f"{tile.scalar} *out) {{",
            *(f"  const {x} *const x{r} = x[{r}];" for r in range(rows)),
            *(f"  const {y} *const y{c} = y[{c}];" for c in range(self.columns)),
            *(f"  {v} s{r}_{c}_{p} = {zero};" for r, c in pairs for p in range(parts)),
            "  int64_t k = 0;",
            f"  for (; k + {_LANES} <= n; k += {_LANES}) {{",
        ]
        for p in range(parts):
            at = f"k + {p * tile.lanes}"
            lines += [f"    const {v} a{r}_{p} = {self.load(True, tile.lanes, f'x{r} + {at}')};" for r in range(rows)]
            for c in range(self.columns):
                lines.append(f"    const {v} b{c}_{p} = {self.load(False, tile.lanes, f'y{c} + {at}')};")
                for r in range(rows):
                    total = f"s{r}_{c}_{p}"
                    lines.append(f"    {total} = {tile.step(f'a{r}_{p}', f'b{c}_{p}', total, self.form.fused)};")
        lines += ["  }", "  if (k < n) {", f"    {tile.scalar} lane[{_LANES}] __attribute__((aligned(64)));"]
        for r, c in pairs:
            lines += [f"    *({m} *)(lane + {p * tile.lanes}) = s{r}_{c}_{p};" for p in range(parts)]
            lines.append(f"    bu_tail(lane, x{r} + k, y{c} + k, n - k);")
            lines += [f"    s{r}_{c}_{p} = *({m} *)(lane + {p * tile.lanes});" for p in range(parts)]
        lines.append("  }")
        for r, c in pairs:
            lines.append(f"  out[{r * self.columns + c}] = {self.tree(f's{r}_{c}', lines)};")
        return "\n".join([*lines, "}", ""])

    def tree(self, name: str, lines: list[str]) -> str:
        """Adds the halves of the lanes until one is left; the C text of the result."""
        tile, parts = self.tile, self.parts
        while parts > 1:
            parts //= 2
            lines += [f"  {name}_{p} = {name}_{p} + {name}_{p + parts};" for p in range(parts)]
        half = tile.lanes // 2
        mask = f"i{tile.kind[1:]}x{tile.lanes}"
        while half:
            places = ", ".join(str((lane + half) % tile.lanes) for lane in range(tile.lanes))
            lines.append(f"  {name}_0 = {name}_0 + BU_SHUFFLE({mask}, {name}_0, {name}_0, {places});")
            half //= 2
        return f"{name}_0" if tile.lanes == 1 else f"{name}_0[0]"

    def entry_function(self) -> str:
        """The function that runs a range of work units."""
        form, tile = self.form, self.tile
        w = opened(form.kernel, self.target, ()).w
        w.stack[0].axes.update({axis.name: f"at[{number}]" for number, axis in enumerate(form.batch)})
        count = self.columns
        k, rows, columns = (w.index(extent_of(axes))[0] for axes in (form.k, form.rows.axes, form.columns.axes))
        starts, steps = [], []
        for affine in (self.affine(True), self.affine(False)):
            starts.append(f"b_{affine.buffer.name} + {w.index(affine.base)[0]}")
            steps.append(w.index(affine.lanes[0].step if affine.lanes else Int(0))[0])
        x, y = self.pointers()
        two = "if (rows - i > 1) bu_dot_2(k, x, y, out), done = 2; else " if len(self.row_counts) == 2 else ""
        self.collect(w)
        head = entry_head(form.kernel) + w.text()
        return f"""{head}  const int64_t k = {k}, all_rows = {rows}, all_columns = {columns};
  const int64_t row_blocks = (all_rows + {_UNIT_ROWS - 1}) / {_UNIT_ROWS};
  const int64_t column_blocks = (all_columns + {_UNIT_COLUMNS - 1}) / {_UNIT_COLUMNS};
  {tile.scalar} sums[{_UNIT_ROWS * _UNIT_COLUMNS + tile.lanes}] __attribute__((aligned(64)));
  int64_t at[{max(len(form.batch), 1)}];
  for (int64_t unit = begin; unit < end; unit++) {{
    const int64_t block = unit / column_blocks;
    const int64_t col0 = unit % column_blocks * {_UNIT_COLUMNS}, row0 = block % row_blocks * {_UNIT_ROWS};
    const int64_t rows = all_rows - row0 < {_UNIT_ROWS} ? all_rows - row0 : {_UNIT_ROWS};
    const int64_t cols = all_columns - col0 < {_UNIT_COLUMNS} ? all_columns - col0 : {_UNIT_COLUMNS};
    {batch_position(w, form.batch, "block / row_blocks")}
    const {x} *const first_row = {starts[0]} + row0 * {steps[0]};
    const {y} *const first_column = {starts[1]} + col0 * {steps[1]};
    for (int64_t j = 0; j < cols; j += {count}) {{
      const {y} *y[{count}];
      for (int64_t c = 0; c < {count}; c++) y[c] = first_column + (j + c < cols ? j + c : j) * {steps[1]};
      for (int64_t i = 0, done; i < rows; i += done) {{
        const {x} *x[2] = {{first_row + i * {steps[0]}, first_row + (i + 1 < rows ? i + 1 : i) * {steps[0]}}};
        {tile.scalar} out[{2 * count}];
        {two}bu_dot_1(k, x, y, out), done = 1;
        for (int64_t r = 0; r < done; r++) {{
          {tile.scalar} *const to = sums + (i + r) * {_UNIT_COLUMNS} + j;
          for (int64_t c = 0; c < {count} && j + c < cols; c++) to[c] = out[r * {count} + c];
        }}
      }}
    }}
    bu_finish(args, report, at, row0, rows, col0, cols, {_UNIT_COLUMNS}, sums);
  }}
}}
"""
