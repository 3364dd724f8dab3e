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
``IndexError`` for an index out of range inside a kernel, ``DeviceLost`` when a device will not come back).
A driver imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from bringup.driver.types import DTYPES as DTYPES
from bringup.driver.types import CallSpec as CallSpec
from bringup.driver.types import ClockPair as ClockPair
from bringup.driver.types import CopyKind as CopyKind
from bringup.driver.types import DeviceLost as DeviceLost
from bringup.driver.types import DeviceSpec as DeviceSpec
from bringup.driver.types import DriverAbsent as DriverAbsent
from bringup.driver.types import EventFlags as EventFlags
from bringup.driver.types import HostFlags as HostFlags
from bringup.driver.types import Launch as Launch
from bringup.driver.types import LibraryOp as LibraryOp
from bringup.driver.types import NumberArgument as NumberArgument
from bringup.driver.types import Placement as Placement
from bringup.driver.types import PlacementKind as PlacementKind
from bringup.driver.types import Reduction as Reduction
from bringup.driver.types import Tensor as Tensor
from bringup.driver.types import TensorArgument as TensorArgument
from bringup.driver.types import TensorSpec as TensorSpec
from bringup.driver.types import TraceKind as TraceKind
from bringup.driver.types import TraceRecord as TraceRecord

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
    #: Ops whose calls ``library_op`` is asked about, once for each signature: ("aten::mm", "aten::add.Tensor").
    library_ops: ClassVar[tuple[str, ...]] = ()
    #: The file that lists the functions of the chip's own library, ``ops.toml``: see docs/vendor_ops.md.
    op_table: ClassVar[Path | None] = None
    #: Methods of the driver that are functions of ``torch.<name>``, too; the first argument is the driver's device.
    device_functions: ClassVar[tuple[str, ...]] = ()
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

    @optional("kernels")
    def library_op(self, device: int, call: CallSpec) -> LibraryOp:
        """The chip's own function for calls of an op of ``library_ops``; NotImplementedError: a kernel runs instead."""
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
    def event_record(self, device: int, stream: int, flags: EventFlags = EventFlags.NONE) -> int:
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

    # ---- events of several processes ----
    @optional("events of several processes")
    def event_export(self, device: int, event: int) -> str:
        """A handle by which another process of this machine can wait for an event recorded as INTERPROCESS."""
        raise NotImplementedError

    @optional("events of several processes")
    def event_import(self, device: int, handle: str) -> int:
        """An event of this process that completes with the other one; event_destroy ends it."""
        raise NotImplementedError

    # ---- graphs ----
    @optional("graphs")
    def graph_begin(self, device: int, stream: int) -> None:
        """What is queued on the stream from here on is kept and not run."""
        raise NotImplementedError

    @optional("graphs")
    def graph_end(self, device: int, stream: int) -> int:
        """What was kept, as a graph; the stream runs work again, also after a failure."""
        raise NotImplementedError

    @optional("graphs")
    def graph_launch(self, device: int, graph: int, stream: int, correlation: int) -> None:
        """Runs a graph as one piece of work of any stream; it may be queued again while it runs."""
        raise NotImplementedError

    @optional("graphs")
    def graph_destroy(self, device: int, graph: int) -> None:
        """Forgets a graph; no queued work uses it any more."""
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

    # ---- traces ----
    @optional("traces")
    def trace_start(self, device: int, capacity: int) -> ClockPair:
        """Records from now on what the device runs, up to ``capacity`` records that were not read yet."""
        raise NotImplementedError

    @optional("traces")
    def trace_stop(self, device: int) -> ClockPair:
        """Ends the recording; what was recorded can still be read."""
        raise NotImplementedError

    @optional("traces")
    def trace_read(self, device: int, limit: int) -> tuple[list[TraceRecord], int]:
        """Takes up to ``limit`` records of finished work, none if there are no more, and counts those that were dropped
        for want of room."""
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
    def host_alloc(self, nbytes: int, device: int = 0, flags: HostFlags = HostFlags.PORTABLE) -> int:
        """Pinned host memory, as a pointer; a flag that the spec does not list is a NotImplementedError."""
        raise NotImplementedError

    @optional("memory")
    def host_free(self, pointer: int) -> None:
        """Gives back what host_alloc returned."""
        raise NotImplementedError

    @optional("memory")
    def host_register(self, pointer: int, nbytes: int, device: int = 0, flags: HostFlags = HostFlags.PORTABLE) -> None:
        """Pins host memory that is there already, until host_unregister of the same pointer."""
        raise NotImplementedError

    @optional("memory")
    def host_unregister(self, pointer: int) -> None:
        """Ends host_register; no queued work uses the memory any more."""
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

    # ---- collectives ----
    @optional("collectives")
    def comm_id(self, device: int) -> str:
        """A text by which the ranks of a new group of processes find each other; the first rank asks for it."""
        raise NotImplementedError

    @optional("collectives")
    def comm_create(self, device: int, comm_id: str, rank: int, size: int, timeout_ms: int) -> int:
        """Joins a group; returns when every rank has. What other ranks do not join within the timeout fails."""
        raise NotImplementedError

    @optional("collectives")
    def comm_destroy(self, device: int, comm: int) -> None:
        """Leaves the group; collectives that are on their way fail."""
        raise NotImplementedError

    @optional("collectives")
    def all_reduce(
        self, device: int, comm: int, dst: int, src: int, count: int, dtype: str, reduction: Reduction, stream: int
    ) -> None:
        """Reduces ``count`` elements over all ranks, in stream order; NotImplementedError: it goes through the host."""
        raise NotImplementedError

    @optional("collectives")
    def broadcast(self, device: int, comm: int, address: int, nbytes: int, root: int, stream: int) -> None:
        """Sends the bytes of rank ``root`` to all others, in stream order."""
        raise NotImplementedError

    @optional("collectives")
    def all_gather(self, device: int, comm: int, dst: int, src: int, nbytes: int, stream: int) -> None:
        """Puts ``nbytes`` of each rank into ``dst``, one after the other, in stream order."""
        raise NotImplementedError

    @optional("collectives")
    def reduce_scatter(
        self, device: int, comm: int, dst: int, src: int, count: int, dtype: str, reduction: Reduction, stream: int
    ) -> None:
        """Reduces the ``count`` elements that ``src`` holds for each rank, and gives each its own, in stream order."""
        raise NotImplementedError

    # ---- housekeeping ----
    @optional("housekeeping")
    def close(self, device: int) -> None:
        """Called at exit for every opened device, and when one is reset: ``open`` may come again after it."""
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
