"""The plain data that the driver contract passes: what a device is, a launch, a call of an op, a record of a trace."""

from __future__ import annotations

import difflib
import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar


class DriverAbsent(RuntimeError):
    """The hardware or the library a driver needs is not on this machine; the message says what was looked for."""


class DeviceLost(RuntimeError):
    """A device is gone for the rest of the process: it fell off the bus, or its firmware died.

    From then on every use of it raises ``torch.AcceleratorError``, its memory is not freed, and other devices go on.
    """


class CopyKind(enum.IntEnum):
    """Which side of a copy is host memory."""

    HOST_TO_DEVICE = 0
    DEVICE_TO_HOST = 1
    DEVICE_TO_DEVICE = 2


class HostFlags(enum.IntFlag):
    """What pinned host memory is to be good for."""

    NONE = 0
    PORTABLE = 1  # for every device of the driver, not only the one that is named
    MAPPED = 2  # kernels reach it at its host pointer
    WRITE_COMBINED = 4  # quick to write in order and slow to read, for the CPU


class EventFlags(enum.IntFlag):
    """What an event is for, besides being asked and waited for."""

    NONE = 0
    TIMING = 1  # event_elapsed will be asked about it
    INTERPROCESS = 2  # event_export will be


class TraceKind(enum.IntEnum):
    """What a device did, in a record of a trace."""

    KERNEL = 0
    COPY = 1
    WAIT = 2  # a stream waited for an event
    HOST = 3  # a host function
    OTHER = 4


class Reduction(enum.IntEnum):
    """What a collective makes of the values of all ranks."""

    SUM = 0
    AVG = 1  # the sum over the number of ranks
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7


class PlacementKind(enum.IntEnum):
    """How the bytes of a storage lie over the memory partitions of a device, in DTensor's words."""

    SINGLE = 0
    REPLICATE = 1
    SHARD = 2
    PARTIAL = 3


@dataclass(frozen=True)
class Placement:
    """Where a storage's bytes are: ``SHARD`` deals blocks of ``block`` bytes to the partitions in turn.

    ``offset`` is the logical byte offset inside the storage whose base address a call receives beside it.
    """

    kind: PlacementKind = PlacementKind.SINGLE  # on one partition, on all, in blocks, or as parts of a sum
    block: int = 0  # bytes, for SHARD
    offset: int = 0  # logical bytes from the start of the storage


#: Names a ``DeviceSpec`` may list, in the order of the C ABI's ``bringup_dtype``.
DTYPES: tuple[str, ...] = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
    "uint16",
    "uint32",
    "uint64",
    "float8",
    "quantized",
)


_Class = TypeVar("_Class")


def _suggests_fields(cls: type[_Class]) -> type[_Class]:
    """Makes the constructor of a dataclass say which field an unknown name may mean."""
    made: Any = cls
    plain, names = made.__init__, [each.name for each in fields(made)]

    @functools.wraps(plain)
    def constructor(self: _Class, *args: Any, **kwargs: Any) -> None:
        for name in kwargs.keys() - set(names):
            close = difflib.get_close_matches(name, names, n=1)
            known = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
            raise TypeError(f"{cls.__name__} has no field {name!r}: {known}")
        plain(self, *args, **kwargs)

    made.__init__ = constructor
    return cls


@_suggests_fields
@dataclass(frozen=True)
class DeviceSpec:
    """What a device is and can do, as ``open`` reports it."""

    name: str  # for people: get_device_name() and messages
    memory_bytes: int  # per partition
    alignment: int = 64  # bytes: addresses that alloc returns are multiples of it
    dtypes: tuple[str, ...] = ()  # empty: every dtype
    host_visible: bool = False  # the CPU can read and write device memory at address + host_offset
    host_offset: int = 0  # what is added to an address to make it a pointer, where host_visible
    host_library: bool = False  # run ATen's CPU kernels on device memory as this chip's own library
    partitions: int = 1  # memories of the same size that share addresses; 1: flat memory
    default_placement: Placement = field(default_factory=Placement)  # of new storages, where there are several
    peer_copy: bool = False  # copy_peer works between the devices of this driver (can_access_peer: which)
    capability: tuple[int, int] = (0, 0)  # major and minor, as get_device_capability() reports it
    peak_flops: float = 0.0  # float32, per second
    peak_bandwidth: float = 0.0  # bytes per second
    host_flags: HostFlags = HostFlags.NONE  # those, beside PORTABLE, that host_alloc and host_register can honour


@dataclass(frozen=True)
class Launch:
    """One kernel launch: every argument is 8 bytes (an address, an integer, or the bits of a number).

    The first ``address_count`` arguments are device addresses (0: an empty buffer). ``grid`` counts the independent
    units of work: a kernel of the C target is called as ``entry(args, begin, end, report)``, see ``bringup_kernel`` in
    driver.h.
    """

    args: tuple[int, ...]  # 8 bytes each
    grid: int  # units of work: 0 … grid-1
    stream: int  # a handle of stream_create, or 0
    flops: float = 0.0  # an estimate, for simulators
    bytes: float = 0.0  # an estimate of what is read and written
    placements: tuple[Placement, ...] | None = None  # of each address, on partitioned devices
    address_count: int = 0  # how many of the arguments are addresses; they come first
    block: int = 0  # threads of one unit, as the kernel's source asks for; 0: its language has no such thing
    local_bytes: int = 0  # memory that the threads of a unit share, as the source asks for
    name: str = ""  # what the kernel is called
    correlation: int = 0  # another number for each launch of the process: by which a trace names it
    partition_args: Any = None  # on partitioned devices an array (partitions, len(args)); None: partition 0 runs alone
    partition_grid: Any = None  # and the units of each partition, as an array


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of a ``CallSpec``: what every call of the same signature shares."""

    dtype: str  # a name of DTYPES
    shape: tuple[int, ...]  # elements per dimension
    strides: tuple[int, ...]  # in elements
    placement: PlacementKind = PlacementKind.SINGLE  # how its storage lies over the device's partitions


@dataclass(frozen=True)
class TensorArgument:
    """An argument that is a tensor, or a list of them."""

    slots: tuple[int, ...]  # places in ``CallSpec.tensors``


@dataclass(frozen=True)
class NumberArgument:
    """An argument that is new in each call: a Scalar, or a tensor of the CPU with one element."""

    slot: int  # its place among the numbers of the launch


@dataclass(frozen=True)
class CallSpec:
    """A call of an op by its signature, as ``library_op`` sees it.

    ``arguments`` holds every argument of the op's schema: tensors and numbers as above, else None, an int, a bool, a
    list of those, a float or a text, the same for all calls of the signature.
    """

    op: str  # "aten::mm"
    tensors: tuple[TensorSpec, ...]  # arguments, then outputs
    output_count: int  # how many of them, at the end, are outputs
    arguments: Mapping[str, Any]  # by their names in the schema

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return self.tensors[len(self.tensors) - self.output_count :]


@dataclass(frozen=True)
class LibraryOp:
    """A C function for calls of one signature: ``int32_t (void *context, int32_t device, const bringup_launch *)``.

    It gets the addresses of the call's tensors, then that of the workspace if it has asked for one, then the call's
    numbers as the bits of doubles. Function and context live as long as the process.
    """

    function: int  # its address
    context: int = 0  # its first argument: an address of the driver's own, or 0
    workspace_bytes: int = 0  # device memory of the call's own
    elementwise: bool = False  # an element is read only where it is written, so an output may be an input
    flops: float = 0.0  # an estimate, for simulators and reports
    bytes: float = 0.0  # an estimate of what is read and written


@dataclass(frozen=True)
class TraceRecord:
    """A piece of work that a device has done; times are nanoseconds of its own clock."""

    kind: TraceKind  # kernel, copy, wait or host function
    start_ns: int  # when it began
    end_ns: int  # when it was done
    stream: int  # a handle of stream_create, or 0
    correlation: int = 0  # of the launch; 0 where the work carries none
    name: str = ""  # of the kernel, where it is one
    bytes: int = 0  # that were copied, or that the launch said it moves
    copy_kind: CopyKind = CopyKind.HOST_TO_DEVICE  # of a copy


@dataclass(frozen=True)
class ClockPair:
    """One moment on two clocks, by which a profiler places the records of a trace among its own."""

    device_ns: int  # as clock() tells it
    host_ns: int  # Unix time, as time.time_ns()


@dataclass(frozen=True)
class Tensor:
    """A tensor as a library op sees it: plain data, no torch."""

    device: int  # of this driver
    address: int  # of the first element
    shape: tuple[int, ...]  # elements per dimension
    strides: tuple[int, ...]  # in elements
    dtype: str  # a name of DTYPES
    stream: int  # the handle of the current stream
