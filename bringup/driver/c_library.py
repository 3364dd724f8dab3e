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
import inspect
import sys
import threading
from collections.abc import Callable
from ctypes import byref, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, ClassVar

from bringup.driver import Driver, DriverAbsent, Launch, TraceRecord
from bringup.driver.adapter import AdaptedDriver
from bringup.driver.c_calls import trace_records_from
from bringup.driver.c_functions import (
    CREATE,
    FUNCTIONS,
    METHODS,
    SMALLEST_STRUCT,
    TEXT_SIZE,
    VOID_CALL,
    DriverStruct,
)
from bringup.driver.c_struct import (
    ABI_VERSION,
    ABSENT,
    OK,
    REQUIRED,
    DriverError,
    LaunchStruct,
    PlacementStruct,
    TraceRecordStruct,
    exception_of,
    placement_struct,
)

#: A library built with a newer header writes a longer struct: this much room is left behind ours.
_ROOM_FOR_NEWER = 4096

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
    #: What to do where there is no such file, as the end of a sentence.
    how_to_build: ClassVar[str] = ""

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
        raise DriverError(f"driver '{self.name}': no library file {looked}{self.how_to_build}")

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
        reason = ctypes.create_string_buffer(TEXT_SIZE)
        options = self.options().encode()
        status = create(ABI_VERSION, options, ctypes.addressof(memory), ctypes.addressof(reason), TEXT_SIZE)
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
        reason = ctypes.create_string_buffer(TEXT_SIZE)
        if struct.last_error:
            struct.last_error(struct.self, ctypes.addressof(reason), TEXT_SIZE)
        return reason.value.decode("utf-8", "replace") or f"status {status} without a reason"

    # ---- the contract ----
    def device_count(self) -> int:
        struct = self._functions()
        return int(struct.device_count(struct.self))

    def launch(self, device: int, kernel: int, launch: Launch) -> bool:
        args = (c_uint64 * len(launch.args))(*launch.args)
        finished = c_uint32()
        c = LaunchStruct(
            struct_size=ctypes.sizeof(LaunchStruct),
            arg_count=len(launch.args),
            address_count=launch.address_count,
            grid=launch.grid,
            stream=launch.stream,
            flops=launch.flops,
            bytes=launch.bytes,
            finished=ctypes.pointer(finished),
            block=launch.block,
            local_bytes=launch.local_bytes,
            name=launch.name.encode(),
            correlation=launch.correlation,
        )
        c.args = ctypes.cast(args, type(c.args))
        if launch.placements is not None:
            placements = (PlacementStruct * len(launch.placements))(*map(placement_struct, launch.placements))
            c.placements = ctypes.cast(placements, type(c.placements))
        if launch.partition_args is not None:
            values = [int(value) for row in launch.partition_args for value in row]
            c.partition_args, c.partition_count = (c_uint64 * len(values))(*values), len(launch.partition_grid)
            c.partition_grid = (c_uint64 * c.partition_count)(*map(int, launch.partition_grid))
        self._call("launch", device, kernel, byref(c))
        return bool(finished.value)

    def trace_read(self, device: int, limit: int) -> tuple[list[TraceRecord], int]:
        records, count, dropped = (TraceRecordStruct * max(limit, 1))(), c_uint64(), c_uint64()
        self._call("trace_read", device, records, limit, byref(count), byref(dropped))
        return trace_records_from(records[: count.value]), dropped.value

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


def _method(name: str) -> Callable[..., Any]:
    """A method of the contract that calls the library's function, by the table of functions."""
    arguments, result = METHODS[name]
    parameters = list(inspect.signature(getattr(Driver, name)).parameters.values())[1:]

    def method(self: CDriver, *values: Any, **named: Any) -> Any:
        given = [*values, *(named.get(one.name, one.default) for one in parameters[len(values) :])]
        crossed = [
            c for one, value in zip(arguments, given) for c in ((value,) if one.to_c is None else one.to_c(value))
        ]
        if result is None:
            return self._call(name, *crossed)
        room, read = result.room()
        self._call(name, *crossed, *room)
        return read()

    method.__name__, method.__doc__ = name, getattr(Driver, name).__doc__
    return method


for _name in METHODS:
    if _name not in vars(CDriver):
        setattr(CDriver, _name, _method(_name))
