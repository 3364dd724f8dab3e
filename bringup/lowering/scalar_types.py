"""PyTorch's scalar types by number (c10::ScalarType) and the rules that promote them."""

from __future__ import annotations

from functools import cache

from bringup.ir.dtypes import (
    DType,
    Kind,
    bfloat16,
    boolean,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

#: The types that kernels know; the others (complex, quantized, float8) have no IR type.
BY_CODE: dict[int, DType] = {
    0: uint8,
    1: int8,
    2: int16,
    3: int32,
    4: int64,
    5: float16,
    6: float32,
    7: float64,
    11: boolean,
    15: bfloat16,
    27: uint16,
    28: uint32,
    29: uint64,
}
#: What PyTorch calls the types that kernels do not know.
OTHERS: dict[int, str] = {
    8: "complex32",
    9: "complex64",
    10: "complex128",
    23: "float8_e5m2",
    24: "float8_e4m3fn",
    25: "float8_e5m2fnuz",
    26: "float8_e4m3fnuz",
}
_C10 = "Byte Char Short Int Long Half Float Double Bool BFloat16 UInt16 UInt32 UInt64"
#: What PyTorch's error messages call the types (c10::toString).
C10_NAMES: dict[int, str] = dict(zip(BY_CODE, _C10.split()))
CODE_OF = {dtype: code for code, dtype in BY_CODE.items()}
BY_NAME = {dtype.name: dtype for dtype in CODE_OF}


@cache
def promote(a: DType, b: DType) -> DType:
    """The type of a result of two types of equal standing, as PyTorch's table says.

    >>> promote(int32, float16)
    float16
    """
    import torch

    joint = torch.promote_types(getattr(torch, a.name), getattr(torch, b.name))
    return BY_NAME[str(joint).removeprefix("torch.")]


def _category(dtype: DType) -> int:
    return {Kind.BOOL: 0, Kind.INT: 1, Kind.UINT: 1, Kind.FLOAT: 2}[dtype.kind]


def number_type(value: bool | int | float) -> DType:
    """Returns the type of a Python number before promotion: a float has PyTorch's default dtype.

    >>> number_type(2), number_type(0.5)
    (int64, float32)
    """
    if isinstance(value, int):
        return boolean if isinstance(value, bool) else int64
    import torch

    return BY_NAME[str(torch.get_default_dtype()).removeprefix("torch.")]


def result_type(dimensioned: list[DType], zero_dim: list[DType], wrapped: list[DType]) -> DType:
    """PyTorch's promotion: tensors with dimensions decide, unless 0-dim tensors or numbers are of a higher category.

    >>> result_type([int32], [], [float32])
    float32
    >>> result_type([float16], [float64], [])
    float16
    """

    def join(dtypes: list[DType]) -> DType | None:
        joint: DType | None = None
        for dtype in dtypes:
            joint = dtype if joint is None else promote(joint, dtype)
        return joint

    result: DType | None = None
    for dtypes in (dimensioned, zero_dim, wrapped):
        joint = join(dtypes)
        if joint is None:
            continue
        if result is None:
            result = joint
        elif _category(joint) > _category(result):
            # A number of a higher category brings its own type; among floats the default one.
            result = promote(result, joint)
    assert result is not None, "result_type needs at least one operand"
    return result


def overflow_error(dtype: DType) -> RuntimeError:
    """PyTorch's error for a number that an integer type cannot hold.

    >>> str(overflow_error(int32))
    'value cannot be converted to type int without overflow'
    """
    name = "int" if dtype is int32 else f"{dtype.name}_t"
    return RuntimeError(f"value cannot be converted to type {name} without overflow")


def clamp_takes_any_bound() -> bool:
    """Whether clamp takes a bound that the type cannot hold, where it changes nothing: torch 2.15 or newer."""
    import torch

    return bool(torch.__version__ >= "2.15")


def opmath(dtype: DType) -> DType:
    """The type in which an op computes: halves in float32, rounded once at the end.

    >>> opmath(bfloat16)
    float32
    """
    return float32 if dtype.is_half else dtype
