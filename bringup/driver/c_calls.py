"""A call of an op, and the records of a trace, between Python and the C structs of driver.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int64
from typing import Any

from bringup.driver import (
    DTYPES,
    CallSpec,
    CopyKind,
    LibraryOp,
    NumberArgument,
    PlacementKind,
    TensorArgument,
    TensorSpec,
    TraceKind,
    TraceRecord,
)
from bringup.driver.c_struct import CallStruct, LibraryOpStruct, TensorStruct, TraceRecordStruct, ValueStruct

_NONE, _TENSOR, _NUMBER, _INTEGERS, _REAL, _TEXT = range(6)
#: Names of trace records that a Python driver wrote: C may keep the pointers.
_names: dict[str, bytes] = {}


def call_struct(call: CallSpec) -> CallStruct:
    """A call as C reads it; the struct keeps what it points to."""
    tensors = (TensorStruct * len(call.tensors))()
    for struct, tensor in zip(tensors, call.tensors):
        struct.dtype, struct.ndim = DTYPES.index(tensor.dtype), len(tensor.shape)
        struct.sizes, struct.strides = _integers(tensor.shape), _integers(tensor.strides)
        struct.placement = int(tensor.placement)
    values = (ValueStruct * len(call.arguments))()
    for struct, (name, value) in zip(values, call.arguments.items()):
        struct.name = name.encode()
        _fill_value(struct, value)
    c = CallStruct(ctypes.sizeof(CallStruct), len(tensors), call.output_count, len(values), call.op.encode())
    c.tensors, c.values = ctypes.cast(tensors, type(c.tensors)), ctypes.cast(values, type(c.values))
    return c


def _integers(numbers: Sequence[int]) -> Any:
    return ctypes.cast((c_int64 * len(numbers))(*numbers), ctypes.POINTER(c_int64))


def _fill_value(struct: ValueStruct, value: Any) -> None:
    integers: Sequence[int] = ()
    if value is None:
        struct.kind = _NONE
    elif isinstance(value, TensorArgument):
        struct.kind, integers = _TENSOR, value.slots
    elif isinstance(value, NumberArgument):
        struct.kind, integers = _NUMBER, (value.slot,)
    elif isinstance(value, float):
        struct.kind, struct.real = _REAL, value
    elif isinstance(value, str):
        struct.kind, struct.text = _TEXT, value.encode()
    else:
        struct.kind, integers = _INTEGERS, value if isinstance(value, (list, tuple)) else (int(value),)
    struct.count, struct.integers = len(integers), _integers(integers)


def call_from(c: CallStruct) -> CallSpec:
    """A call as Python sees it. Integers, lists of one and truth values look the same in C: they arrive as lists."""
    tensors = tuple(
        TensorSpec(DTYPES[t.dtype], tuple(t.sizes[: t.ndim]), tuple(t.strides[: t.ndim]), PlacementKind(t.placement))
        for t in c.tensors[: c.tensor_count]
    )
    return CallSpec(
        c.op.decode(), tensors, c.output_count, {v.name.decode(): _value(v) for v in c.values[: c.value_count]}
    )


def _value(struct: ValueStruct) -> Any:
    integers = struct.integers[: struct.count] if struct.count else []
    if struct.kind == _TENSOR:
        return TensorArgument(tuple(integers))
    if struct.kind == _NUMBER:
        return NumberArgument(integers[0])
    if struct.kind == _REAL:
        return struct.real
    if struct.kind == _TEXT:
        return struct.text.decode()
    return integers if struct.kind == _INTEGERS else None


def library_op_from(c: LibraryOpStruct) -> LibraryOp:
    """A library op as Python sees it."""
    if not c.function:
        raise ValueError("library_op: the function is NULL")
    numbers = (c.workspace_bytes, bool(c.elementwise), c.flops, c.bytes)
    return LibraryOp(c.function, c.context or 0, *numbers)


def fill_library_op(struct: LibraryOpStruct, op: object) -> None:
    """Checks what a Python driver's ``library_op`` returned and writes it into the C struct."""
    if not isinstance(op, LibraryOp):
        raise TypeError(f"must return a LibraryOp, not {type(op).__name__}")
    if op.function <= 0 or op.workspace_bytes < 0:
        raise ValueError(f"function {op.function:#x} and workspace_bytes {op.workspace_bytes} must be positive")
    struct.function, struct.context = op.function, op.context
    struct.workspace_bytes, struct.elementwise = op.workspace_bytes, op.elementwise
    struct.flops, struct.bytes = op.flops, op.bytes


def trace_records_from(records: Sequence[TraceRecordStruct]) -> list[TraceRecord]:
    """Records of a trace as Python sees them."""
    return [
        TraceRecord(
            TraceKind(c.kind),
            c.start_ns,
            c.end_ns,
            c.stream,
            c.correlation,
            c.name.decode("utf-8", "replace") if c.name else "",
            c.bytes,
            CopyKind(c.copy_kind),
        )
        for c in records
    ]


def fill_trace_records(room: Any, size: int, records: Sequence[TraceRecord]) -> None:
    """Writes the records of a Python driver into C's room for them."""
    if len(records) > size:
        raise ValueError(f"returned {len(records)} records, more than the {size} that were asked for")
    for place, record in enumerate(records):
        name = _names.setdefault(record.name, record.name.encode()) if record.name else None
        times = (record.start_ns, record.end_ns, record.stream, record.correlation, record.bytes)
        room[place] = TraceRecordStruct(int(record.kind), int(record.copy_kind), *times, name)
