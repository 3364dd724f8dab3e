"""A driver whose implementation is a shared library that exports ``bringup_driver_create`` (driver.h).

    class Driver(CDriver):
        name = "mychip"
        library = "libmychip.so"

Every function the library offers is also a Python method here, so that the same checks run on Python and C drivers.
A method the subclass writes in Python replaces the library's, also for the core.
"""

# ruff: noqa: D102 - what each method does is said in the contract

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from ctypes import byref, c_double, c_int32, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, ClassVar

from bringup.driver import CopyKind, DeviceSpec, Driver, DriverAbsent, Launch, Placement
from bringup.driver.adapter import AdaptedDriver
from bringup.driver.c_struct import (
    ABI_VERSION,
    ABSENT,
    CREATE,
    FUNCTIONS,
    OK,
    REQUIRED,
    SMALLEST_STRUCT,
    VOID_CALL,
    DeviceSpecStruct,
    DriverError,
    DriverStruct,
    LaunchStruct,
    PlacementStruct,
    exception_of,
    placement_struct,
    spec_from,
)

#: A library built with a newer header writes a longer struct: this much room is left behind ours.
_ROOM_FOR_NEWER = 4096
_TEXT_SIZE = 4096

#: Libraries and structs the core points into for the rest of the process.
_alive: list[Any] = []
_load_lock = threading.RLock()

#: Python functions queued through host_function, by token, until the driver calls them.
_queued: dict[int, Callable[[], None]] = {}
_queue_lock = threading.Lock()
_next_token = 1


def _run_queued(token: int) -> None:
    _queued.pop(token)()


_run_queued_callback = VOID_CALL(_run_queued)


class CDriver(Driver):
    """A driver over a shared library. Set ``name`` and ``library``; write ``options`` if the library takes any."""

    #: The library: an absolute path, or one relative to the file of the subclass, or to the current directory.
    library: ClassVar[str | Path] = ""

    def options(self) -> str:
        """Driver-specific text the library receives, such as ``devices=4,memory=2G``."""
        return ""

    # Class attributes, so that a subclass may have an __init__ that does not call ours.
    _struct: DriverStruct | None = None
    _mixed: AdaptedDriver | None = None

    # ---- loading ----
    @property
    def library_path(self) -> Path:
        """Where the library is; raises DriverError that lists where it was looked for."""
        given = Path(self.library).expanduser()
        module_file = getattr(sys.modules.get(type(self).__module__), "__file__", None)
        places = [given] if given.is_absolute() or not module_file else [Path(module_file).parent / given, given]
        for place in places:
            if place.is_file():
                return place.resolve()
        looked = " or ".join(str(place) for place in places) if str(self.library) else "(no `library` is set)"
        raise DriverError(f"driver '{self.name}': no library file {looked}")

    def _functions(self) -> DriverStruct:
        if self._struct is None:
            with _load_lock:
                if self._struct is None:
                    self._struct = self._load_library()
        return self._struct

    def _load_library(self) -> DriverStruct:
        path = self.library_path
        where = f"driver '{self.name}', library {path}"
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise DriverError(f"{where}: cannot be loaded: {error}") from None
        try:
            create = CREATE(("bringup_driver_create", library))
        except AttributeError:
            raise DriverError(f"{where}: does not export bringup_driver_create") from None
        memory = ctypes.create_string_buffer(ctypes.sizeof(DriverStruct) + _ROOM_FOR_NEWER)
        reason = ctypes.create_string_buffer(_TEXT_SIZE)
        options = self.options().encode()
        status = create(ABI_VERSION, options, ctypes.addressof(memory), ctypes.addressof(reason), _TEXT_SIZE)
        struct = DriverStruct.from_buffer(memory)
        if status != OK:
            text = (
                reason.value.decode("utf-8", "replace") or f"bringup_driver_create returned {status}, no reason given"
            )
            raise (DriverAbsent if status == ABSENT else DriverError)(f"{where}: {text}")
        if struct.abi_version != ABI_VERSION:
            raise DriverError(
                f"{where}: built for ABI version {struct.abi_version}, bringup has {ABI_VERSION}; rebuild it with the "
                "header in `python -m bringup include`"
            )
        if struct.struct_size < SMALLEST_STRUCT:
            raise DriverError(f"{where}: struct_size {struct.struct_size} is too small, at least {SMALLEST_STRUCT}")
        offered = min(struct.struct_size, ctypes.sizeof(DriverStruct))
        offered -= offered % ctypes.sizeof(c_void_p)
        ctypes.memset(ctypes.addressof(struct) + offered, 0, ctypes.sizeof(memory) - offered)
        missing = [name for name in REQUIRED if not getattr(struct, name) and not self._written_in_python(name)]
        if missing:
            raise DriverError(f"{where}: required functions are NULL: {', '.join(missing)}")
        _alive.append((library, memory, struct))
        return struct

    def _written_in_python(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(CDriver, method)

    @property
    def struct_address(self) -> int:
        """The struct the core calls: the library's own functions, and callbacks for methods written in Python."""
        struct = self._functions()
        written = [name for name in FUNCTIONS if name != "last_error" and self._written_in_python(name)]
        if not written:
            return ctypes.addressof(struct)
        with _load_lock:
            if self._mixed is None:
                self._mixed = AdaptedDriver(self, written, base=struct)
        return self._mixed.address

    def offers(self, method: str) -> bool:
        """Whether the library (or the subclass, in Python) offers a method of the contract."""
        return self._written_in_python(method) or (method in FUNCTIONS and bool(getattr(self._functions(), method)))

    # ---- calling ----
    def _call(self, method: str, *arguments: Any) -> None:
        struct = self._functions()
        function = getattr(struct, method)
        if not function:
            raise NotImplementedError(f"driver '{self.name}': the library does not offer {method}")
        status = function(struct.self, *arguments)
        if status != OK:
            raise exception_of(status, f"{self.name}.{method}: {self._last_error(status)}")

    def _last_error(self, status: int) -> str:
        struct = self._functions()
        reason = ctypes.create_string_buffer(_TEXT_SIZE)
        if struct.last_error:
            struct.last_error(struct.self, ctypes.addressof(reason), _TEXT_SIZE)
        return reason.value.decode("utf-8", "replace") or f"status {status} without a reason"

    def _call_u64(self, method: str, *arguments: Any) -> int:
        out = c_uint64()
        self._call(method, *arguments, byref(out))
        return out.value

    # ---- the contract ----
    def device_count(self) -> int:
        struct = self._functions()
        return int(struct.device_count(struct.self))

    def open(self, device: int) -> DeviceSpec:
        spec = DeviceSpecStruct()
        self._call("open", device, byref(spec))
        return spec_from(spec)

    def alloc(self, device: int, nbytes: int) -> int:
        return self._call_u64("alloc", device, nbytes)

    def free(self, device: int, address: int) -> None:
        self._call("free", device, address)

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
        where = None if placement is None else byref(placement_struct(placement))
        self._call("copy", device, dst, src, nbytes, int(kind), stream, where)

    def target(self) -> str:
        text = ctypes.create_string_buffer(_TEXT_SIZE)
        self._call("target", ctypes.addressof(text), _TEXT_SIZE)
        return text.value.decode()

    def compile(self, source: str) -> bytes:
        binary, nbytes, binary_free = c_void_p(), c_uint64(), c_void_p()
        self._call("compile", source.encode(), byref(binary), byref(nbytes), byref(binary_free))
        data = ctypes.string_at(binary, nbytes.value) if binary else b""
        if binary_free:
            VOID_CALL(binary_free.value)(binary)
        return data

    def load(self, device: int, binary: bytes, entry: str) -> int:
        data = ctypes.create_string_buffer(binary, len(binary) + 1)
        return self._call_u64("load", device, ctypes.addressof(data), len(binary), entry.encode())

    def launch(self, device: int, kernel: int, launch: Launch) -> bool:
        args = (c_uint64 * len(launch.args))(*launch.args)
        finished = c_uint32()
        c = LaunchStruct(
            arg_count=len(launch.args),
            address_count=launch.address_count,
            grid=launch.grid,
            stream=launch.stream,
            flops=launch.flops,
            bytes=launch.bytes,
            finished=ctypes.pointer(finished),
        )
        c.args = ctypes.cast(args, type(c.args))
        if launch.placements is not None:
            placements = (PlacementStruct * len(launch.placements))(*map(placement_struct, launch.placements))
            c.placements = ctypes.cast(placements, type(c.placements))
        self._call("launch", device, kernel, byref(c))
        return bool(finished.value)

    def stream_create(self, device: int, priority: int) -> int:
        return self._call_u64("stream_create", device, priority)

    def stream_destroy(self, device: int, stream: int) -> None:
        self._call("stream_destroy", device, stream)

    def event_record(self, device: int, stream: int) -> int:
        return self._call_u64("event_record", device, stream)

    def event_query(self, device: int, event: int) -> bool:
        done = c_int32()
        self._call("event_query", device, event, byref(done))
        return bool(done.value)

    def event_wait(self, device: int, event: int, wait_device: int, wait_stream: int) -> None:
        self._call("event_wait", device, event, wait_device, wait_stream)

    def event_elapsed(self, device: int, start: int, end: int) -> float:
        milliseconds = c_double()
        self._call("event_elapsed", device, start, end, byref(milliseconds))
        return milliseconds.value

    def event_destroy(self, device: int, event: int) -> None:
        self._call("event_destroy", device, event)

    def clock(self, device: int) -> int:
        return self._call_u64("clock", device)

    def charge(self, device: int, stream: int, dtype: int, flops: float, bytes: float) -> None:
        self._call("charge", device, stream, dtype, flops, bytes)

    def copy_peer(self, dst_device: int, dst: int, src_device: int, src: int, nbytes: int, stream: int) -> None:
        self._call("copy_peer", dst_device, dst, src_device, src, nbytes, stream)

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
        into, out_of = placement_struct(dst_placement), placement_struct(src_placement)
        self._call("relayout", device, dst, byref(into), src, byref(out_of), nbytes, stream)

    def host_alloc(self, nbytes: int) -> int:
        pointer = c_void_p()
        self._call("host_alloc", nbytes, byref(pointer))
        return pointer.value or 0

    def host_free(self, pointer: int) -> None:
        self._call("host_free", pointer)

    def ipc_export(self, device: int, address: int) -> str:
        text = ctypes.create_string_buffer(_TEXT_SIZE)
        self._call("ipc_export", device, address, ctypes.addressof(text), _TEXT_SIZE)
        return text.value.decode()

    def ipc_import(self, device: int, handle: str) -> int:
        return self._call_u64("ipc_import", device, handle.encode())

    def ipc_close(self, device: int, address: int) -> None:
        self._call("ipc_close", device, address)

    def host_function(self, device: int, stream: int, function: Callable[[], None]) -> None:
        global _next_token
        with _queue_lock:
            token = _next_token
            _next_token += 1
            _queued[token] = function
        try:
            self._call("host_function", device, stream, ctypes.cast(_run_queued_callback, c_void_p), token)
        except BaseException:
            _queued.pop(token, None)
            raise

    def close(self, device: int) -> None:
        self._call("close", device)
