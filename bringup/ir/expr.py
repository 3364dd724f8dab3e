"""Value expressions: trees of typed, side-effect-free nodes; both sides of a Where are always evaluated.

>>> from bringup.ir.dtypes import float32
>>> x = Load("x", (AxisVar("i"),), float32)
>>> (x * 2.0 + 1.0).dtype
float32
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, Union

from bringup.ir.dtypes import DType, boolean, decode, encode, int64, uint32, uint64
from bringup.ir.index import AxisVar, Bounded, Index, IndexLike, as_index
from bringup.ir.ops import BINARY, UNARY, unknown_name

Number: TypeAlias = bool | int | float
ExprLike: TypeAlias = Union["Expr", bool, int, float]


def _no_operator(sign: str, instead: str) -> Callable[..., Expr]:
    def refuse(*_: object) -> Expr:
        raise TypeError(f"values of a kernel have no operator {sign}: write {instead}")

    return refuse


def _operator(op: str) -> Callable[[Expr, ExprLike], Expr]:
    return lambda self, other: Binary(op, self, self._lift(other))


def _reflected(op: str) -> Callable[[Expr, Number], Expr]:
    return lambda self, other: Binary(op, self._lift(other), self)


class Expr:
    """A value; the subclasses say which. Arithmetic operators take numbers too, as constants of the same type."""

    __pow__ = __rpow__ = _no_operator("**", 'x * x, or binary("pow", x, y)')
    __mod__ = __rmod__ = _no_operator("%", 'binary("remainder", x, y)')
    __floordiv__ = __rfloordiv__ = _no_operator("//", 'binary("floordiv", x, y)')
    __xor__ = __rxor__ = _no_operator("^", 'binary("xor", x, y)')
    __lshift__ = __rlshift__ = _no_operator("<<", 'binary("shl", x, y)')
    __rshift__ = __rrshift__ = _no_operator(">>", 'binary("shr", x, y)')
    __abs__ = _no_operator("abs()", 'unary("abs", x)')

    @property
    def dtype(self) -> DType:
        """The type of the value."""
        raise NotImplementedError

    def _lift(self, other: ExprLike) -> Expr:
        return other if isinstance(other, Expr) else const(other, self.dtype)

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("sub"), _reflected("sub")
    __mul__, __rmul__ = _operator("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _operator("div"), _reflected("div")
    __and__, __or__ = _operator("and"), _operator("or")
    __lt__, __le__, __gt__, __ge__ = _operator("lt"), _operator("le"), _operator("gt"), _operator("ge")

    def __neg__(self) -> Expr:
        return Unary("neg", self)

    def __invert__(self) -> Expr:
        return Unary("not", self)


class _Typed(Expr):
    """A value that says its type."""

    type: DType

    @property
    def dtype(self) -> DType:
        """The type it says."""
        return self.type


@dataclass(frozen=True)
class Const(_Typed):
    """A constant by its bits, so that -0.0 is not 0.0 and a NaN equals itself; built by ``const``."""

    bits: int
    type: DType

    @cached_property
    def value(self) -> Number:
        """The Python number."""
        return decode(self.bits, self.type)


@dataclass(frozen=True)
class Param(_Typed):
    """A scalar argument of the launch."""

    name: str
    type: DType


@dataclass(frozen=True)
class Name(_Typed):
    """A value that a statement bound: Let, Reduce, Scan, Loop, Contract, or a side of a combine."""

    name: str
    type: DType


@dataclass(frozen=True)
class IndexValue(Expr):
    """An index as an int64 value."""

    index: Index

    @property
    def dtype(self) -> DType:
        """Always int64."""
        return int64


@dataclass(frozen=True)
class Load(_Typed):
    """An element of a buffer or Local. With a guard, memory is touched only where it holds; elsewhere ``other``."""

    buffer: str
    indices: tuple[Index, ...]
    type: DType
    guard: Expr | None = None
    other: Expr | None = None


@dataclass(frozen=True)
class Unary(Expr):
    """One of ops.UNARY."""

    op: str
    x: Expr

    @property
    def dtype(self) -> DType:
        """Bool for tests, else the operand's."""
        return boolean if UNARY[self.op].returns_bool else self.x.dtype


@dataclass(frozen=True)
class Binary(Expr):
    """One of ops.BINARY; both operands have one type."""

    op: str
    a: Expr
    b: Expr

    @property
    def dtype(self) -> DType:
        """Bool for comparisons, else the operands'."""
        return boolean if BINARY[self.op].returns_bool else self.a.dtype


@dataclass(frozen=True)
class Fma(Expr):
    """a × b + c rounded once; float32 and float64 only."""

    a: Expr
    b: Expr
    c: Expr

    @property
    def dtype(self) -> DType:
        """The operands'."""
        return self.a.dtype


@dataclass(frozen=True)
class Where(Expr):
    """``yes`` where the condition holds, else ``no``; both are evaluated."""

    condition: Expr
    yes: Expr
    no: Expr

    @property
    def dtype(self) -> DType:
        """The branches'."""
        return self.yes.dtype


@dataclass(frozen=True)
class Cast(_Typed):
    """A conversion.

    To bool: x != 0. Integer to integer: the low bits. Integer or float64 to a half: by way of float32. Float to
    integer: rounded towards 0 to int32 (to int64 for the targets int64, uint32, uint64), then the low bits; so -1.0 is
    255 in uint8. NaN and what does not fit become the least number of int32 (int64): so do x86 processors, hence torch
    on them, and it is the cheapest to write down elsewhere. To uint64 a number from 2^63 up: x - 2^63, then plus 2^63.
    """

    x: Expr
    type: DType


@dataclass(frozen=True)
class Bits(_Typed):
    """The bits of a value as another type of the same size: float32 with 32-bit integers, float64 with 64-bit ones.

    A NaN has the bits of the quiet NaN 0x7fc00000 (0x7ff8000000000000).
    """

    x: Expr
    type: DType


@dataclass(frozen=True)
class Philox(Expr):
    """Draw number ``counter`` of the call ``offset`` under ``seed`` (runtime/philox.h); all three are uint64."""

    seed: Expr
    offset: Expr
    counter: Expr
    bits: Literal[32, 64] = 32

    @property
    def dtype(self) -> DType:
        """Uint32 or uint64."""
        return uint32 if self.bits == 32 else uint64


AsIndexMode: TypeAlias = Literal["check", "wrap", "skip"]


@dataclass(frozen=True)
class AsIndex(Bounded):
    """A value as an index below ``extent``: the only bridge from values to indices.

    check: outside 0 … extent - 1 is an IndexError. wrap: -extent … -1 count from the end, the rest is an IndexError.
    skip: the Load or Store that uses it does not happen (a Load gives ``other``, or 0). Where a guard is false nothing
    is checked.
    """

    value: Expr
    extent: Index
    mode: AsIndexMode = "check"


def const(value: Number, dtype: DType) -> Const:
    """A constant of a type; floats are rounded to it, integers must fit.

    >>> from bringup.ir.dtypes import float32
    >>> const(1, float32).value
    1.0
    """
    return Const(encode(value, dtype), dtype)


def index_value(index: IndexLike | str) -> IndexValue:
    """An index, or the axis of a name, as a value.

    >>> index_value("i").index
    AxisVar(name='i')
    """
    return IndexValue(AxisVar(index) if isinstance(index, str) else as_index(index))


def unary(op: str, x: Expr) -> Unary:
    """An op of the table ops.UNARY by name; an unknown one is refused.

    >>> from bringup.ir.dtypes import float32
    >>> unary("exp", const(0.0, float32)).dtype
    float32
    """
    if op not in UNARY:
        raise unknown_name(op, UNARY, "unary op")
    return Unary(op, x)


def binary(op: str, a: Expr, b: ExprLike) -> Binary:
    """An op of the table ops.BINARY by name; a number becomes a constant of a's type.

    >>> from bringup.ir.dtypes import float32
    >>> binary("max", const(0.0, float32), 1.0).dtype
    float32
    """
    if op not in BINARY:
        raise unknown_name(op, BINARY, "binary op")
    return Binary(op, a, b if isinstance(b, Expr) else const(b, a.dtype))
