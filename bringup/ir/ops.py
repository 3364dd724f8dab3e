"""The op tables: which types each unary and binary op takes, what it returns, and what it means exactly.

Meanings hold for every target, bit for bit, except where ``ulp`` is not 0: there a target may differ from the exact
value by that many units in the last place (in the op's type; halves: of the float32 value, then rounded). NaNs are all
the same value: their sign and payload are not part of the meaning.
Half types convert to float32, apply the op, and round once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from bringup.ir.dtypes import DType, Kind

_BOOL, _INT, _UINT, _FLOAT = Kind.BOOL, Kind.INT, Kind.UINT, Kind.FLOAT


@dataclass(frozen=True)
class Op:
    """One op: the kinds of type it takes, whether it returns bool, and its permitted error."""

    name: str
    kinds: frozenset[Kind]
    returns_bool: bool
    ulp: int
    meaning: str

    def accepts(self, dtype: DType) -> bool:
        """True if the op is defined on a type."""
        return dtype.kind in self.kinds

    @property
    def transcendental(self) -> bool:
        """True if targets compute it with their own series: not folded, not recomputed by fusion."""
        return self.ulp > 0


def _table(rows: list[tuple[str, str, str]], ulp: int = 0) -> dict[str, Op]:
    letters = {"b": _BOOL, "i": _INT, "u": _UINT, "f": _FLOAT}
    table = {}
    for name, signature, meaning in rows:
        kinds = frozenset(letters[letter] for letter in signature.rstrip("?"))
        table[name] = Op(name, kinds, signature.endswith("?"), ulp, meaning)
    return table


#: b bool, i signed, u unsigned, f float; a "?" at the end: the result is bool.
UNARY = _table(
    [
        ("neg", "iuf", "-x; integers wrap, so the smallest stays itself"),
        ("abs", "iuf", "|x|; the smallest signed integer stays itself"),
        ("sign", "iuf", "-1, 0 or 1; 0 for NaN, as torch"),
        ("not", "biu", "all bits inverted; for bool the other truth value"),
        ("floor", "f", "rounded down"),
        ("ceil", "f", "rounded up"),
        ("trunc", "f", "rounded towards 0"),
        ("round", "f", "rounded to nearest, halves to even"),
        ("sqrt", "f", "square root, correctly rounded"),
        ("rsqrt", "f", "1 / sqrt(x): two roundings"),
        ("reciprocal", "f", "1 / x"),
        ("isnan", "f?", "x is NaN"),
        ("isinf", "f?", "x is +inf or -inf"),
        ("isfinite", "f?", "x is neither NaN nor infinite"),
        ("signbit", "if?", "the sign bit is set; of a NaN: false"),
    ]
)
UNARY |= _table(
    [
        ("exp", "f", "e^x"),
        ("exp2", "f", "2^x"),
        ("expm1", "f", "e^x - 1"),
        ("log", "f", "natural logarithm"),
        ("log1p", "f", "log(1 + x)"),
        ("log2", "f", "logarithm to base 2"),
        ("log10", "f", "logarithm to base 10"),
        ("sin", "f", "sine, full range reduction"),
        ("cos", "f", "cosine, full range reduction"),
        ("tan", "f", "tangent, full range reduction"),
        ("asin", "f", "arc sine"),
        ("acos", "f", "arc cosine"),
        ("atan", "f", "arc tangent"),
        ("sinh", "f", "hyperbolic sine"),
        ("cosh", "f", "hyperbolic cosine"),
        ("tanh", "f", "hyperbolic tangent"),
        ("asinh", "f", "inverse hyperbolic sine"),
        ("acosh", "f", "inverse hyperbolic cosine"),
        ("atanh", "f", "inverse hyperbolic tangent"),
        ("erf", "f", "error function"),
        ("erfc", "f", "1 - erf(x), accurate for large x"),
    ],
    ulp=2,
)
UNARY |= _table(
    [
        ("erfinv", "f", "inverse of erf on -1 … 1"),
        (
            "lgamma",
            "f",
            "log |gamma(x)|; where the result is below 1 the error is in ulps of 1, and for negative x in ulps of "
            "lgamma(-x), which is subtracted from something as large near a root",
        ),
        ("digamma", "f", "derivative of lgamma; near its roots the error is absolute, in ulps of 1; -inf at 0"),
    ],
    ulp=4,
)

BINARY = _table(
    [
        ("add", "biuf", "a + b; integers wrap; bool: or"),
        ("sub", "iuf", "a - b; integers wrap"),
        ("mul", "biuf", "a × b; integers wrap; bool: and"),
        ("div", "f", "a / b, IEEE"),
        ("floordiv", "iuf", "a / b rounded down; integers: n // 0 = -1 (all bits set); floats: torch's div_floor"),
        ("truncdiv", "iu", "a / b rounded towards 0; n / 0 = -1 (all bits set)"),
        ("remainder", "iuf", "a - b floor(a / b), with the sign of b; integers: n % 0 = n; floats: torch's remainder"),
        ("fmod", "iuf", "a - b trunc(a / b), with the sign of a; integers: fmod(n, 0) = n"),
        ("min", "biuf", "a if a < b or a is NaN, else b: NaN if either is"),
        ("max", "biuf", "a if a > b or a is NaN, else b: NaN if either is"),
        ("and", "biu", "bitwise"),
        ("or", "biu", "bitwise"),
        ("xor", "biu", "bitwise"),
        ("shl", "iu", "a × 2^b, wrapped; b outside 0 … bits - 1 gives 0"),
        ("shr", "iu", "a / 2^b rounded down; b outside 0 … bits - 1 gives 0, or -1 for negative a"),
        ("copysign", "f", "|a| with the sign bit of b; positive if b is NaN"),
        ("nextafter", "f", "the next number from a towards b; in half types the next half"),
        ("lt", "biuf?", "a < b"),
        ("le", "biuf?", "a <= b"),
        ("gt", "biuf?", "a > b"),
        ("ge", "biuf?", "a >= b"),
        ("eq", "biuf?", "a == b; -0.0 equals 0.0, NaN nothing"),
        ("ne", "biuf?", "a != b"),
    ]
)
BINARY |= _table(
    [
        ("pow", "iuf", "a^b; integers wrap and are exact, and a negative b gives 0 unless a is 1 or -1"),
        ("atan2", "f", "angle of (b, a)"),
        ("hypot", "f", "sqrt(a² + b²) without overflow"),
    ],
    ulp=2,
)

#: Ops that printer and parser write between their operands.
INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "and": "&",
    "or": "|",
    "xor": "^",
}
#: Ops that a store or an atomic may combine with.
COMBINES = ("add", "mul", "min", "max")
#: Ops that a reduction or a scan may fold with, by name.
REDUCTIONS = (*COMBINES, "and", "or", "xor")

#: What these ops are called elsewhere.
_ELSEWHERE = {
    **dict.fromkeys(("sum", "plus", "total", "mean"), "add"),
    **dict.fromkeys(("prod", "product", "multiply"), "mul"),
    "amax": "max",
    "maximum": "max",
    "amin": "min",
    "minimum": "min",
    "all": "and",
    "any": "or",
    "absolute": "abs",
    "power": "pow",
    "mod": "remainder",
    "divide": "div",
    "subtract": "sub",
    "negative": "neg",
}


def unknown_name(name: str, known: Iterable[str], what: str) -> ValueError:
    """The error for a name that is not in a table, with the one that was meant where that can be guessed.

    >>> str(unknown_name("sum", REDUCTIONS, "reduction"))
    "'sum' is not a reduction: did you mean 'add'? There are add, mul, min, max, and, or, xor"
    """
    names = list(known)
    meant = [_ELSEWHERE[name]] if _ELSEWHERE.get(name) in names else get_close_matches(name, names, n=1)
    hint = f": did you mean {meant[0]!r}?" if meant else "."
    return ValueError(f"{name!r} is not a {what}{hint} There are {', '.join(names)}")


def is_exact(op: Op, dtype: DType) -> bool:
    """True if every target gives the same bits for this op on this type.

    >>> from bringup.ir.dtypes import float32, int32
    >>> is_exact(BINARY["pow"], int32), is_exact(BINARY["pow"], float32)
    (True, False)
    """
    return op.ulp == 0 or not dtype.is_float
