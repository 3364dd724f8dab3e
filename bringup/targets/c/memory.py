"""C functions that move vectors between registers and memory: the last few elements, strided, and masked.

Memory types end in _m: any alignment down to one element, and allowed to alias. A count below the number of lanes
never touches memory outside.
"""

from __future__ import annotations

import re

from bringup.targets.c.math_template import SCALARS

# RISC-V's vectors take any count: three instructions instead of a loop. (gcc 12 knows no names of vector registers.)
MOVE_SOME = """#if defined(__riscv_vector) && defined(__clang__)
#define BU_SOME 1
static inline void bu_move_some(void *to, const void *from, int64_t count) {
  __asm__ volatile("vsetvli zero, %2, e8, m8, ta, ma\\n vle8.v v8, (%1)\\n vse8.v v8, (%0)"
                   : : "r"(to), "r"(from), "r"(count)
                   : "memory", "vl", "vtype", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15");
}
#endif
"""
_LOAD = """static __attribute__((noinline)) {V} bu_load_rest_{V}(const {S}_m *p, int64_t count) {{
  {V} r = {{0}};
#ifdef BU_SOME
  bu_move_some(&r, p, count * {element});
#else
  for (int64_t k = 0; k < count; k++) r[k] = p[k];
#endif
  return r;
}}
static inline {V} bu_load_{V}(const {S}_m *p, int64_t at, int64_t count) {{
  if (__builtin_expect(count >= {n}, 1)) return *(const {V}_m *)(p + at);
  return bu_load_rest_{V}(p + at, count);
}}
"""
_STORE = """static __attribute__((noinline)) void bu_store_rest_{V}({S}_m *p, {V} v, int64_t count) {{
#ifdef BU_SOME
  bu_move_some(p, &v, count * {element});
#else
  for (int64_t k = 0; k < count; k++) p[k] = v[k];
#endif
}}
static inline void bu_store_{V}({S}_m *p, int64_t at, {V} v, int64_t count) {{
  if (__builtin_expect(count >= {n}, 1)) *({V}_m *)(p + at) = v;
  else bu_store_rest_{V}(p + at, v, count);
}}
"""
# With masks the last elements take one instruction: rows of 10 float32 are added in 2.7 ns each, not 34.
_NATIVE = """#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && !defined(__clang__)
{native}#else
{portable}#endif
"""
_NATIVE_LOAD = """static inline {V} bu_load_{V}(const {S}_m *p, int64_t at, int64_t count) {{
  typedef {E} native __attribute__((vector_size({size})));
  if (__builtin_expect(count >= {n}, 1)) return *(const {V}_m *)(p + at);
  return ({V})__builtin_ia32_load{stem}{bits}_mask((const {E} *)(p + at), (native){{}}, {mask});
}}
"""
_NATIVE_STORE = """static inline void bu_store_{V}({S}_m *p, int64_t at, {V} v, int64_t count) {{
  typedef {E} native __attribute__((vector_size({size})));
  if (__builtin_expect(count >= {n}, 1)) *({V}_m *)(p + at) = v;
  else __builtin_ia32_store{stem}{bits}_mask(({E} *)(p + at), (native)v, {mask});
}}
"""
#: Bytes of an element → the builtins' stem and element type.
_STEMS = {1: ("dquqi", "char"), 2: ("dquhi", "short"), 4: ("ups", "float"), 8: ("upd", "double")}
# Every second element: two vectors and a shuffle, the second one so that it ends with the last element.
_GATHER = """static inline {V} bu_gather_{V}(const {S}_m *p, int64_t at, int64_t step, int64_t count) {{
  if (step == 2 && count >= {n})
    return __builtin_shufflevector(*(const {V}_m *)(p + at), *(const {V}_m *)(p + at + {n} - 1), {second});
  if (__builtin_expect(count >= {n}, 1)) return ({V}){{{lanes}}};
  {V} r = {{0}};
  for (int64_t k = 0; k < count; k++) r[k] = p[at + k * step];
  return r;
}}
"""
_SCATTER = """static inline void bu_scatter_{V}({S}_m *p, int64_t at, int64_t step, {V} v, int64_t count) {{
  for (int64_t k = 0; k < count; k++) p[at + k * step] = v[k];
}}
"""
_LOAD_MASKED = """static inline
{V} bu_load_masked_{V}(const {S}_m *p, int64_t at, int64_t step, {M} mask, int64_t count) {{
  if (step == 1 && count >= {n} && !bu_any_{M}(~mask)) return *(const {V}_m *)(p + at);
  {V} r = {{0}};
  for (int64_t k = 0; k < count && k < {n}; k++) if (mask[k]) r[k] = p[at + k * step];
  return r;
}}
"""
_STORE_MASKED = """static inline
void bu_store_masked_{V}({S}_m *p, int64_t at, int64_t step, {V} v, {M} mask, int64_t count) {{
  if (step == 1 && count >= {n} && !bu_any_{M}(~mask)) *({V}_m *)(p + at) = v;
  else for (int64_t k = 0; k < count && k < {n}; k++) if (mask[k]) p[at + k * step] = v[k];
}}
"""
# A loop over the lanes takes 20 times as long: each row of a padded image ends in a vector like that.
_NATIVE_LOAD_MASKED = """static inline
{V} bu_load_masked_{V}(const {S}_m *p, int64_t at, int64_t step, {M} mask, int64_t count) {{
  typedef {E} native __attribute__((vector_size({size})));
  typedef int lanes __attribute__((vector_size({mask_size})));
  if (step == 1) {{
    const uint64_t some = count >= {n} ? ~UINT64_C(0) : count <= 0 ? 0 : {first};
    const uint64_t where = __builtin_ia32_cvtd2mask{mask_bits}((lanes)mask) & some;
    return ({V})__builtin_ia32_load{stem}{bits}_mask((const {E} *)(p + at), (native){{}}, where);
  }}
{every_second}  {V} r = {{0}};
  for (int64_t k = 0; k < count && k < {n}; k++) if (mask[k]) r[k] = p[at + k * step];
  return r;
}}
"""
# Every second element behind a mask, of which each bit is spread to two: 16 lanes one by one took five times as long.
_EVERY_SECOND = """  if (step == 2) {{
    const uint64_t some = count >= {n} ? ~UINT64_C(0) : count <= 0 ? 0 : {first};
    const uint64_t where = __builtin_ia32_cvtd2mask{mask_bits}((lanes)mask) & some;
    const uint32_t both = __builtin_ia32_pdep_si((uint32_t)where, 0x55555555);
    const native a = __builtin_ia32_load{stem}{bits}_mask((const {E} *)(p + at), (native){{}}, both & ((1 << {n}) - 1));
    const native b = __builtin_ia32_load{stem}{bits}_mask((const {E} *)(p + at + {n}), (native){{}}, both >> {n});
    return ({V})__builtin_shufflevector(a, b, {even});
  }}
"""
_NATIVE_STORE_MASKED = """static inline
void bu_store_masked_{V}({S}_m *p, int64_t at, int64_t step, {V} v, {M} mask, int64_t count) {{
  typedef {E} native __attribute__((vector_size({size})));
  typedef int lanes __attribute__((vector_size({mask_size})));
  if (step == 1) {{
    const uint64_t some = count >= {n} ? ~UINT64_C(0) : count <= 0 ? 0 : {first};
    const uint64_t where = __builtin_ia32_cvtd2mask{mask_bits}((lanes)mask) & some;
    __builtin_ia32_store{stem}{bits}_mask(({E} *)(p + at), (native)v, where);
    return;
  }}
  for (int64_t k = 0; k < count && k < {n}; k++) if (mask[k]) p[at + k * step] = v[k];
}}
"""
_NATIVE_FORMS = {
    "load": _NATIVE_LOAD,
    "store": _NATIVE_STORE,
    "load_masked": _NATIVE_LOAD_MASKED,
    "store_masked": _NATIVE_STORE_MASKED,
}
_FORMS = {
    "load": _LOAD,
    "store": _STORE,
    "gather": _GATHER,
    "scatter": _SCATTER,
    "load_masked": _LOAD_MASKED,
    "store_masked": _STORE_MASKED,
}


def memory_function(form: str, storage: str, lanes: int) -> str:
    """The C text of one function: load, store, gather, scatter, load_masked or store_masked.

    >>> "f32x4 bu_load_f32x4(const f32_m *p" in memory_function("load", "f32", 4)
    True
    """
    places = ", ".join(f"p[at + {k} * step]" for k in range(lanes))
    element = int(storage[1:]) // 8
    words = {"V": f"{storage}x{lanes}", "S": storage, "M": f"i32x{lanes}", "n": lanes, "lanes": places}
    words["second"] = ", ".join(str(2 * k if 2 * k < lanes else 2 * k + 1) for k in range(lanes))
    text = _FORMS[form].format(**words, element=element)
    if form not in _NATIVE_FORMS or element * lanes not in (16, 32, 64):
        return text
    if form.endswith("masked") and lanes not in (4, 8, 16):  # a mask has 32 bits a lane
        return text
    stem, name = _STEMS[element]
    words |= {"E": name, "stem": stem, "size": element * lanes, "bits": element * lanes * 8}
    words["mask"] = words["first"] = "(UINT64_C(1) << count) - 1"
    words |= {"mask_size": 4 * lanes, "mask_bits": 32 * lanes}
    words["even"] = ", ".join(str(2 * k) for k in range(lanes))
    words["every_second"] = _EVERY_SECOND.format(**words) if element >= 4 else ""
    native = _NATIVE_FORMS[form].format(**words)
    return _NATIVE.format(native=native, portable=text)


def memory_typedefs(text: str) -> str:
    """The typedefs of the memory types that a text names.

    >>> memory_typedefs("f32_m *x")
    'typedef float f32_m __attribute__((may_alias));\\n'
    """
    names = set(re.findall(r"\b([fiu](?:8|16|32|64))(?:x(\d+))?_m\b", text))
    found = sorted(names, key=lambda name: (name[0], int(name[1] or 0)))
    lines = []
    for short, lanes in found:
        size = int(short[1:]) // 8
        if lanes:
            about = f"vector_size({size * int(lanes)}), aligned({size}), may_alias"
            lines.append(f"typedef {SCALARS[short]} {short}x{lanes}_m __attribute__(({about}));\n")
        else:
            lines.append(f"typedef {SCALARS[short]} {short}_m __attribute__((may_alias));\n")
    return "".join(lines)
