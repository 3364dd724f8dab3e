"""The driver contract: the one class a chip needs to become a PyTorch device.

Write the five required methods and every PyTorch program runs (on the CPU, over your memory). Add a group of optional
methods and bringup uses it: kernels, asynchrony, time, partitioned memory. The same contract exists as a C ABI in
``bringup/include/bringup/driver.h``; ``bringup contract`` prints it.

    class Driver(bringup.Driver):
        name = "mychip"
        def device_count(self): return 1
        def open(self, device): return DeviceSpec(name="My chip", memory_bytes=1 << 30)
        def alloc(self, device, nbytes): ...
        def free(self, device, address): ...
        def copy(self, device, dst, src, nbytes, kind, stream): ...

Rules: a method may be called from any thread, also from several at once; an address is an opaque integer with
arithmetic (``base + offset`` may be passed wherever ``base`` may); raise an exception to report a failure
(``MemoryError`` for no memory, ``ValueError`` for a bad argument, ``DriverAbsent`` when the hardware is not there,
``IndexError`` for an index out of range inside a kernel).
A driver imports no torch.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar


class DriverAbsent(RuntimeError):
    """The hardware or the library a driver needs is not on this machine; the message says what was looked for."""


class CopyKind(enum.IntEnum):
    """Which side of a copy is host memory."""

    HOST_TO_DEVICE = 0
    DEVICE_TO_HOST = 1
    DEVICE_TO_DEVICE = 2


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


@dataclass(frozen=True)
class Tensor:
    """A tensor as a library op sees it: plain data, no torch."""

    device: int  # of this driver
    address: int  # of the first element
    shape: tuple[int, ...]  # elements per dimension
    strides: tuple[int, ...]  # in elements
    dtype: str  # a name of DTYPES
    stream: int  # the handle of the current stream


_Method = TypeVar("_Method", bound=Callable[..., Any])


def required(method: _Method) -> _Method:
    """Marks a method that every driver must write."""
    method.__contract__ = ("required", True)  # type: ignore[attr-defined]
    return method


def optional(group: str) -> Callable[[_Method], _Method]:
    """Marks a method that a driver may write; ``group`` is its heading in ``bringup contract``."""

    def mark(method: _Method) -> _Method:
        method.__contract__ = (group, False)  # type: ignore[attr-defined]
        return method

    return mark


class Driver:
    """Base class of every driver. Subclass it, set ``name``, write the five required methods."""

    #: What users type in BRINGUP_DRIVERS and bringup.activate().
    name: ClassVar[str] = ""
    #: What torch.device() accepts; defaults to ``name``. Lower-case letters and underscores only.
    device_name: ClassVar[str] = ""
    #: Ops the chip has a tuned library for: {"aten::mm": function(out, a, b)}; tensors arrive as ``Tensor``.
    ops: Mapping[str, Callable[..., None]] = {}
    #: The file that lists the functions of the chip's own library, ``ops.toml``: see docs/vendor_ops.md.
    op_table: ClassVar[Path | None] = None
    #: Whether ``compile`` takes a source with several kernels, of which ``load`` finds each by its entry.
    compiles_together: ClassVar[bool] = False

    # ---- required ----
    @required
    def device_count(self) -> int:
        """How many devices there are: cheap, opens nothing, never raises, constant for the process."""
        raise NotImplementedError("need device_count")

    @required
    def open(self, device: int) -> DeviceSpec:
        """Called once, on first use of a device."""
        raise NotImplementedError("need open")

    @required
    def alloc(self, device: int, nbytes: int) -> int:
        """The address of ``nbytes`` new bytes (in every partition); raises MemoryError when there is no room."""
        raise NotImplementedError("need alloc")

    @required
    def free(self, device: int, address: int) -> None:
        """Gives back what alloc returned; no queued work uses it any more."""
        raise NotImplementedError("need free")

    @required
    def copy(
        self,
        device: int,
        dst: int,
        src: int,
        nbytes: int,
        kind: CopyKind,
        stream: int,
        placement: Placement | None = None,
    ) -> None:
        """Moves bytes in stream order. Host addresses are pointers; ``placement`` is None on flat devices."""
        raise NotImplementedError("need copy")

    # ---- kernels ----
    @optional("kernels")
    def target(self) -> str:
        """Which renderer the chip's kernels need, and its limits: "c; vector=64 fma=1 isa=x86-64-v4"."""
        raise NotImplementedError

    @optional("kernels")
    def compile(self, source: str) -> bytes:
        """Turns generated source into a binary; the result is cached on disk."""
        raise NotImplementedError

    @optional("kernels")
    def load(self, device: int, binary: bytes, entry: str) -> int:
        """Makes one function of a binary callable; returns a kernel handle."""
        raise NotImplementedError

    @optional("kernels")
    def launch(self, device: int, kernel: int, launch: Launch) -> bool | None:
        """Runs a kernel for 0 … grid-1 in stream order; True: it has finished. A bad index is an IndexError."""
        raise NotImplementedError

    # ---- asynchrony ----
    @optional("asynchrony")
    def stream_create(self, device: int, priority: int) -> int:
        """A new queue of work; handle 0 is the default stream and always exists."""
        raise NotImplementedError

    @optional("asynchrony")
    def stream_destroy(self, device: int, stream: int) -> None:
        """Ends a stream after its work is done."""
        raise NotImplementedError

    @optional("asynchrony")
    def event_record(self, device: int, stream: int) -> int:
        """A new one-shot event that completes when all work queued so far on the stream has."""
        raise NotImplementedError

    @optional("asynchrony")
    def event_query(self, device: int, event: int) -> bool:
        """Whether the event has completed."""
        raise NotImplementedError

    @optional("asynchrony")
    def event_wait(self, device: int, event: int, wait_device: int, wait_stream: int) -> None:
        """Makes a stream wait for the event; ``wait_stream`` -1 blocks the calling thread."""
        raise NotImplementedError

    @optional("asynchrony")
    def event_elapsed(self, device: int, start: int, end: int) -> float:
        """Milliseconds of device time between two completed events."""
        raise NotImplementedError

    @optional("asynchrony")
    def event_destroy(self, device: int, event: int) -> None:
        """Forgets an event; a stream that still waits for it goes on waiting."""
        raise NotImplementedError

    # ---- time ----
    @optional("time")
    def clock(self, device: int) -> int:
        """Device time in nanoseconds: wall time on hardware, simulated time on a simulator."""
        raise NotImplementedError

    @optional("time")
    def charge(self, device: int, stream: int, dtype: int, flops: float, bytes: float) -> None:
        """Work the host did on the device's behalf: advance the device's clock by what the chip would have taken."""
        raise NotImplementedError

    # ---- memory ----
    @optional("memory")
    def memory_info(self, device: int) -> tuple[int, int]:
        """Bytes of the device that nothing occupies, other processes included, and all of them."""
        raise NotImplementedError

    @optional("memory")
    def can_access_peer(self, device: int, peer: int) -> bool:
        """Whether copy_peer works from ``peer`` to ``device``, where ``peer_copy`` is set; without it, between all."""
        raise NotImplementedError

    @optional("memory")
    def copy_peer(self, dst_device: int, dst: int, src_device: int, src: int, nbytes: int, stream: int) -> None:
        """Moves bytes between two devices of this driver; without it bringup goes through the host."""
        raise NotImplementedError

    @optional("memory")
    def relayout(
        self,
        device: int,
        dst: int,
        dst_placement: Placement,
        src: int,
        src_placement: Placement,
        nbytes: int,
        stream: int,
    ) -> None:
        """Rewrites a storage from one placement into another."""
        raise NotImplementedError

    @optional("memory")
    def host_alloc(self, nbytes: int) -> int:
        """Pinned host memory; returns a pointer."""
        raise NotImplementedError

    @optional("memory")
    def host_free(self, pointer: int) -> None:
        """Gives back what host_alloc returned."""
        raise NotImplementedError

    @optional("memory")
    def ipc_export(self, device: int, address: int) -> str:
        """A handle by which another process of this machine can map the allocation that starts at ``address``."""
        raise NotImplementedError

    @optional("memory")
    def ipc_import(self, device: int, handle: str) -> int:
        """Maps what another process exported; returns its address here."""
        raise NotImplementedError

    @optional("memory")
    def ipc_close(self, device: int, address: int) -> None:
        """Unmaps what ipc_import mapped."""
        raise NotImplementedError

    # ---- host work ----
    @optional("host work")
    def host_function(self, device: int, stream: int, function: Callable[[], None]) -> None:
        """Calls ``function`` on the host, in stream order."""
        raise NotImplementedError

    # ---- housekeeping ----
    @optional("housekeeping")
    def close(self, device: int) -> None:
        """Called at exit for every opened device."""
        raise NotImplementedError

    def absent_reason(self) -> str:
        """Where device_count() is 0: what was looked for, so that the user knows what is missing."""
        return "its driver found no device on this machine"

    def compiler_identity(self) -> str:
        """What besides source and target decides what ``compile`` makes: its version, its flags. For cache keys."""
        return ""

    def offers(self, method: str) -> bool:
        """Whether this driver wrote a method of the contract itself."""
        return getattr(type(self), method, None) is not getattr(Driver, method, None)


def contract() -> list[tuple[str, str, bool, str]]:
    """The contract read from the code: (method, group, required, first line of its docstring)."""
    rows = []
    for name, method in vars(Driver).items():
        mark = getattr(method, "__contract__", None)
        if mark is not None:
            rows.append((name, mark[0], mark[1], (method.__doc__ or "").strip().splitlines()[0]))
    return rows
