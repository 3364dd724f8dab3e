"""Micro-kernels: a tile of accumulators in registers, fed with one k step after the other from packed panels.

    void bu_tile_12(int64_t kc, const float *a, const float *b, int64_t ldb, float *c, int first)

c is the tile, row after row; it is loaded before (unless ``first``) and stored after, so that a long k can be cut into
blocks without changing a bit. Measured on Zen 4, one core: 12×32, 8×32 and 8×48 all reach 118 GFLOP/s, 4×32 reaches 86.
"""

from __future__ import annotations

from dataclasses import dataclass

from bringup.ir.dtypes import DType
from bringup.targets.c.options import COptions
from bringup.targets.c.value import ctype, kind_of


@dataclass(frozen=True)
class Tile:
    """The shape of the micro-kernels on a target: row counts from the largest, vectors per row, lanes of a vector."""

    kind: str
    row_counts: tuple[int, ...]
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """The width of a packed panel of columns."""
        return self.vectors * self.lanes

    @property
    def rows(self) -> int:
        """The height of the largest tile."""
        return self.row_counts[0]

    @property
    def row_step(self) -> int:
        """The height of the smallest tile: blocks of rows are multiples of it."""
        return self.row_counts[-1]

    @property
    def scalar(self) -> str:
        """The C type of an element."""
        return ctype(self.kind)

    @property
    def vector(self) -> str:
        """The C type of a vector."""
        return ctype(self.kind, self.lanes)

    @property
    def memory(self) -> str:
        """The C type of a vector in memory, of any alignment."""
        return f"{self.vector}_m" if self.lanes > 1 else self.scalar

    def step(self, x: str, y: str, total: str, fused: bool) -> str:
        """C of the next sums of a vector."""
        kind = self.vector if self.lanes > 1 else self.kind
        return f"bu_fma_{kind}({x}, {y}, {total})" if fused else f"{x} * {y} + {total}"


def tile_of(dtype: DType, target: COptions) -> Tile:
    """The tile for a type: as many accumulators as registers allow (32 with AVX-512, 16 else).

    >>> from bringup.ir.dtypes import float32
    >>> tile_of(float32, COptions(vector_bytes=32)).columns
    16
    """
    kind, size = kind_of(dtype), dtype.size
    if target.vector_bytes == 0:
        return Tile(kind, (4, 2), 4, 1)
    rows = {64: (12, 8, 4), 32: (6, 4, 2)}.get(target.vector_bytes, (4, 2))
    return Tile(kind, rows, 2, target.vector_bytes // size)


def micro_kernel(name: str, tile: Tile, rows: int, fused: bool) -> str:
    """The C function of one tile shape.

    >>> "bu_fma_f32x4(t, b1, c1_1)" in micro_kernel("tile", Tile("f32", (4, 2), 2, 4), 2, True)
    True
    """
    v, m, s, vectors = tile.vector, tile.memory, tile.scalar, tile.vectors
    places = [(i, j, f"c + {i * tile.columns + j * tile.lanes}") for i in range(rows) for j in range(vectors)]
    zero = "{0}" if tile.lanes > 1 else "0"
    lines = [
        f"static __attribute__((noinline)) void {name}(int64_t kc, const {s} *a, const {s} *b, int64_t ldb, {s} *c,",
        "    int first) {",
    ]
    lines += [f"  {v} c{i}_{j} = {zero};" for i, j, _ in places]
    lines.append("  if (!first) {")
    lines += [f"    c{i}_{j} = *(const {m} *)({place});" for i, j, place in places]
    lines += ["  }", "  for (int64_t k = 0; k < kc; k++) {"]
    lines += [f"    const {v} b{j} = *(const {m} *)(b + {j * tile.lanes});" for j in range(vectors)]
    for i in range(rows):
        lines.append(f"    {{ const {v} t = {broadcast(f'a[{i}]', tile)};")
        for j in range(vectors):
            lines.append(f"      c{i}_{j} = {tile.step('t', f'b{j}', f'c{i}_{j}', fused)};")
        lines.append("    }")
    lines += [f"    a += {rows}, b += ldb;", "  }"]
    lines += [f"  *({m} *)({place}) = c{i}_{j};" for i, j, place in places]
    return "\n".join([*lines, "}", ""])


def row_kernel(name: str, tile: Tile, fused: bool) -> str:
    """The C function for a single row: the sums stay in memory, and 8 k steps pass over them at a time.

    It reads 8 long rows of b side by side, which hardware prefetches; a tile would read short pieces of many rows.
    """
    v, m, s, lanes = tile.vector, tile.memory, tile.scalar, tile.lanes

    def steps(count: int) -> str:
        lines = [f"    const {v} t{i} = {broadcast(f'a[k + {i}]', tile)};" for i in range(count)]
        lines.append(f"    for (int64_t j = 0; j < width; j += {tile.columns}) {{")
        lines += [f"      {v} c{n} = *(const {m} *)(c + j + {n * lanes});" for n in range(tile.vectors)]
        for i in range(count):
            for n in range(tile.vectors):
                b = f"*(const {m} *)(b + {i} * ldb + j + {n * lanes})"
                lines.append(f"      c{n} = {tile.step(f't{i}', b, f'c{n}', fused)};")
        lines += [f"      *({m} *)(c + j + {n * lanes}) = c{n};" for n in range(tile.vectors)]
        return "\n".join([*lines, "    }", ""])

    return f"""static __attribute__((noinline)) void {name}(int64_t width, int64_t kc, const {s} *a, const {s} *b,
    int64_t ldb, {s} *c, int first) {{
  if (first) for (int64_t j = 0; j < width; j += {lanes}) *({m} *)(c + j) = ({v}){{0}};
  int64_t k = 0;
  for (; k + 8 <= kc; k += 8, b += 8 * ldb) {{
{steps(8)}  }}
  for (; k < kc; k++, b += ldb) {{
{steps(1)}  }}
}}
"""


def broadcast(text: str, tile: Tile) -> str:
    """A scalar in every lane; GCC makes one broadcast of it, and compiles it faster than a list of lanes.

    >>> broadcast("a[0]", Tile("f32", (4, 2), 2, 4))
    'a[0] - (f32x4){0}'
    """
    return text if tile.lanes == 1 else f"{text} - ({tile.vector}){{0}}"
