"""Packing: C functions that copy a panel of a factor, k step after k step, into ``dst[k × width + lane]``.

Lanes are positions along the rows or the columns; those beyond the end become 0. A matrix is copied (neighbouring
lanes adjacent in memory) or transposed in registers (neighbouring k adjacent); other affine factors go by tables
(contract_table.py); the rest is evaluated element by element.
"""

from __future__ import annotations

from dataclasses import dataclass

from bringup.ir.contraction_form import Affine, Factor
from bringup.ir.dtypes import DType, bfloat16, float32, float64, int32, int64
from bringup.ir.expr import Cast
from bringup.ir.index import Index, Int
from bringup.ir.kernel import Axis, Kernel
from bringup.targets.c.contract_function import opened, split_position
from bringup.targets.c.contract_micro import Tile
from bringup.targets.c.contract_transpose import SHUFFLE, turn_function
from bringup.targets.c.options import COptions
from bringup.targets.c.scope import Scopes
from bringup.targets.c.value import converted, ctype, storage_of


@dataclass(frozen=True)
class Packing:
    """One factor to pack: ``name`` starts its functions; a panel is ``max_width`` lanes wide, rows also less.

    ``max_k`` is the longest block of k.
    """

    name: str
    factor: Factor
    k: tuple[Axis, ...]
    tile: Tile
    max_width: int
    fixed_width: bool
    max_k: int

    @property
    def affine(self) -> Affine:
        """The factor's affine form, where it has one."""
        assert self.factor.affine is not None
        return self.factor.affine

    @property
    def width(self) -> str:
        """The width of a panel in C."""
        return str(self.max_width) if self.fixed_width else "width"

    @property
    def storage(self) -> str:
        """The C type of an element in memory."""
        return f"{storage_of(self.affine.buffer.dtype)}_m"

    @property
    def same_type(self) -> bool:
        """True if memory holds the type of the sum."""
        return storage_of(self.affine.buffer.dtype) == self.tile.kind

    @property
    def tabled(self) -> bool:
        """True if it is packed by tables."""
        return self.factor.affine is not None and not self.affine.plain

    @property
    def table_length(self) -> int:
        """How many int64 its table over k has."""
        return self.max_k * (1 + len(self.affine.guards)) if self.tabled else 0

    @property
    def transposed(self) -> bool:
        """True if memory runs along k, and the guards do not change along a run."""
        affine = self.affine
        return affine.unit_k and not affine.unit_lanes and all(step == Int(0) for step in affine.k[-1].guard_steps)


class PackWriter:
    """Writes the functions of one Packing; what they need from the library collects in ``w``."""

    def __init__(self, packing: Packing, kernel: Kernel, target: COptions, batch: tuple[Axis, ...]) -> None:
        self.p = packing
        self.arguments = opened(kernel, target, ()).w.text()
        parts = opened(kernel, target, batch)
        self.w, self.values = parts.w, parts.values
        self.declarations = self.w.text()

    def c(self, index: Index) -> str:
        """An index in C."""
        return self.w.index(index)[0]

    def load(self, lanes: int, place: str) -> str:
        """A load with the conversion to the type of the sum."""
        return converting_load(self.w, self.p.affine.buffer.dtype, self.p.tile, lanes, place)

    def functions(self) -> str:
        """Everything that packs this factor."""
        if self.p.factor.affine is None:
            return self.evaluated()
        if self.p.transposed:
            return self.transpose() + self.head() + self.transpose_plain() + "}\n"
        return self.head() + self.copy_plain() + "}\n"

    def signature(self) -> str:
        """The first line of the function."""
        width = "" if self.p.fixed_width else ", int64_t width"
        table = ", const int64_t *table" if self.p.tabled else ""
        return (
            f"static void {self.p.name}(const uint64_t *args, int64_t *report, const int64_t *at, int64_t lane0, "
            f"int64_t lanes{width}, int64_t k0, int64_t kc{table}, {self.p.tile.scalar} *dst) {{\n"
        )

    def head(self) -> str:
        """The signature, the arguments, and where the factor starts."""
        source = f"  const {self.p.storage} *src = b_{self.p.affine.buffer.name} + {self.c(self.p.affine.base)};\n"
        return self.signature() + self.declarations + source

    def transpose(self) -> str:
        """The turning function: blocks of 8 floats or 4 doubles for columns, 4 for rows."""
        p, tile = self.p, self.p.tile
        lanes = min(tile.lanes, 8 if p.fixed_width and tile.kind[1:] == "32" else 4)
        if lanes > 1:
            self.w.snippet("shuffle", SHUFFLE)
        return turn_function(f"{p.name}_turn", tile.kind, lanes, p.storage, self.load, p.affine.fill)

    # matrices

    def steps(self) -> tuple[str, str]:
        """How far one lane and one k step move, in C."""
        affine = self.p.affine
        lane = self.c(affine.lanes[0].step) if affine.lanes else "0"
        return lane, self.c(affine.k[0].step) if affine.k else "0"

    def transpose_plain(self) -> str:
        """Rows along k."""
        p, (lane, _) = self.p, self.steps()
        return f"""  const {p.storage} *row[{p.max_width}];
  src += k0;
  for (int64_t j = 0; j < {p.width}; j++) row[j] = j < lanes ? src + (lane0 + j) * {lane} : 0;
  {p.name}_turn(row, {p.width}, kc, dst);
"""

    def copy_plain(self) -> str:
        """Rows along the lanes, or any strides."""
        p, (lane, step) = self.p, self.steps()
        text = f"  const int64_t step = {step};\n  src += lane0 * {lane} + k0 * step;\n"
        if p.affine.unit_lanes and p.tile.lanes > 1:
            chunk = p.tile.lanes if p.max_width % p.tile.lanes == 0 else min(4, p.tile.lanes)
            vector = ctype(p.tile.kind, chunk)
            text += f"""  if (lanes >= {p.width}) {{
    for (int64_t k = 0; k < kc; k++, src += step, dst += {p.width}) {{
      int64_t j = 0;
      for (; j + {chunk} <= {p.width}; j += {chunk}) *({vector}_m *)(dst + j) = {self.load(chunk, "src + j")};
      for (; j < {p.width}; j++) dst[j] = {self.load(1, "src + j")};
    }}
    return;
  }}
"""
        return f"""{text}  for (int64_t k = 0; k < kc; k++, src += step, dst += {p.width}) {{
    for (int64_t j = 0; j < lanes; j++) dst[j] = {self.load(1, f"src + j * {lane}")};
    for (int64_t j = lanes; j < {p.width}; j++) dst[j] = 0;
  }}
"""

    # any expression

    def evaluated(self) -> str:
        """Element by element, for factors that are not a plain Load."""
        p, w = self.p, self.w
        with w.scope("for (int64_t k = 0; k < kc; k++) {"):
            w.line(f"for (int64_t j = lanes; j < {p.width}; j++) dst[k * {p.width} + j] = 0;")
        with w.scope("for (int64_t j = 0; j < lanes; j++) {") as lane:
            split_position(w, p.factor.axes, "lane0 + j")
            split_position(w, p.k, "k0", const="")
            lane.axes.update({axis.name: f"x_{axis.name}" for axis in p.factor.axes})
            with w.scope("for (int64_t k = 0; k < kc; k++) {") as inner:
                inner.axes.update({axis.name: f"x_{axis.name}" for axis in p.k})
                w.pin = w.depth
                value = self.values.value(Cast(p.factor.expr, _SUMS[p.tile.kind]))
                w.line(f"dst[k * {p.width} + j] = {value.text};")
                step = f"x_{p.k[0].name}++;"
                for axis in p.k[1:]:
                    step = f"if (++x_{axis.name} == {self.c(axis.extent)}) {{ x_{axis.name} = 0; {step} }}"
                w.line(step)
        return self.signature() + w.text() + "}\n"


#: The types that sums have, by the kind that computes them.
_SUMS = {"f32": float32, "f64": float64, "i32": int32, "i64": int64}


def converting_load(w: Scopes, dtype: DType, tile: Tile, lanes: int, place: str) -> str:
    """C that loads elements of a type and converts them to the type of the sum."""
    size = "" if lanes == 1 else f"x{lanes}"
    text = f"*(const {storage_of(dtype)}{size}_m *)({place})"
    if dtype.is_half:
        text = w.call("from_bf16" if dtype is bfloat16 else "from_f16", "f32", lanes, text)
    if tile.kind != "f32" and dtype is not _SUMS[tile.kind]:
        kind = "f32" if dtype.is_half else storage_of(dtype)
        return f"({tile.scalar})({text})" if lanes == 1 else converted(text, kind, tile.kind, lanes)
    return text
