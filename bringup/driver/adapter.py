"""A Python driver as a bringup_driver struct: every method it wrote becomes a C function pointer.

An exception becomes a status, and its text waits for ``last_error`` on the same thread. One thing cannot be caught
here: a Ctrl-C that is pending when C calls in is raised before the first line of the callback; ctypes prints it and the
status is garbage. So every callback first calls ``on_entry``, by which the core knows that the call has arrived.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import operator
import threading
from collections.abc import Callable
from typing import Any

from bringup.driver import CopyKind, Driver, Launch
from bringup.driver.c_struct import (
    ABI_VERSION,
    ERROR,
    FUNCTIONS,
    OK,
    VOID_CALL,
    DriverError,
    DriverStruct,
    fill_spec,
    missing_required,
    placement_from,
    status_of,
    write_text,
)

#: The core keeps pointers into these for the rest of the process.
_alive: list[AdaptedDriver] = []

#: Compiled binaries handed to C, by address, until C calls binary_free.
_binaries: dict[int, Any] = {}
_free_binary = VOID_CALL(lambda address: _binaries.pop(address, None) and None)
_free_binary_address = ctypes.cast(_free_binary, ctypes.c_void_p).value

_COPY_KINDS = tuple(CopyKind)
#: Threads that failed and whose message was not asked for: more than this many are forgotten, oldest first.
_MESSAGES_KEPT = 1024
#: The core keeps 2048 bytes of a text.
_TEXT_COMPARED = 400
#: The last exception of a driver method on a thread, with the text that the core got: the cause of what torch raises.
_exceptions: dict[int, tuple[str, BaseException]] = {}


def take_exception(message: str) -> BaseException | None:
    """Returns the exception behind an error of the core on this thread, once; None if it came from elsewhere."""
    text, error = _exceptions.pop(threading.get_ident(), ("", None))
    return error if error is not None and text in message else None


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


def text_of(error: BaseException) -> str:
    """``MemoryError: no room`` — never raises, whatever the exception's __str__ does."""
    try:
        text = str(error)
    except BaseException:  # nothing may reach C
        text = "(its text cannot be printed)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def takes_placement(copy: Callable[..., Any]) -> bool:
    """Whether a driver's ``copy`` has the seventh parameter; a flat driver may leave it out."""
    try:
        inspect.signature(copy).bind(*range(7))
    except TypeError:
        return False
    return True


class AdaptedDriver:
    """The struct over one Python driver. ``address`` is what ``_C.register_driver`` takes.

    ``base`` is the struct of a C driver that some methods of ``driver`` replace: the others keep their C functions.
    """

    def __init__(self, driver: Driver, methods: list[str], base: DriverStruct | None = None) -> None:
        self.driver = driver
        self.count_error: BaseException | None = None
        self.on_entry: Callable[[], None] | None = None
        self._base = base
        self._count: int | None = None
        # By thread id and not threading.local: on a thread Python did not start, ctypes makes a new Python thread state
        # for every callback, and a threading.local would be gone before last_error is called.
        self._messages: dict[int, str] = {}
        self._copy_takes_placement = "copy" in methods and takes_placement(driver.copy)
        self.struct = DriverStruct()
        if base is not None:
            ctypes.memmove(self.address, ctypes.addressof(base), ctypes.sizeof(DriverStruct))
        self.struct.abi_version = ABI_VERSION
        self.struct.struct_size = ctypes.sizeof(DriverStruct)
        for name in methods:
            function = self._device_count if name == "device_count" else self._guarded(name)
            setattr(self.struct, name, FUNCTIONS[name](function))
        self.struct.last_error = FUNCTIONS["last_error"](self._last_error)
        _alive.append(self)

    @property
    def address(self) -> int:
        """Where the struct is; valid for the rest of the process."""
        return ctypes.addressof(self.struct)

    def _guarded(self, name: str) -> Callable[..., int]:
        body: Callable[..., None] = getattr(self, f"_{name}")

        def function(_self: int | None, *arguments: Any) -> int:
            try:
                if self.on_entry is not None:
                    self.on_entry()
                body(*arguments)
                return OK
            except BaseException as error:  # nothing may reach C
                return self._remember(name, error)

        return function

    def _remember(self, name: str, error: BaseException) -> int:
        try:
            thread = threading.get_ident()
            self._messages.pop(thread, None)
            while len(self._messages) >= _MESSAGES_KEPT:
                self._messages.pop(next(iter(self._messages)), None)
            text = self._messages[thread] = f"{self.driver.name}.{name}: {text_of(error)}"
            while len(_exceptions) >= _MESSAGES_KEPT:
                _exceptions.pop(next(iter(_exceptions)), None)
            _exceptions[thread] = (text[:_TEXT_COMPARED], error)
            return status_of(error)
        except BaseException:  # nothing may reach C
            return ERROR

    def _last_error(self, _self: int | None, message: int | None, size: int) -> None:
        with contextlib.suppress(BaseException):
            base = self._base
            if base is None:
                write_text(message, size, self._messages.get(threading.get_ident(), ""))
                return
            # Two sources: the Python text is taken out when read, so that a later failure in C is not hidden by it.
            text = self._messages.pop(threading.get_ident(), None)
            if text is not None:
                write_text(message, size, text)
            elif base.last_error:
                base.last_error(base.self, message, size)

    def _device_count(self, _self: int | None) -> int:
        if self._count is None:
            try:
                self._count = handle(self.driver.device_count(), bits=31)
            except BaseException as error:  # nothing may reach C
                self.count_error = error
                self._remember("device_count", error)
                self._count = 0
        return self._count

    # ---- one body per function; arguments as in driver.h after self ----
    def _open(self, device: int, spec: Any) -> None:
        fill_spec(spec.contents, self.driver.open(device))

    def _alloc(self, device: int, nbytes: int, address: Any) -> None:
        address[0] = handle(self.driver.alloc(device, nbytes), least=1)

    def _free(self, device: int, address: int) -> None:
        self.driver.free(device, address)

    def _copy(self, device: int, dst: int, src: int, nbytes: int, kind: int, stream: int, placement: Any) -> None:
        if not 0 <= kind < len(_COPY_KINDS):
            raise ValueError(f"unknown copy kind {kind}")
        if not placement:
            self.driver.copy(device, dst, src, nbytes, _COPY_KINDS[kind], stream)
        elif self._copy_takes_placement:
            self.driver.copy(device, dst, src, nbytes, _COPY_KINDS[kind], stream, placement_from(placement.contents))
        else:
            raise TypeError("got a placement, but this driver's copy has no placement parameter")

    def _target(self, description: int | None, size: int) -> None:
        self._write(description, size, self.driver.target())

    def _compile(self, source: bytes, binary: Any, nbytes: Any, binary_free: Any) -> None:
        result = self.driver.compile(source.decode())
        if not isinstance(result, (bytes, bytearray)):
            raise TypeError(f"must return bytes, not {type(result).__name__}")
        kept = ctypes.create_string_buffer(bytes(result), len(result) + 1)
        address = ctypes.addressof(kept)
        _binaries[address] = kept
        binary[0], nbytes[0], binary_free[0] = (address, len(result), _free_binary_address)

    def _load(self, device: int, binary: int | None, nbytes: int, entry: bytes, kernel: Any) -> None:
        data = ctypes.string_at(binary, nbytes) if binary else b""
        kernel[0] = handle(self.driver.load(device, data, entry.decode()))

    def _launch(self, device: int, kernel: int, launch: Any) -> None:
        c = launch.contents
        placements = tuple(map(placement_from, c.placements[: c.arg_count])) if c.placements else None
        args = tuple(c.args[: c.arg_count]) if c.arg_count else ()
        done = self.driver.launch(
            device, kernel, Launch(args, c.grid, c.stream, c.flops, c.bytes, placements, c.address_count)
        )
        if c.finished:
            c.finished[0] = done is True

    def _stream_create(self, device: int, priority: int, stream: Any) -> None:
        stream[0] = handle(self.driver.stream_create(device, priority), bits=63)

    def _stream_destroy(self, device: int, stream: int) -> None:
        self.driver.stream_destroy(device, stream)

    def _event_record(self, device: int, stream: int, event: Any) -> None:
        event[0] = handle(self.driver.event_record(device, stream))

    def _event_query(self, device: int, event: int, done: Any) -> None:
        done[0] = 1 if self.driver.event_query(device, event) else 0

    def _event_wait(self, device: int, event: int, wait_device: int, wait_stream: int) -> None:
        self.driver.event_wait(device, event, wait_device, wait_stream)

    def _event_elapsed(self, device: int, start: int, end: int, milliseconds: Any) -> None:
        milliseconds[0] = float(self.driver.event_elapsed(device, start, end))

    def _event_destroy(self, device: int, event: int) -> None:
        self.driver.event_destroy(device, event)

    def _clock(self, device: int, nanoseconds: Any) -> None:
        nanoseconds[0] = handle(self.driver.clock(device))

    def _charge(self, device: int, stream: int, dtype: int, flops: float, bytes: float) -> None:
        self.driver.charge(device, stream, dtype, flops, bytes)

    def _copy_peer(self, dst_device: int, dst: int, src_device: int, src: int, nbytes: int, stream: int) -> None:
        self.driver.copy_peer(dst_device, dst, src_device, src, nbytes, stream)

    def _relayout(self, device: int, dst: int, into: Any, src: int, out_of: Any, nbytes: int, stream: int) -> None:
        dst_placement, src_placement = (placement_from(into.contents), placement_from(out_of.contents))
        self.driver.relayout(device, dst, dst_placement, src, src_placement, nbytes, stream)

    def _host_alloc(self, nbytes: int, pointer: Any) -> None:
        pointer[0] = handle(self.driver.host_alloc(nbytes), least=1)

    def _host_free(self, pointer: int | None) -> None:
        self.driver.host_free(pointer or 0)

    def _ipc_export(self, device: int, address: int, text: int | None, size: int) -> None:
        self._write(text, size, self.driver.ipc_export(device, address))

    def _ipc_import(self, device: int, text: bytes, address: Any) -> None:
        address[0] = handle(self.driver.ipc_import(device, text.decode()), least=1)

    def _ipc_close(self, device: int, address: int) -> None:
        self.driver.ipc_close(device, address)

    def _host_function(self, device: int, stream: int, function: int | None, argument: int | None) -> None:
        if not function:
            raise ValueError("the function is NULL")
        call = VOID_CALL(function)
        self.driver.host_function(device, stream, lambda: call(argument))

    def _close(self, device: int) -> None:
        self.driver.close(device)

    @staticmethod
    def _write(address: int | None, size: int, text: object) -> None:
        if not isinstance(text, str):
            raise TypeError(f"must return a str, not {type(text).__name__}")
        if not write_text(address, size, text):
            raise ValueError(f"returned {len(text)} characters, more than the {size} bytes there is room for")


def adapt(driver: Driver) -> AdaptedDriver:
    """Builds the struct over a Python driver; the methods it did not write stay NULL.

    >>> _C.register_driver(adapt(MyDriver()).address, "mychip")  # doctest: +SKIP
    """
    missing = missing_required(driver)
    if missing:
        raise DriverError(f"driver '{driver.name}' ({type(driver).__qualname__}) needs: {', '.join(missing)}")
    return AdaptedDriver(driver, [name for name in FUNCTIONS if name != "last_error" and driver.offers(name)])
