"""The math prelude of C kernels: every function ops.py names, for vectors and scalars, from one definition each.

No libm, no libc: polynomials and exactly rounded steps, so that vector and scalar form, AVX-512, AVX2 and a machine
without fused multiply-add give the same bits. The definitions are math/*.c (math_template.py says how to read them).

C names. T is f32x16 for 16 lanes of float32, float for one; the suffix is _f32x16, or _f32 for one lane. A mask is the
integer vector that a comparison of T gives (all bits set: true); for one lane an int, 0 or not.

    bu_<op>_<T>(x)        the transcendentals of ops.UNARY, floor ceil trunc round sqrt rsqrt reciprocal abs sign
    bu_<op>_<T>(a, b)     pow atan2 hypot fmod remainder floordiv copysign nextafter min max
    bu_<op>_<T>(x)        isnan isinf isfinite signbit: a mask (one lane: 0 or 1)
    bu_fma_<T>(a, b, c)   bu_select_<T>(mask, yes, no), integers too   bu_any_<integer T>(mask): int
    bu_f32x16_from_f16(u16x16)   bu_f16x16_from_f32(f32x16): bit patterns of halves; bf16 likewise
    bu_narrow_f16x16(f32x16)     rounded to the half, still float32; bu_nextafter_f16x16 in that form too
    bu_i8x16_from_f32(f32x16)    every pair of a float and another number type, as expr.Cast says

Largest error seen, float32 then float64, in ulps. Float32: 3 million points of all exponents; for those not computed in
double also every third float from 2^-11 up to 73728 (erf, exp2: 128). Float64: 140,000 points against long double;
erfinv and digamma 3,000 against mpmath; two arguments: 200,000 pairs. lgamma and digamma below 1 in ulps of 1; lgamma
of negative numbers in ulps of lgamma(-x), which reflection subtracts.

    exp    0.90 1.04   log     0.86 0.75   sin   1.53 0.76   asin  1.54 1.57   sinh 1.62 1.66   erf    1.71 0.97
    exp2   0.92 0.90   log1p   0.86 0.50   cos   1.54 0.75   acos  1.04 1.03   cosh 1.34 1.39   erfc   0.50 1.72
    expm1  1.55 0.99   log2    1.58 0.50   tan   1.49 1.15   atan  1.85 1.50   tanh 1.36 0.73   erfinv 0.50 1.92
    pow    0.50 0.67   log10   1.13 0.50   atan2 1.74 1.69   hypot 0.50 1.16   asinh, acosh, atanh 0.50 0.50
    lgamma 0.50 3.11   digamma 0.50 3.22
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Protocol

from bringup.targets.c.math_intrinsics import intrinsic
from bringup.targets.c.math_template import SCALARS, Definition, bits_of, instantiate, parse, split, widest

Need = tuple[str, str, int]


class _Vectors(Protocol):
    @property
    def vector_bytes(self) -> int: ...


@lru_cache(maxsize=1)
def _library() -> dict[tuple[str, str, bool], Definition]:
    """Definitions by name, type and whether the form is the scalar one."""
    folder = Path(__file__).parent / "math"
    found = [
        definition for path in sorted(folder.glob("*.c")) for definition in parse(path.read_text(encoding="utf-8"))
    ]
    table = {}
    for definition in found:
        for scalar in (False, True):
            if definition.form == "both" or (definition.form == "scalar") == scalar:
                table[definition.name, definition.dtype, scalar] = definition
    return table


def _known(name: str, dtype: str) -> bool:
    return (name, dtype, True) in _library()


@cache
def _render(need: Need, vector_bytes: int) -> tuple[str, frozenset[Need]]:
    op, dtype, lanes = need
    definition = _library().get((op, dtype, lanes == 1))
    if definition is None:
        raise KeyError(f"the math library has no {op} for {dtype}")
    if lanes > 1 and widest(definition) * lanes > max(vector_bytes, 16):
        text, calls = split(definition, lanes)
        return text, frozenset(calls)
    text, calls = instantiate(definition, lanes, _known)
    native = intrinsic(op, dtype, lanes) if lanes > 1 else None
    if native is not None:
        guard, expression = native
        head, body = text.split("{\n", 1)
        cast = "" if op == "any" else f"({'u16' if dtype == 'f16' else dtype}x{lanes})"
        fast = f"#if defined({guard}) && !defined(__clang__)\n  return {cast}{expression};\n"
        choice = f"{fast}#else\n{body[:-2]}#endif\n"
        text = f"{head}{{\n{choice}}}\n"
    return text, frozenset(calls)


def functions(names: set[Need], target: _Vectors) -> str:
    """The C text of the functions named by (op, type, lanes) and of those they call, each once, callees first.

    >>> from types import SimpleNamespace
    >>> "bu_fma_f32x4" in functions({("exp", "f32", 4)}, SimpleNamespace(vector_bytes=16))
    True
    """
    done: dict[Need, str] = {}

    def visit(need: Need) -> None:
        if need in done:
            return
        text, calls = _render(need, target.vector_bytes)
        for call in sorted(calls):
            visit(call)
        done[need] = text

    for name in sorted(names):
        visit(name)
    return "\n".join(done.values())


def typedefs(text: str) -> str:
    """The vector types that a C text names.

    >>> typedefs("f32x16 x;")
    'typedef float f32x16 __attribute__((vector_size(64), may_alias));\\n'
    """
    names = sorted({(m[1], int(m[2])) for m in re.finditer(r"\b([fiu](?:8|16|32|64))x(\d+)\b", text)})
    return "".join(
        f"typedef {SCALARS[t]} {t}x{lanes} __attribute__((vector_size({bits_of(t) // 8 * lanes}), may_alias));\n"
        for t, lanes in names
        if t in SCALARS
    )
