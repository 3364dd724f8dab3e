"""Turning in registers: rows of memory, adjacent along k, become panel columns by square blocks of shuffles."""

from __future__ import annotations

from collections.abc import Callable

from bringup.targets.c.value import bits_of, ctype

SHUFFLE = """#ifdef __clang__
#define BU_SHUFFLE(M, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define BU_SHUFFLE(M, a, b, ...) __builtin_shuffle(a, b, (M){__VA_ARGS__})
#endif
"""

Stage = list[tuple[int, int, list[int]]]


def _interleave(lanes: int, part: int, block: int, high: bool) -> list[int]:
    """Blocks of two vectors in turn, inside each part of ``part`` lanes: what the unpack instructions do."""
    pattern = []
    for start in range(0, lanes, part):
        for at in range(part // 2 // block):
            begin = start + (part // 2 if high else 0) + at * block
            pattern += [*range(begin, begin + block), *range(lanes + begin, lanes + begin + block)]
    return pattern


def stages(lanes: int, part: int) -> list[Stage]:
    """The shuffles that turn a square of ``lanes`` vectors: per stage, each new vector's two sources and its pattern.

    A part is what one 128-bit piece of a vector holds: 4 floats, 2 doubles.

    >>> stages(2, 2)
    [[(0, 1, [0, 2]), (0, 1, [1, 3])]]
    """
    out: list[Stage] = []
    size = 1
    while size < part:  # inside the 128-bit parts
        stage: Stage = [(0, 0, [])] * lanes
        for group in range(0, lanes, 2 * size):
            for at in range(size):
                a, b = group + at, group + at + size
                stage[group + 2 * at] = (a, b, _interleave(lanes, part, size, False))
                stage[group + 2 * at + 1] = (a, b, _interleave(lanes, part, size, True))
        out.append(stage)
        size *= 2
    while size < lanes:  # whole parts between vectors
        stage = [(0, 0, [])] * lanes
        for group in range(0, lanes, 2 * size):
            for at in range(size):
                a, b = group + at, group + at + size
                low = [place for place in range(lanes) if not place & size]
                high = [place for place in range(lanes) if place & size]
                stage[a] = (a, b, _joined(low, size, lanes))
                stage[b] = (a, b, _joined(high, size, lanes))
        out.append(stage)
        size *= 2
    return out


def _joined(places: list[int], size: int, lanes: int) -> list[int]:
    """Blocks of the first vector, each followed by the same block of the second."""
    pattern: list[int] = []
    for at in range(0, len(places), size):
        block = places[at : at + size]
        pattern += block + [lanes + place for place in block]
    return pattern


def turn_function(
    name: str, kind: str, lanes: int, storage: str, load: Callable[[int, str], str], fill: int = 0
) -> str:
    """``name(row, width, n, dst)``: dst[k × width + j] = row[j][k], or the fill where row[j] is null.

    ``load(lanes, place)`` is C.

    64 steps of k at a time, so that the part of the panel under work stays in the first-level cache.
    """
    scalar, vector = ctype(kind), ctype(kind, lanes)
    blocks = ""
    if lanes > 1:
        lines = []
        for i in range(lanes):
            empty = ", ".join([str(fill)] * (lanes if fill else 1))
            lines.append(f"{vector} v{i} = {{{empty}}}; if (row[j + {i}]) v{i} = {load(lanes, f'row[j + {i}] + k')};")
        now = [f"v{i}" for i in range(lanes)]
        for level, stage in enumerate(stages(lanes, 16 // (bits_of(kind) // 8))):
            new = [f"w{level}_{i}" for i in range(lanes)]
            for target, (a, b, pattern) in zip(new, stage):
                places = ", ".join(map(str, pattern))
                mask = f"i{bits_of(kind)}x{lanes}"
                lines.append(f"const {vector} {target} = BU_SHUFFLE({mask}, {now[a]}, {now[b]}, {places});")
            now = new
        lines += [f"*({vector}_m *)(dst + (k + {i}) * width + j) = {now[i]};" for i in range(lanes)]
        body = "".join(f"        {line}\n" for line in lines)
        blocks = f"""    for (; j + {lanes} <= width; j += {lanes}) {{
      int64_t k = k0;
      for (; k + {lanes} <= k1; k += {lanes}) {{
{body}      }}
      for (; k < k1; k++)
        for (int64_t i = j; i < j + {lanes}; i++) dst[k * width + i] = row[i] ? {load(1, "row[i] + k")} : {fill};
    }}
"""
    return f"""static void {name}(const {storage} *const *row, int64_t width, int64_t n, {scalar} *dst) {{
  for (int64_t k0 = 0; k0 < n; k0 += 64) {{
    const int64_t k1 = k0 + 64 < n ? k0 + 64 : n;
    int64_t j = 0;
{blocks}    for (; j < width; j++)
      for (int64_t k = k0; k < k1; k++) dst[k * width + j] = row[j] ? {load(1, "row[j] + k")} : {fill};
  }}
}}
"""
