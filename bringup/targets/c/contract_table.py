"""Packing by tables: affine factors of many axes and guards, such as the padded patches of a convolution.

One table over k is made per block of k: the offset of each step, and what it asks of each guard. One over the lanes is
made per panel. At each k step the guards become a mask, one bit per lane; where a mask repeats (the same taps for each
channel) it is computed once.
"""

from __future__ import annotations

from bringup.ir.contraction_form import Dimension
from bringup.ir.index import Index, Int
from bringup.ir.kernel import Axis, extent_of
from bringup.targets.c.contract_pack import PackWriter
from bringup.targets.c.contract_transpose import SHUFFLE

#: A bit for each of 8 numbers that is at least the limit.
_AT_LEAST = """static inline uint32_t bu_at_least(const int64_t *p, int64_t limit) {
#if defined(__AVX512F__)
  typedef long long q8 __attribute__((vector_size(64), aligned(8), may_alias));
  const q8 limits = {limit, limit, limit, limit, limit, limit, limit, limit};
  return __builtin_ia32_cmpq512_mask(*(const q8 *)p, limits, 5, -1);
#else
  uint32_t bits = 0;
  for (int j = 0; j < 8; j++) bits |= (uint32_t)(p[j] >= limit) << j;
  return bits;
#endif
}
"""
#: A vector with the lanes of a mask loaded; no other memory is touched.
_LOAD_SOME = """static inline {V} bu_load_some_{V}(const {S} *p, {V} x, uint32_t mask) {{
#if defined(__AVX512F__)
  return __builtin_ia32_loadup{letter}512_mask(p, x, mask);
#else
  for (int j = 0; j < {n}; j++) if (mask >> j & 1) x[j] = p[j];
  return x;
#endif
}}
"""
#: Bit j moves to bit 2 j.
_SPREAD = """static inline uint32_t bu_spread(uint32_t bits) {
  bits = (bits | bits << 8) & 0x00ff00ff;
  bits = (bits | bits << 4) & 0x0f0f0f0f;
  bits = (bits | bits << 2) & 0x33333333;
  return (bits | bits << 1) & 0x55555555;
}
"""


class TableWriter(PackWriter):
    """Writes the functions of a Packing that goes by tables."""

    def functions(self) -> str:
        """The table over k, and the packing function."""
        transposed = self.p.transposed
        body = self.lane_table() + (self.transpose_runs() if transposed else self.copy_steps()) + "}\n"
        return (self.transpose() if transposed else "") + self.k_table() + self.head() + body

    def _walk(self, dimensions: tuple[Dimension, ...], start: str) -> tuple[str, str]:
        """C that splits a flat position over dimensions into x0, x1, …, and C that steps to the next one."""
        last = len(dimensions) - 1
        split = f"  int64_t rest = {start};\n"
        for at in range(last, 0, -1):
            extent = self.c(dimensions[at].extent)
            split += f"  const int64_t e{at} = {extent};\n  int64_t x{at} = rest % e{at}; rest /= e{at};\n"
        split += "  int64_t x0 = rest;\n"
        step = "".join(f"if (++x{at} == e{at}) {{ x{at} = 0; " for at in range(last, 0, -1)) + "x0++;" + " }" * last
        return split, step

    def _sum(self, steps: list[Index]) -> str:
        words = [
            f"x{at}" if step == Int(1) else f"x{at} * {self.c(step)}" for at, step in enumerate(steps) if step != Int(0)
        ]
        return " + ".join(words) or "0"

    def k_table(self) -> str:
        """table[k]: the offset of a k step; table[max_k × (1 + g) + k]: what guard g must reach at least there."""
        p = self.p
        split, step = self._walk(p.affine.k, "k0")
        lines = [f"    table[k] = {self._sum([d.step for d in p.affine.k])};\n"]
        for g in range(len(p.affine.guards)):
            total = self._sum([d.guard_steps[g] for d in p.affine.k])
            lines.append(f"    table[{p.max_k * (1 + g)} + k] = -({total});\n")
        return (
            f"static void {p.name}_table(const uint64_t *args, int64_t k0, int64_t kc, int64_t *table) {{\n"
            f"{self.arguments}{split}  for (int64_t k = 0; k < kc; k++) {{\n{''.join(lines)}    {step}\n  }}\n}}\n"
        )

    def lane_table(self) -> str:
        """place[j]: the offset of a lane; reach[g][j]: guard g there; all: a bit for each lane that exists."""
        p, guards = self.p, self.p.affine.guards
        text = f"  int64_t place[{p.max_width}] = {{0}};\n"
        text += f"  int64_t reach[{len(guards)}][{p.max_width}] = {{{{0}}}};\n" if guards else ""
        text += "  const uint32_t all = lanes >= 32 ? ~(uint32_t)0 : ((uint32_t)1 << lanes) - 1;\n"
        text += "".join(f"  const int64_t base{g} = {self.c(guard)};\n" for g, guard in enumerate(guards))
        split, step = self._walk(p.affine.lanes, "lane0")
        lines = [f"    place[j] = {self._sum([d.step for d in p.affine.lanes])};\n"]
        for g in range(len(guards)):
            lines.append(f"    reach[{g}][j] = base{g} + {self._sum([d.guard_steps[g] for d in p.affine.lanes])};\n")
        return f"{text}{split}  for (int64_t j = 0; j < lanes; j++) {{\n{''.join(lines)}    {step}\n  }}\n"

    def mask(self) -> str:
        """C that computes the lanes ``m`` whose guards hold at step k."""
        count = len(self.p.affine.guards)
        if not count:
            return "const uint32_t m = all;"
        text = "uint32_t m = all; "
        text += "".join(f"const int64_t g{g} = table[{self.p.max_k * (1 + g)} + k]; " for g in range(count))
        if self.w.target.vector_bytes < 64 or self.p.max_width % 8:
            tests = " & ".join(f"(reach[{g}][j] >= g{g})" for g in range(count))
            return text + f"for (int64_t j = 0; j < lanes; j++) m &= ~((uint32_t)!({tests}) << j);"
        self.w.snippet("at_least", _AT_LEAST)
        tests = " & ".join(f"bu_at_least(reach[{g}] + j, g{g})" for g in range(count))
        loop = f"for (int j = 0; j < {self.p.max_width}; j += 8) bits |= ({tests}) << j;"
        return f"{text}{{ uint32_t bits = 0; {loop} m &= bits; }}"

    def transpose_runs(self) -> str:
        """Runs along the innermost k dimension; a lane whose guard fails is a null row."""
        p = self.p
        return f"""  const {p.storage} *row[{p.max_width}];
  const int64_t inner = {self.c(p.affine.k[-1].extent)};
  for (int64_t k = 0, x = kc ? k0 % inner : 0; k < kc; x = 0) {{
    const int64_t n = inner - x < kc - k ? inner - x : kc - k;
    {self.mask()}
    for (int64_t j = 0; j < {p.width}; j++) row[j] = (m >> j) & 1 ? src + (place[j] + table[k]) : 0;
    {p.name}_turn(row, {p.width}, n, dst + k * {p.width});
    k += n;
  }}
"""

    def copy_steps(self) -> str:
        """One k step after the other: whole runs as vectors, the rest lane by lane."""
        p, tile = self.p, self.p.tile
        text, m = "", "all"
        if p.affine.guards:
            m = "mask[k]"
            first = next((at for at, d in enumerate(p.affine.k) if any(s != Int(0) for s in d.guard_steps)), None)
            period = "1" if first is None else self.c(extent_of(Axis("", d.extent) for d in p.affine.k[first:]))
            text = f"""  uint32_t mask[{p.max_k}];
  const int64_t period = {period};
  for (int64_t k = 0; k < kc && k < period; k++) {{ {self.mask()} mask[k] = m; }}
  for (int64_t k = period; k < kc; k++) mask[k] = mask[k - period];
"""
        runs = p.affine.unit_lanes and p.fixed_width and tile.lanes > 1
        step = p.affine.lanes[-1].step if p.affine.lanes else None
        if step in (Int(1), Int(2)) and p.fixed_width and p.same_type and self.w.target.vector_bytes == 64:
            return text + self.copy_masked(m, 1 if step == Int(1) else 2)
        whole = ""
        if runs:
            text += f"""  int whole = lanes == {p.width};
  for (int64_t j = 1; j < lanes; j++) whole &= place[j] == place[j - 1] + 1;
"""
            stores = "".join(
                f"      *({tile.memory} *)(dst + {j}) = {self.load(tile.lanes, f'from + place[0] + {j}')};\n"
                for j in range(0, p.max_width, tile.lanes)
            )
            whole = f"    if (whole && m == all) {{\n{stores}      continue;\n    }}\n"
        one = self.load(1, "from + place[j]")
        return f"""{text}  for (int64_t k = 0; k < kc; k++, dst += {p.width}) {{
    const {p.storage} *from = src + table[k];
    const uint32_t m = {m};
{whole}    if (m == all) {{
      for (int64_t j = 0; j < lanes; j++) dst[j] = {one};
      for (int64_t j = lanes; j < {p.width}; j++) dst[j] = 0;
      continue;
    }}
    for (int64_t j = 0; j < {p.width}; j++) dst[j] = (m >> j) & 1 ? {one} : {p.affine.fill};
  }}
"""

    def copy_masked(self, m: str, step: int) -> str:
        """With masked loads each vector is put together from its runs of lanes 1 or 2 apart, whatever the guards say.

        Lanes 2 apart are loaded into two vectors, of which every second element is kept.
        """
        p, n, vector, scalar = self.p, self.p.tile.lanes, self.p.tile.vector, self.p.tile.scalar
        load = f"bu_load_some_{vector}"
        self.w.snippet(load, _LOAD_SOME.format(V=vector, S=scalar, n=n, letter="s" if p.tile.kind == "f32" else "d"))
        part, result = "m >> {first}", "x0"
        if step == 2:
            self.w.snippet("shuffle", SHUFFLE)
            self.w.snippet("spread", _SPREAD)
            part = f"bu_spread(m >> {{first}} & {(1 << n) - 1})"
            evens = ", ".join(str(2 * lane) for lane in range(n))
            result = f"BU_SHUFFLE(i{p.tile.kind[1:]}x{n}, x0, x1, {evens})"
        vectors = ""
        for v in range(p.tile.vectors):
            first = v * n
            loads = ""
            for h in range(step):
                place, lanes = f"from + start[{first} + r] + {h * n}", f"(which[{first} + r] & part) >> {h * n}"
                loads += f"        x{h} = {load}({place}, x{h}, {lanes});\n"
            vectors += f"""    {{
      const uint32_t part = {part.format(first=first)};
      {vector} {", ".join(f"x{h} = {{0}}" for h in range(step))};
      for (int r = 0; r < runs[{v}]; r++) {{
{loads}      }}
      *({p.tile.memory} *)(dst + {first}) = {result};
    }}
"""
        return f"""  int64_t start[{p.width}] = {{0}};
  uint32_t which[{p.width}] = {{0}};
  int runs[{p.tile.vectors}];
  for (int v = 0; v < {p.tile.vectors}; v++) {{
    const int first = v * {n};
    int r = first - 1;
    for (int j = first; j < first + {n} && j < lanes; j++) {{
      if (j == first || place[j] != place[j - 1] + {step}) start[++r] = place[j] - {step} * (j - first);
      which[r] |= (uint32_t)1 << {step} * (j - first);
    }}
    runs[v] = r + 1 - first;
  }}
  for (int64_t k = 0; k < kc; k++, dst += {p.width}) {{
    const {scalar} *from = (const {scalar} *)(src + table[k]);
    const uint32_t m = {m};
{vectors}  }}
"""
