"""Every function of the contract once: how its arguments and its result go from Python to C and back.

``adapter.py`` makes C functions of a Python driver's methods by this table, ``c_library.py`` methods of a library's C
functions. ``tests/unit/test_driver_abi.py`` compares it with include/bringup/driver.h.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from bringup.driver import DTYPES, ClockPair, CopyKind, EventFlags, HostFlags, Reduction
from bringup.driver.c_calls import (
    call_from,
    call_struct,
    fill_library_op,
    library_op_from,
)
from bringup.driver.c_struct import (
    CallStruct,
    ClockPairStruct,
    DeviceSpecStruct,
    LaunchStruct,
    LibraryOpStruct,
    PlacementStruct,
    TraceRecordStruct,
    fill_spec,
    placement_from,
    placement_struct,
    spec_from,
    write_text,
)

#: Bytes of a text that a driver writes.
TEXT_SIZE = 4096
#: void (*)(void *): host functions and binary_free.
VOID_CALL: Any = CFUNCTYPE(None, c_void_p)

_COPY_KINDS = tuple(CopyKind)
#: Compiled binaries handed to C, by address, until C calls binary_free.
_binaries: dict[int, Any] = {}
_free_binary = VOID_CALL(lambda address: _binaries.pop(address, None) and None)
_free_binary_address = ctypes.cast(_free_binary, c_void_p).value


def handle(value: object, least: int = 0, bits: int = 64) -> int:
    """An integer that fits the ABI; the error says what the driver returned instead.

    >>> handle(4096)
    4096
    """
    if isinstance(value, bool):
        raise TypeError(f"must return an int, not {value}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"must return an int, not {type(value).__name__}") from None
    if not least <= number < 1 << bits:
        raise ValueError(f"must return an int from {least} to 2**{bits}-1, not {number}")
    return number


@dataclass(frozen=True)
class Argument:
    """An argument: the types it has in C, and the way from there and back. None: it stays as it is."""

    types: tuple[Any, ...]
    from_c: Callable[..., Any] | None = None
    to_c: Callable[[Any], tuple[Any, ...]] | None = None


@dataclass(frozen=True)
class Result:
    """What a function returns: through pointers in C, which ``store`` writes to; ``room`` makes some and reads them."""

    types: tuple[Any, ...]
    store: Callable[..., None]
    room: Callable[[], tuple[tuple[Any, ...], Callable[[], Any]]]


def _copy_kind(kind: int) -> CopyKind:
    if not 0 <= kind < len(_COPY_KINDS):
        raise ValueError(f"unknown copy kind {kind}")
    return _COPY_KINDS[kind]


def _number(type_: Any, python: Callable[[Any], Any], c: Callable[[Any], Any]) -> Result:
    """A number behind a pointer."""

    def room() -> tuple[tuple[Any, ...], Callable[[], Any]]:
        out = type_()
        return (byref(out),), lambda: python(out.value)

    def store(pointer: Any, value: Any) -> None:
        pointer[0] = c(value)

    return Result((POINTER(type_),), store, room)


def _handle(least: int = 0, bits: int = 64) -> Result:
    return _number(c_uint64, int, lambda value: handle(value, least, bits))


def _text_room() -> tuple[tuple[Any, ...], Callable[[], Any]]:
    text = ctypes.create_string_buffer(TEXT_SIZE)
    return (text, TEXT_SIZE), lambda: text.value.decode()


def _store_text(address: int | None, size: int, text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"must return a str, not {type(text).__name__}")
    if not write_text(address, size, text):
        raise ValueError(f"returned {len(text)} characters, more than the {size} bytes there is room for")


def _store_info(free: Any, total: Any, info: object) -> None:
    if not isinstance(info, tuple) or len(info) != 2:
        raise TypeError(f"must return (free, total), not {info!r}")
    free[0], total[0] = map(handle, info)


def _info_room() -> tuple[tuple[Any, ...], Callable[[], Any]]:
    free, total = c_uint64(), c_uint64()
    return (byref(free), byref(total)), lambda: (free.value, total.value)


def _store_clocks(pointer: Any, clocks: object) -> None:
    if not isinstance(clocks, ClockPair):
        raise TypeError(f"must return a ClockPair, not {type(clocks).__name__}")
    pointer[0] = ClockPairStruct(handle(clocks.device_ns), handle(clocks.host_ns))


def _struct_room(struct: Any, read: Callable[[Any], Any]) -> Callable[[], tuple[tuple[Any, ...], Callable[[], Any]]]:
    """Room for a struct, whose size is written into it where it has a field for that."""

    def room() -> tuple[tuple[Any, ...], Callable[[], Any]]:
        made = struct()
        if hasattr(made, "struct_size"):
            made.struct_size = ctypes.sizeof(made)
        return (byref(made),), lambda: read(made)

    return room


def _store_binary(binary: Any, nbytes: Any, binary_free: Any, result: object) -> None:
    if not isinstance(result, (bytes, bytearray)):
        raise TypeError(f"must return bytes, not {type(result).__name__}")
    kept = ctypes.create_string_buffer(bytes(result), len(result) + 1)
    address = ctypes.addressof(kept)
    _binaries[address] = kept
    binary[0], nbytes[0], binary_free[0] = (address, len(result), _free_binary_address)


def _binary_room() -> tuple[tuple[Any, ...], Callable[[], Any]]:
    binary, nbytes, binary_free = c_void_p(), c_uint64(), c_void_p()

    def read() -> bytes:
        data = ctypes.string_at(binary, nbytes.value) if binary else b""
        if binary_free:
            VOID_CALL(binary_free.value)(binary)
        return data

    return (byref(binary), byref(nbytes), byref(binary_free)), read


I32, I64, U64, F64 = (Argument((type_,)) for type_ in (c_int32, c_int64, c_uint64, c_double))
_EVENT_FLAGS = Argument((c_uint32,), EventFlags, lambda flags: (int(flags),))
_HOST_FLAGS = Argument((c_uint32,), HostFlags, lambda flags: (int(flags),))
_CALL = Argument(
    (POINTER(CallStruct),), lambda pointer: call_from(pointer.contents), lambda call: (byref(call_struct(call)),)
)
_POINTER = Argument((c_void_p,), lambda pointer: pointer or 0)
_TEXT = Argument((c_char_p,), bytes.decode, lambda text: (text.encode(),))
_KIND = Argument((c_int32,), _copy_kind, lambda kind: (int(kind),))
_PLACEMENT = Argument(
    (POINTER(PlacementStruct),),
    lambda pointer: placement_from(pointer.contents) if pointer else None,
    lambda placement: (None if placement is None else byref(placement_struct(placement)),),
)
_BINARY = Argument(
    (c_void_p, c_uint64),
    lambda binary, nbytes: ctypes.string_at(binary, nbytes) if binary else b"",
    lambda data: (ctypes.create_string_buffer(data, len(data) + 1), len(data)),
)
_DTYPE = Argument((c_int32,), DTYPES.__getitem__, lambda name: (DTYPES.index(name),))
_REDUCTION = Argument((c_int32,), Reduction, lambda reduction: (int(reduction),))
_BOOL = _number(c_int32, bool, lambda value: 1 if value else 0)
_MILLISECONDS = _number(c_double, float, float)
_ADDRESS = _handle(least=1)
_HOST_POINTER = _number(c_void_p, lambda value: value or 0, lambda value: handle(value, least=1))
_TEXT_OUT = Result((c_void_p, c_uint64), _store_text, _text_room)
_INFO = Result((POINTER(c_uint64), POINTER(c_uint64)), _store_info, _info_room)
_SPEC = Result(
    (POINTER(DeviceSpecStruct),),
    lambda pointer, spec: fill_spec(pointer.contents, spec),
    _struct_room(DeviceSpecStruct, spec_from),
)
_LIBRARY_OP = Result(
    (POINTER(LibraryOpStruct),),
    lambda pointer, op: fill_library_op(pointer.contents, op),
    _struct_room(LibraryOpStruct, library_op_from),
)
_CLOCKS = Result(
    (POINTER(ClockPairStruct),),
    _store_clocks,
    _struct_room(ClockPairStruct, lambda clocks: ClockPair(clocks.device_ns, clocks.host_ns)),
)
_BINARY_OUT = Result((POINTER(c_void_p), POINTER(c_uint64), POINTER(c_void_p)), _store_binary, _binary_room)

_REDUCED = (I32, U64, U64, U64, U64, _DTYPE, _REDUCTION, U64)
#: Of those below, what came after ``last_error``, which is no method: a struct grows at its end.
_COLLECTIVES: dict[str, tuple[tuple[Argument, ...], Result | None]] = {
    "comm_id": ((I32,), _TEXT_OUT),
    "comm_create": ((I32, _TEXT, I32, I32, U64), _handle()),
    "comm_destroy": ((I32, U64), None),
    "all_reduce": (_REDUCED, None),
    "broadcast": ((I32, U64, U64, U64, I32, U64), None),
    "all_gather": ((I32, U64, U64, U64, U64, U64), None),
    "reduce_scatter": (_REDUCED, None),
}

#: Method → its arguments after ``self`` and its result, in the order of the header. Of device_count, launch, trace_read
#: and host_function, which both sides write by hand, it only says the types.
METHODS: dict[str, tuple[tuple[Argument, ...], Result | None]] = {
    "device_count": ((), None),
    "open": ((I32,), _SPEC),
    "alloc": ((I32, U64), _ADDRESS),
    "free": ((I32, U64), None),
    "copy": ((I32, U64, U64, U64, _KIND, U64, _PLACEMENT), None),
    "target": ((), _TEXT_OUT),
    "compile": ((_TEXT,), _BINARY_OUT),
    "load": ((I32, _BINARY, _TEXT), _handle()),
    "launch": ((I32, U64, Argument((POINTER(LaunchStruct),))), None),
    "library_op": ((I32, _CALL), _LIBRARY_OP),
    "stream_create": ((I32, I32), _handle(bits=63)),
    "stream_destroy": ((I32, U64), None),
    "event_record": ((I32, U64, _EVENT_FLAGS), _handle()),
    "event_query": ((I32, U64), _BOOL),
    "event_wait": ((I32, U64, I32, I64), None),
    "event_elapsed": ((I32, U64, U64), _MILLISECONDS),
    "event_destroy": ((I32, U64), None),
    "event_export": ((I32, U64), _TEXT_OUT),
    "event_import": ((I32, _TEXT), _handle(least=1)),
    "graph_begin": ((I32, U64), None),
    "graph_end": ((I32, U64), _handle()),
    "graph_launch": ((I32, U64, U64, U64), None),
    "graph_destroy": ((I32, U64), None),
    "clock": ((I32,), _handle()),
    "charge": ((I32, U64, I32, F64, F64), None),
    "trace_start": ((I32, U64), _CLOCKS),
    "trace_stop": ((I32,), _CLOCKS),
    "trace_read": (
        (I32, Argument((POINTER(TraceRecordStruct), c_uint64, POINTER(c_uint64), POINTER(c_uint64)))),
        None,
    ),
    "memory_info": ((I32,), _INFO),
    "can_access_peer": ((I32, I32), _BOOL),
    "copy_peer": ((I32, U64, I32, U64, U64, U64), None),
    "relayout": ((I32, U64, _PLACEMENT, U64, _PLACEMENT, U64, U64), None),
    "host_alloc": ((U64, I32, _HOST_FLAGS), _HOST_POINTER),
    "host_free": ((_POINTER,), None),
    "host_register": ((_POINTER, U64, I32, _HOST_FLAGS), None),
    "host_unregister": ((_POINTER,), None),
    "ipc_export": ((I32, U64), _TEXT_OUT),
    "ipc_import": ((I32, _TEXT), _ADDRESS),
    "ipc_close": ((I32, U64), None),
    "host_function": ((I32, U64, Argument((c_void_p,)), Argument((c_void_p,))), None),
    "close": ((I32,), None),
    **_COLLECTIVES,
}


def _types(arguments: tuple[Argument, ...], result: Result | None) -> list[Any]:
    return [type_ for one in arguments for type_ in one.types] + list(result.types if result else ())


def _function(name: str) -> Any:
    return CFUNCTYPE(c_int32, c_void_p, *_types(*METHODS[name]))


#: Every function pointer of bringup_driver, in order: a status, of ``self`` and the arguments.
FUNCTIONS: dict[str, Any] = {
    **{name: _function(name) for name in METHODS if name not in _COLLECTIVES},
    "last_error": CFUNCTYPE(None, c_void_p, c_void_p, c_uint64),
    **{name: _function(name) for name in _COLLECTIVES},
}


class DriverStruct(ctypes.Structure):
    """bringup_driver"""

    _fields_ = [("abi_version", c_uint32), ("struct_size", c_uint32), ("self", c_void_p), *FUNCTIONS.items()]


#: A struct smaller than this cannot hold the required functions.
SMALLEST_STRUCT: int = DriverStruct.target.offset

#: bringup_driver_create; `driver` and `error` are addresses.
CREATE: Any = CFUNCTYPE(c_int32, c_uint32, c_char_p, c_void_p, c_void_p, c_uint64)
