"""Values in generated C: which C type computes an IR type, and how constants are written.

A kind is a type that code computes in: f32 (also the half types), f64, i32 (also int8 and int16, kept in range),
u32 (also uint8 and uint16), i64, u64 and bool. A scalar bool is an int, 0 or 1; a vector bool is a mask, an integer
vector whose lanes are 0 or -1 and as wide as what was compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bringup.ir.dtypes import DType, Kind
from bringup.ir.expr import Const
from bringup.targets.c.math_template import SCALARS

_LETTERS = {Kind.FLOAT: "f", Kind.INT: "i", Kind.UINT: "u"}


@dataclass(frozen=True)
class Value:
    """A computed value: its C text (a name or a literal), its kind, its lanes, and the scope that it lives in."""

    text: str
    kind: str
    lanes: int = 1
    depth: int = 0
    mask_bits: int = 32

    @property
    def ctype(self) -> str:
        """The C type.

        >>> Value("v1", "bool", 16).ctype
        'i32x16'
        """
        return ctype(self.kind, self.lanes, self.mask_bits)


def kind_of(dtype: DType) -> str:
    """The kind that computes a type.

    >>> from bringup.ir.dtypes import bfloat16, int8
    >>> kind_of(bfloat16), kind_of(int8)
    ('f32', 'i32')
    """
    if dtype.kind is Kind.BOOL:
        return "bool"
    return f"{_LETTERS[dtype.kind]}{max(32, dtype.bits)}"


def storage_of(dtype: DType) -> str:
    """The short name of a type in memory; bools are bytes and halves are 16 bits.

    >>> from bringup.ir.dtypes import bfloat16, boolean
    >>> storage_of(bfloat16), storage_of(boolean)
    ('u16', 'u8')
    """
    if dtype.kind is Kind.BOOL:
        return "u8"
    if dtype.is_half:
        return "u16"
    return f"{_LETTERS[dtype.kind]}{dtype.bits}"


def bits_of(kind: str) -> int:
    """The width of a kind; a bool counts as 32.

    >>> bits_of("f64")
    64
    """
    return 32 if kind == "bool" else int(kind[1:])


def ctype(kind: str, lanes: int = 1, mask_bits: int = 32) -> str:
    """The C type of a kind.

    >>> ctype("f32"), ctype("f32", 16)
    ('float', 'f32x16')
    """
    if lanes == 1:
        return "int" if kind == "bool" else SCALARS[kind]
    return f"i{mask_bits}x{lanes}" if kind == "bool" else f"{kind}x{lanes}"


def converted(text: str, source: str, target: str, lanes: int) -> str:
    """C of a vector in another type, in steps of twice or half the width.

    In one step gcc 12 takes a vector of 16 bytes apart to make 32-bit integers of them: 51 instructions instead of 12.

    >>> converted("v1", "u8", "i32", 16)
    '__builtin_convertvector(__builtin_convertvector(v1, u16x16), i32x16)'
    """
    bits, last = int(source[1:]), int(target[1:])
    while bits != last:
        bits = bits * 2 if bits < last else bits // 2
        kind = target if bits == last else f"{source[0]}{bits}"
        text = f"__builtin_convertvector({text}, {kind}x{lanes})"
    return text


def first_lanes(lanes: int, count: str) -> str:
    """The mask of the lanes below a count, an int of C.

    >>> first_lanes(2, "c")
    '((i32x2){0, 1} < (int32_t)c)'
    """
    numbers = ", ".join(str(lane) for lane in range(lanes))
    return f"((i32x{lanes}){{{numbers}}} < (int32_t){count})"


def literal(expr: Const) -> str:
    """A constant in C.

    >>> from bringup.ir.dtypes import float32
    >>> from bringup.ir.expr import const
    >>> literal(const(-0.5, float32))
    '(-0x1.0000000000000p-1f)'
    """
    kind, value = kind_of(expr.type), expr.value
    if kind == "bool":
        return str(int(value))
    if kind in ("f32", "f64"):
        suffix = "f" if kind == "f32" else ""
        if math.isnan(value):
            return f'__builtin_nan{suffix}("")'
        if math.isinf(value):
            return f"{'(-' if value < 0 else '('}__builtin_inf{suffix}())"
        text = float(value).hex()
        return f"({text}{suffix})" if text.startswith("-") else f"{text}{suffix}"
    return integer_literal(int(value), kind)


def integer_literal(value: int, kind: str) -> str:
    """An integer of a kind in C, also the smallest one.

    >>> integer_literal(-(2**31), "i32")
    '(-2147483647 - 1)'
    """
    suffix = {"i32": "", "u32": "u", "i64": "LL", "u64": "ULL"}[kind]
    if value == -(1 << (bits_of(kind) - 1)):
        return f"({value + 1}{suffix} - 1)"
    return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"
