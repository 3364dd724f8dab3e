"""C functions for integer arithmetic with the IR's rules: division, powers, Philox, and index division.

All arithmetic that may overflow is in unsigned types. Small types (int8 … uint16) are computed in 32 bits and brought
back into range by the caller.
"""

from __future__ import annotations

from bringup.targets.c.value import bits_of, ctype

_FLOOR = """static inline {T} bu_{op}_{k}({T} a, {T} b) {{
  if (b == 0) return {zero};
{minus_one}  {T} q = a / b;
{rest}{fix}  return {result};
}}
"""

_POWER = """static inline {T} bu_pow_{k}({T} a, {T} b) {{
{negative}  {U} base = ({U})a, result = 1;
  for ({U} left = ({U})b; left; left >>= 1) {{
    if (left & 1) result *= base;
    base *= base;
  }}
  return ({T})result;
}}
"""


def division(op: str, kind: str) -> str:
    """The C function of floordiv, truncdiv, remainder or fmod.

    >>> "int32_t bu_floordiv_i32(int32_t a, int32_t b)" in division("floordiv", "i32")
    True
    """
    quotient = op in ("floordiv", "truncdiv")
    signed = kind.startswith("i")
    fix = minus_one = ""
    if signed:
        unsigned = ctype(f"u{bits_of(kind)}")
        negated = f"({ctype(kind)})(0 - ({unsigned})a)"
        minus_one = f"  if (b == -1) return {negated if quotient else '0'};\n"
        if op in ("floordiv", "remainder"):
            fix = "  if (r != 0 && (r < 0) != (b < 0)) { q -= 1; r += b; }\n"
    return _FLOOR.format(
        T=ctype(kind),
        k=kind,
        op=op,
        zero=f"({ctype(kind)})-1" if quotient else "a",
        minus_one=minus_one,
        rest="" if quotient and not fix else f"  {ctype(kind)} r = a - q * b;\n",
        fix=fix,
        result="q" if quotient else "r",
    )


def power(kind: str) -> str:
    """The C function of pow on integers.

    >>> power("u64").startswith("static inline uint64_t bu_pow_u64")
    True
    """
    negative = ""
    if kind.startswith("i"):
        negative = "  if (b < 0) return a == 1 ? 1 : a == -1 ? ((b & 1) ? -1 : 1) : 0;\n"
    return _POWER.format(T=ctype(kind), U=ctype(f"u{bits_of(kind)}"), k=kind, negative=negative)


def lane_wise(op: str, kind: str, lanes: int) -> str:
    """The vector form of a scalar function of two values: one lane after the other.

    >>> "bu_pow_i32(a[k], b[k])" in lane_wise("pow", "i32", 8)
    True
    """
    vector = ctype(kind, lanes)
    return (
        f"static inline {vector} bu_{op}_{vector}({vector} a, {vector} b) {{\n  {vector} r;\n"
        f"  for (int k = 0; k < {lanes}; k++) r[k] = bu_{op}_{kind}(a[k], b[k]);\n  return r;\n}}\n"
    )


#: b is positive, as the verifier proved.
INDEX_DIVISION = """static inline int64_t bu_index_div(int64_t a, int64_t b) {
  return a >= 0 ? a / b : -((-(a + 1)) / b) - 1;
}
static inline int64_t bu_index_mod(int64_t a, int64_t b) { return a - bu_index_div(a, b) * b; }
"""

PHILOX_BLOCK = """static inline void bu_philox_block(uint64_t seed, uint64_t offset, uint64_t block, uint32_t c[4]) {
  uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = (uint32_t)offset, c3 = (uint32_t)(offset >> 32);
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  c[0] = c0, c[1] = c1, c[2] = c2, c[3] = c3;
}
"""


def philox(bits: int) -> str:
    """The C function of one draw, with the block function in front.

    >>> "bu_philox32" in philox(32)
    True
    """
    if bits == 32:
        body = "  bu_philox_block(seed, offset, counter >> 2, c);\n  return c[counter & 3];\n"
    else:
        body = (
            "  bu_philox_block(seed, offset, counter >> 1, c);\n  int at = 2 * (int)(counter & 1);\n"
            "  return (uint64_t)c[at] | (uint64_t)c[at + 1] << 32;\n"
        )
    head = f"static inline uint{bits}_t bu_philox{bits}(uint64_t seed, uint64_t offset, uint64_t counter) {{"
    return f"{head}\n  uint32_t c[4];\n{body}}}\n"


_PHILOX_ROUNDS = """  const uint64_t low = 0xFFFFFFFFu;
  {V} c0 = block & low, c1 = block >> 32;
  {V} c2 = ({V}){{0}} + (offset & low), c3 = ({V}){{0}} + (offset >> 32);
  uint64_t k0 = seed & low, k1 = seed >> 32;
  for (int round = 0; round < 10; round++) {{
    {V} p0 = c0 * 0xD2511F53u, p1 = c2 * 0xCD9E8D57u;
    c0 = (p1 >> 32) ^ c1 ^ k0;
    c1 = p1 & low;
    c2 = (p0 >> 32) ^ c3 ^ k1;
    c3 = p0 & low;
    k0 = (k0 + 0x9E3779B9u) & low;
    k1 = (k1 + 0xBB67AE85u) & low;
  }}
"""


def philox_vector(bits: int, lanes: int) -> str:
    """The C function of a vector of draws under one seed and offset.

    >>> "u32x8 bu_philox32x8(" in philox_vector(32, 8)
    True
    """
    vector = f"u64x{lanes}"
    if bits == 32:
        picks = " | ".join(f"(c{k} & ({vector})(at == {k}))" for k in range(4))
        result = f"  {vector} at = counter & 3;\n  return __builtin_convertvector({picks}, u32x{lanes});\n"
    else:
        result = (
            f"  {vector} even = ({vector})((counter & 1) == 0);\n"
            "  return ((c0 | c1 << 32) & even) | ((c2 | c3 << 32) & ~even);\n"
        )
    head = f"static inline u{bits}x{lanes} bu_philox{bits}x{lanes}(uint64_t seed, uint64_t offset, {vector} counter) {{"
    block = f"  {vector} block = counter >> {2 if bits == 32 else 1};"
    return f"{head}\n{block}\n{_PHILOX_ROUNDS.format(V=vector)}{result}}}\n"


def philox_row(bits: int, lanes: int) -> str:
    """The C function of the draws of consecutive numbers: a block has four words, and here all of them are used.

    Dropout of 1M floats takes 1.2 ms by it, and 6.2 with a block for each number (Zen 4, one core).

    >>> "u32x16 bu_philox32_rowx16(" in philox_row(32, 16)
    True
    """
    blocks, each = lanes * bits // 128, 128 // bits
    vector, numbers = f"u64x{blocks}", range(blocks)
    order = ", ".join(f"{n}, {n + blocks}" for n in numbers)
    words = ", ".join(f"even[{n}], odd[{n}]" for n in numbers)
    name = f"bu_philox{bits}_rowx{lanes}"
    return f"""static inline u{bits}x{lanes} {name}(uint64_t seed, uint64_t offset, uint64_t first) {{
  const {vector} block = ({vector}){{{", ".join(map(str, numbers))}}} + first / {each};
{_PHILOX_ROUNDS.format(V=vector)}  const {vector} even = c0 | c1 << 32, odd = c2 | c3 << 32;
  struct {{ u64x{2 * blocks} words; uint32_t more[4]; }} row;
#if defined(__clang__) || __GNUC__ >= 12
  row.words = __builtin_shufflevector(even, odd, {order});
#else
  row.words = (u64x{2 * blocks}){{{words}}};
#endif
  if (first % {each} == 0) return (u{bits}x{lanes})row.words;
  bu_philox_block(seed, offset, first / {each} + {blocks}, row.more);
  u{bits}x{lanes} draws;
  __builtin_memcpy(&draws, (const char *)&row + first % {each} * {bits // 8}, sizeof draws);
  return draws;
}}
"""
