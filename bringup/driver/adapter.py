"""A Python driver as a bringup_driver struct: every method it wrote becomes a C function pointer.

An exception becomes a status, and its text waits for ``last_error`` on the same thread. One thing cannot be caught
here: a Ctrl-C that is pending when C calls in is raised before the first line of the callback; ctypes prints it and the
status is garbage. So every callback first calls ``on_entry``, by which the core knows that the call has arrived.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

from bringup.driver import Driver, Launch
from bringup.driver.c_calls import fill_trace_records
from bringup.driver.c_functions import FUNCTIONS, METHODS, VOID_CALL, Argument, DriverStruct, handle
from bringup.driver.c_struct import (
    ABI_VERSION,
    ERROR,
    OK,
    DriverError,
    missing_required,
    placement_from,
    status_of,
    write_text,
)

#: The core keeps pointers into these for the rest of the process.
_alive: list[AdaptedDriver] = []

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


def text_of(error: BaseException) -> str:
    """``MemoryError: no room`` — never raises, whatever the exception's __str__ does."""
    try:
        text = str(error)
    except BaseException:  # nothing may reach C
        text = "(its text cannot be printed)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def arguments_taken(driver: Driver, method: str) -> int:
    """How many arguments of the contract a driver's method takes: it may leave out those with a default, at the end."""
    parameters = list(inspect.signature(getattr(Driver, method)).parameters.values())[1:]
    least = sum(parameter.default is parameter.empty for parameter in parameters)
    taken = len(parameters)
    while taken > least:
        try:
            inspect.signature(getattr(driver, method)).bind(*range(taken))
            break
        except TypeError:
            taken -= 1
    return taken


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
        self._taken = {name: arguments_taken(driver, name) for name in methods}
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
        by_hand: dict[str, Callable[..., None]] = {
            "copy": self._copy,
            "launch": self._launch,
            "trace_read": self._trace_read,
            "host_function": self._host_function,
        }
        body = by_hand.get(name) or self._body(name)

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

    # ---- bodies: arguments as in driver.h after self ----
    def _body(self, name: str) -> Callable[..., None]:
        """The method of a name, by the table of functions."""
        arguments, result = METHODS[name]
        count = sum(len(one.types) for one in arguments)
        taken = self._taken[name]
        plain = all(one.from_c is None for one in arguments)

        def body(*given: Any) -> None:
            values = given[:count] if plain else _from_c(arguments, given)
            returned = getattr(self.driver, name)(*values[:taken])
            if result is not None:
                result.store(*given[count:], returned)

        return body

    def _copy(self, device: int, dst: int, src: int, nbytes: int, kind: int, stream: int, placement: Any) -> None:
        arguments = [device, dst, src, nbytes, _from_c(METHODS["copy"][0][4:5], (kind,))[0], stream]
        if placement and self._taken["copy"] < 7:
            raise TypeError("got a placement, but this driver's copy has no placement parameter")
        self.driver.copy(*arguments, *([placement_from(placement.contents)] if placement else []))

    def _launch(self, device: int, kernel: int, launch: Any) -> None:
        c = launch.contents
        placements = tuple(map(placement_from, c.placements[: c.arg_count])) if c.placements else None
        args = tuple(c.args[: c.arg_count]) if c.arg_count else ()
        numbers = (c.grid, c.stream, c.flops, c.bytes, placements, c.address_count, c.block, c.local_bytes)
        name = c.name.decode() if c.name else ""
        parts = _partitions_of(c) if c.partition_count else (None, None)
        done = self.driver.launch(device, kernel, Launch(args, *numbers, name, c.correlation, *parts))
        if c.finished:
            c.finished[0] = done is True

    def _trace_read(self, device: int, room: Any, size: int, count: Any, dropped: Any) -> None:
        records, lost = self.driver.trace_read(device, size)
        fill_trace_records(room, size, records)
        count[0], dropped[0] = len(records), handle(lost)

    def _host_function(self, device: int, stream: int, function: int | None, argument: int | None) -> None:
        if not function:
            raise ValueError("the function is NULL")
        call = VOID_CALL(function)
        self.driver.host_function(device, stream, lambda: call(argument))


def _partitions_of(c: Any) -> tuple[Any, Any]:
    """Arguments and units of each partition, as arrays of their own."""
    import numpy

    args = numpy.ctypeslib.as_array(c.partition_args, (c.partition_count, c.arg_count)).copy()
    return args, numpy.ctypeslib.as_array(c.partition_grid, (c.partition_count,)).copy()


def _from_c(arguments: Sequence[Argument], given: Sequence[Any]) -> list[Any]:
    """C arguments as Python sees them."""
    values, at = [], 0
    for one in arguments:
        mine = given[at : at + len(one.types)]
        values.append(mine[0] if one.from_c is None else one.from_c(*mine))
        at += len(mine)
    return values


def adapt(driver: Driver) -> AdaptedDriver:
    """Builds the struct over a Python driver; the methods it did not write stay NULL.

    >>> _C.register_driver(adapt(MyDriver()).address, "mychip")  # doctest: +SKIP
    """
    missing = missing_required(driver)
    if missing:
        raise DriverError(f"driver '{driver.name}' ({type(driver).__qualname__}) needs: {', '.join(missing)}")
    return AdaptedDriver(driver, [name for name in FUNCTIONS if name != "last_error" and driver.offers(name)])
