"""The element types of the IR, and how NumPy holds them: half types are stored in 16 bits and computed in float32."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


class Kind(enum.Enum):
    """What family of arithmetic a type belongs to."""

    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    FLOAT = "float"


@dataclass(frozen=True, repr=False)
class DType:
    """An element type.

    >>> bfloat16.size, bfloat16.accumulate, bfloat16.storage
    (2, float32, dtype('uint16'))
    """

    name: str
    kind: Kind
    size: int

    def __repr__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        """True for float16, bfloat16, float32 and float64."""
        return self.kind is Kind.FLOAT

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers; bool is not one."""
        return self.kind in (Kind.INT, Kind.UINT)

    @property
    def is_half(self) -> bool:
        """True for the two 16-bit floats, whose ops run in float32 and round once at the end."""
        return self.is_float and self.size == 2

    @property
    def bits(self) -> int:
        """The width in bits; a bool occupies a byte."""
        return 8 * self.size

    @property
    def accumulate(self) -> DType:
        """The type in which sums of this type are carried: float32 for halves, int32 for 8-bit integers (as hardware
        multiplies them), int64 for bool and the other integers."""
        if self.is_float:
            return float64 if self.size == 8 else float32
        if self.is_integer and self.size == 1:
            return int32
        return uint64 if self is uint64 else int64

    @property
    def storage(self) -> np.dtype[Any]:
        """The NumPy type of arrays in memory; bfloat16 lies in uint16."""
        return np.dtype("uint16" if self.name == "bfloat16" else self.name)

    @property
    def compute(self) -> np.dtype[Any]:
        """The NumPy type in which values are computed; float32 for the half types."""
        return np.dtype("float32" if self.is_half else self.name)

    @property
    def low(self) -> int:
        """The smallest integer of an integer type."""
        return -(1 << (self.bits - 1)) if self.kind is Kind.INT else 0

    @property
    def high(self) -> int:
        """The largest integer of an integer type (1 for bool)."""
        if self.kind is Kind.BOOL:
            return 1
        return (1 << (self.bits - 1)) - 1 if self.kind is Kind.INT else (1 << self.bits) - 1


boolean = DType("bool", Kind.BOOL, 1)
int8 = DType("int8", Kind.INT, 1)
int16 = DType("int16", Kind.INT, 2)
int32 = DType("int32", Kind.INT, 4)
int64 = DType("int64", Kind.INT, 8)
uint8 = DType("uint8", Kind.UINT, 1)
uint16 = DType("uint16", Kind.UINT, 2)
uint32 = DType("uint32", Kind.UINT, 4)
uint64 = DType("uint64", Kind.UINT, 8)
float16 = DType("float16", Kind.FLOAT, 2)
bfloat16 = DType("bfloat16", Kind.FLOAT, 2)
float32 = DType("float32", Kind.FLOAT, 4)
float64 = DType("float64", Kind.FLOAT, 8)

INTEGERS = (int8, int16, int32, int64, uint8, uint16, uint32, uint64)
FLOATS = (float16, bfloat16, float32, float64)
#: Every type by its name.
DTYPES = {dtype.name: dtype for dtype in (boolean, *INTEGERS, *FLOATS)}


def bfloat16_bits(values: Array) -> Array:
    """The 16 bits of float32 values, rounded to nearest even; a NaN becomes the quiet NaN.

    >>> hex(bfloat16_bits(np.float32([1.0]))[0])
    '0x3f80'
    """
    word = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).reshape(np.shape(values))
    rounded = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def bfloat16_values(bits: Array) -> Array:
    """The float32 values of bfloat16 bits (exact).

    >>> float(bfloat16_values(np.uint16([0x3f80]))[0])
    1.0
    """
    word = np.asarray(bits).astype(np.uint32) << np.uint32(16)
    return np.ascontiguousarray(word).view(np.float32).reshape(np.shape(bits))


def round_values(values: Array, dtype: DType) -> Array:
    """Float32 results of a half-type op, rounded to the half type (still as float32); other types pass through.

    >>> float(round_values(np.float32(1.001), bfloat16))
    1.0
    """
    if dtype is float16:
        return np.asarray(values).astype(np.float16).astype(np.float32)
    if dtype is bfloat16:
        return bfloat16_values(bfloat16_bits(np.asarray(values, dtype=np.float32)))
    return values


def from_storage(array: Array, dtype: DType) -> Array:
    """Memory to values.

    >>> from_storage(np.uint16([0x4000]), bfloat16)
    array([2.], dtype=float32)
    """
    if dtype is bfloat16:
        return bfloat16_values(array)
    return np.asarray(array).astype(dtype.compute)


def to_storage(values: Array, dtype: DType) -> Array:
    """Values to memory; the values must already be representable (see ``round_values``).

    >>> to_storage(np.float32([2.0]), bfloat16)
    array([16384], dtype=uint16)
    """
    if dtype is bfloat16:
        return bfloat16_bits(np.asarray(values, dtype=np.float32))
    return np.asarray(values).astype(dtype.storage)


class NoSuchNumber(ValueError):
    """A type that does not have a number: 0.5 as an integer."""


def encode(value: bool | int | float, dtype: DType) -> int:
    """The bits of a Python number in a type, as an unsigned integer; every NaN is the same NaN.

    >>> hex(encode(-0.0, float32))
    '0x80000000'
    """
    if dtype.kind is Kind.BOOL:
        return int(bool(value))
    if dtype.is_integer:
        if not dtype.low <= value <= dtype.high or int(value) != value:
            raise NoSuchNumber(f"{value!r} is no {dtype.name}: {dtype.low} … {dtype.high} are")
        return int(value) & ((1 << dtype.bits) - 1)
    if not isinstance(value, (int, float, np.generic)):  # NumPy takes None for NaN
        raise TypeError(f"{value!r} is neither a number nor an expression")
    if value != value:
        value = float("nan")  # NumPy keeps the sign of a NaN, and -nan would be a second constant
    with np.errstate(over="ignore"):
        values = np.asarray(value, dtype=np.float64)
        if dtype.is_half:
            values = values.astype(np.float32)  # twice rounded, as Cast does
        stored = to_storage(values, dtype)
    return int.from_bytes(np.ascontiguousarray(stored).astype(stored.dtype.newbyteorder("<")).tobytes(), "little")


def decode(bits: int, dtype: DType) -> bool | int | float:
    """The Python number of some bits.

    >>> decode(0x3f80, bfloat16)
    1.0
    """
    raw = np.frombuffer(bits.to_bytes(dtype.size, "little"), dtype=dtype.storage.newbyteorder("<"))
    value: bool | int | float = from_storage(raw, dtype)[0].item()
    return value
