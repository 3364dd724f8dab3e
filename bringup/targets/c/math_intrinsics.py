"""x86 instructions for what C vectors have no operator for; each gives the bits of the C text in math/base.c."""

from __future__ import annotations

_GUARD = {64: "__AVX512F__", 32: "__AVX__", 16: "__SSE2__"}
_ROUNDING = {"round": 8, "floor": 9, "ceil": 10, "trunc": 11}
_ARGUMENTS = {"fma": "a, b, c", "lesser": "a, b", "greater": "a, b", "scale": "x, n"}
_HALVES = {
    ("from_f16", "f32", 8): ("__F16C__", "__builtin_ia32_vcvtph2ps256((i16x8)x)"),
    ("from_f16", "f32", 16): ("__AVX512F__", "__builtin_ia32_vcvtph2ps512_mask((i16x16)x, (f32x16){}, -1, 4)"),
    ("from_f32", "f16", 8): ("__F16C__", "__builtin_ia32_vcvtps2ph256(x, 0)"),
    ("from_f32", "f16", 16): ("__AVX512F__", "__builtin_ia32_vcvtps2ph512_mask(x, 0, (i16x16){}, -1)"),
}


def _rounding(op: str, letters: str, size: int) -> tuple[str, str]:
    mode = _ROUNDING[op]
    if size == 64:
        return _GUARD[64], f"__builtin_ia32_rndscale{letters}_mask(x, {mode}, x, -1, 4)"
    if size == 32:
        return _GUARD[32], f"__builtin_ia32_round{letters}256(x, {mode})"
    return "__SSE4_1__", f"__builtin_ia32_round{letters}(x, {mode})"


def _any(size: int) -> tuple[str, str]:
    if size == 64:
        return "__AVX512F__", "__builtin_ia32_ptestmd512((i32x16)m, (i32x16)m, -1) != 0"
    if size == 32:
        vector = "(long long __attribute__((vector_size(32))))m"  # int64_t may be another type of the same size
        return "__AVX__", f"!__builtin_ia32_ptestz256({vector}, {vector})"
    return "__SSE2__", "__builtin_ia32_pmovmskb128((char __attribute__((vector_size(16))))m) != 0"


def intrinsic(op: str, dtype: str, lanes: int) -> tuple[str, str] | None:
    """The preprocessor condition and the C expression of a primitive as instructions; None where there are none.

    >>> intrinsic("sqrt", "f32", 8)
    ('__AVX__', '__builtin_ia32_sqrtps256(x)')
    """
    if (op, dtype, lanes) in _HALVES:
        return _HALVES[op, dtype, lanes]
    size = int(dtype.lstrip("bfiu")) // 8 * lanes
    if size not in _GUARD:
        return None
    if op == "any":
        return _any(size)
    if dtype not in ("f32", "f64"):
        return None
    letters = "ps" if dtype == "f32" else "pd"
    if op in _ROUNDING:
        return _rounding(op, letters, size)
    if op == "scale":
        if size == 64:
            return _GUARD[64], f"__builtin_ia32_scalef{letters}512_mask(x, n, x, -1, 4)"
        return "__AVX512VL__", f"__builtin_ia32_scalef{letters}{size * 8}_mask(x, n, x, -1)"
    stem = {"fma": "vfmadd", "sqrt": "sqrt", "lesser": "min", "greater": "max"}.get(op)
    if stem is None:
        return None
    arguments = _ARGUMENTS.get(op, "x")
    if size == 64:
        source = "" if op == "fma" else "x, " if op == "sqrt" else "a, "
        return _GUARD[64], f"__builtin_ia32_{stem}{letters}512_mask({arguments}, {source}-1, 4)"
    guard = "__FMA__" if op == "fma" else _GUARD[size]
    return guard, f"__builtin_ia32_{stem}{letters}{256 if size == 32 else ''}({arguments})"
