"""The structs that include/bringup/driver.h passes, as ctypes, field by field in the header's order.

``tests/unit/test_driver_abi.py`` compiles the header and compares every size and offset with this file.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_double, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any

from bringup.driver import DTYPES, DeviceLost, DeviceSpec, Driver, DriverAbsent, HostFlags, Placement, PlacementKind

ABI_VERSION = 2

OK = 0
ERROR = 1
OUT_OF_MEMORY = 2
INVALID = 3
UNSUPPORTED = 4
ABSENT = 5
INDEX_ERROR = 6
DEVICE_LOST = 7


class DriverError(RuntimeError):
    """A driver that breaks the contract; the message names the driver, the file or method, and what is wrong."""

    #: What PyTorch would have called its devices, where that was known already.
    device_name = ""


class PlacementStruct(ctypes.Structure):
    """bringup_placement"""

    _fields_ = [("kind", c_uint32), ("reserved", c_uint32), ("block", c_uint64), ("offset", c_uint64)]


class DeviceSpecStruct(ctypes.Structure):
    """bringup_device_spec"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("host_flags", c_uint32),
        ("name", c_char * 128),
        ("memory_bytes", c_uint64),
        ("alignment", c_uint64),
        ("dtypes", c_uint64),
        ("host_offset", c_int64),
        ("host_visible", c_uint32),
        ("host_library", c_uint32),
        ("partitions", c_uint32),
        ("peer_copy", c_uint32),
        ("default_placement", PlacementStruct),
        ("capability_major", c_uint32),
        ("capability_minor", c_uint32),
        ("peak_flops", c_double),
        ("peak_bandwidth", c_double),
    ]


class LaunchStruct(ctypes.Structure):
    """bringup_launch"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("arg_count", c_uint32),
        ("args", POINTER(c_uint64)),
        ("address_count", c_uint32),
        ("block", c_uint32),
        ("grid", c_uint64),
        ("local_bytes", c_uint64),
        ("stream", c_uint64),
        ("flops", c_double),
        ("bytes", c_double),
        ("placements", POINTER(PlacementStruct)),
        ("finished", POINTER(c_uint32)),
        ("name", c_char_p),
        ("correlation", c_uint64),
        ("partition_count", c_uint64),
        ("partition_args", POINTER(c_uint64)),
        ("partition_grid", POINTER(c_uint64)),
    ]


class TensorStruct(ctypes.Structure):
    """bringup_tensor"""

    _fields_ = [
        ("dtype", c_uint32),
        ("ndim", c_uint32),
        ("sizes", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("placement", c_uint32),
        ("reserved", c_uint32),
    ]


class ValueStruct(ctypes.Structure):
    """bringup_value"""

    _fields_ = [
        ("name", c_char_p),
        ("kind", c_uint32),
        ("count", c_uint32),
        ("integers", POINTER(c_int64)),
        ("real", c_double),
        ("text", c_char_p),
    ]


class CallStruct(ctypes.Structure):
    """bringup_call"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("tensor_count", c_uint32),
        ("output_count", c_uint32),
        ("value_count", c_uint32),
        ("op", c_char_p),
        ("tensors", POINTER(TensorStruct)),
        ("values", POINTER(ValueStruct)),
    ]


class LibraryOpStruct(ctypes.Structure):
    """bringup_library_op"""

    _fields_ = [
        ("struct_size", c_uint32),
        ("elementwise", c_uint32),
        ("function", c_void_p),
        ("context", c_void_p),
        ("workspace_bytes", c_uint64),
        ("flops", c_double),
        ("bytes", c_double),
    ]


class TraceRecordStruct(ctypes.Structure):
    """bringup_trace_record"""

    _fields_ = [
        ("kind", c_uint32),
        ("copy_kind", c_uint32),
        ("start_ns", c_uint64),
        ("end_ns", c_uint64),
        ("stream", c_uint64),
        ("correlation", c_uint64),
        ("bytes", c_uint64),
        ("name", c_char_p),
    ]


class ClockPairStruct(ctypes.Structure):
    """bringup_clock_pair"""

    _fields_ = [("device_ns", c_uint64), ("host_ns", c_uint64)]


#: The methods every driver must offer.
REQUIRED = ("device_count", "open", "alloc", "free", "copy")


def status_of(error: BaseException) -> int:
    """The status an exception of a Python driver becomes."""
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    if isinstance(error, (ValueError, TypeError)):
        return INVALID
    if isinstance(error, NotImplementedError):
        return UNSUPPORTED
    if isinstance(error, DriverAbsent):
        return ABSENT
    if isinstance(error, IndexError):
        return INDEX_ERROR
    if isinstance(error, DeviceLost):
        return DEVICE_LOST
    return ERROR


def exception_of(status: int, message: str) -> Exception:
    """The exception a status of a C driver becomes."""
    kinds: dict[int, type[Exception]] = {
        OUT_OF_MEMORY: MemoryError,
        INVALID: ValueError,
        UNSUPPORTED: NotImplementedError,
        ABSENT: DriverAbsent,
        INDEX_ERROR: IndexError,
        DEVICE_LOST: DeviceLost,
    }
    return kinds.get(status, RuntimeError)(message)


def write_text(address: int | None, size: int, text: str) -> bool:
    """Writes NUL-terminated UTF-8 into a C buffer, cut at a character where it is too long; False if it was cut."""
    if not address or size <= 0:
        return False
    data = text.encode("utf-8", "replace").replace(b"\0", b"?")
    cut = data if len(data) < size else data[: size - 1].decode("utf-8", "ignore").encode("utf-8")
    ctypes.memmove(address, cut + b"\0", len(cut) + 1)
    return cut is data


def placement_from(struct: Any) -> Placement:
    """A bringup_placement as Python sees it."""
    return Placement(PlacementKind(struct.kind), struct.block, struct.offset)


def placement_struct(placement: Placement) -> PlacementStruct:
    """The other way round."""
    return PlacementStruct(int(placement.kind), 0, placement.block, placement.offset)


def spec_from(struct: DeviceSpecStruct) -> DeviceSpec:
    """A bringup_device_spec as Python sees it, defaults filled in."""
    if struct.dtypes >> len(DTYPES):
        raise ValueError(f"open: unknown bits in the dtypes mask {struct.dtypes:#x}; driver.h knows {len(DTYPES)}")
    return DeviceSpec(
        name=struct.name.decode("utf-8", "replace"),
        memory_bytes=struct.memory_bytes,
        alignment=struct.alignment or 64,
        dtypes=tuple(name for bit, name in enumerate(DTYPES) if struct.dtypes >> bit & 1),
        host_visible=bool(struct.host_visible),
        host_offset=struct.host_offset,
        host_library=bool(struct.host_library),
        partitions=struct.partitions or 1,
        default_placement=placement_from(struct.default_placement),
        peer_copy=bool(struct.peer_copy),
        capability=(struct.capability_major, struct.capability_minor),
        peak_flops=struct.peak_flops,
        peak_bandwidth=struct.peak_bandwidth,
        host_flags=HostFlags(struct.host_flags),
    )


def fill_spec(struct: DeviceSpecStruct, spec: object) -> None:
    """Checks what a Python driver's ``open`` returned and writes it into the C struct."""
    if not isinstance(spec, DeviceSpec):
        raise TypeError(f"must return a DeviceSpec, not {type(spec).__name__}")
    unknown = [name for name in spec.dtypes if name not in DTYPES]
    if unknown:
        raise ValueError(f"unknown dtypes {unknown} in the DeviceSpec; known: {', '.join(DTYPES)}")
    if spec.memory_bytes <= 0:
        raise ValueError(f"memory_bytes must be positive, not {spec.memory_bytes}")
    if spec.alignment <= 0 or spec.alignment & (spec.alignment - 1):
        raise ValueError(f"alignment must be a power of two, not {spec.alignment}")
    if spec.partitions < 1:
        raise ValueError(f"partitions must be at least 1, not {spec.partitions}")
    write_text(ctypes.addressof(struct) + DeviceSpecStruct.name.offset, DeviceSpecStruct.name.size, spec.name)
    struct.memory_bytes = spec.memory_bytes
    struct.alignment = spec.alignment
    struct.dtypes = sum(1 << DTYPES.index(name) for name in set(spec.dtypes))
    struct.host_offset = spec.host_offset
    struct.host_visible = spec.host_visible
    struct.host_library = spec.host_library
    struct.partitions = spec.partitions
    struct.peer_copy = spec.peer_copy
    struct.default_placement = placement_struct(spec.default_placement)
    struct.capability_major, struct.capability_minor = spec.capability
    struct.peak_flops = spec.peak_flops
    struct.peak_bandwidth = spec.peak_bandwidth
    struct.host_flags = spec.host_flags


def missing_required(driver: Driver) -> list[str]:
    """The required methods a driver did not write."""
    return [name for name in REQUIRED if not driver.offers(name)]
