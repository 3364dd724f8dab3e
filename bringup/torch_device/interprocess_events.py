"""Events that another process can wait for: ``torch.<name>.Event(interprocess=True)``, with the names of torch.cuda.

torch.Event has no way to a handle of its own, so these are another class; ``event.wait(stream)`` takes the place of
``stream.wait_event(event)``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from bringup import _C
from bringup.driver import Driver, EventFlags, in_use
from bringup.torch_device.device_index import Device, device_index


class InterprocessEvent:
    """A point in a stream's work that another process can wait for.

    A handle is of the last ``record()``: one that is recorded again has a new handle.
    """

    def __init__(self, device: Device = None) -> None:
        self._index = device_index(device)
        self._driver: Driver = in_use.driver_of(self._index).driver
        self._local = _C.driver_of(self._index)[1]
        self._kept, self._life = 0, 0
        self._forget: Callable[[], object] = bool
        if not all(map(self._driver.offers, ("event_record", "event_export", "event_import"))):
            raise NotImplementedError(
                f"events of driver '{self._driver.name}' cannot be shared between processes (it has no event_export)"
            )

    @property
    def device(self) -> torch.device:
        """Where it is recorded, or may be waited for."""
        return torch.device(in_use.device_type(), self._index)

    @property
    def _event(self) -> int:
        """The driver's event; 0 where none was recorded since the device was reset."""
        return self._kept if self._life == _C.lives(self._index) else 0

    def _hold(self, event: int) -> None:
        """Takes an event of the driver in place of the one before."""
        self._forget()
        self._kept, self._life = event, _C.lives(self._index)
        self._forget = weakref.finalize(self, _destroy, self._driver, self._index, self._local, event, self._life)

    def record(self, stream: torch.Stream | None = None) -> None:
        """Marks the work queued so far on a stream, by default the current one."""
        on = self._stream(stream)
        if on.device != self.device:
            raise ValueError(f"the event belongs to {self.device} and the stream to {on.device}")
        _C.ensure_open(self._index)
        self._hold(self._driver.event_record(self._local, on.native_handle, EventFlags.INTERPROCESS))

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Makes a stream wait for the event, by default the current one."""
        on = self._stream(stream)
        if in_use.driver_of(on.device_index).driver is not self._driver:
            self.synchronize()  # two drivers know nothing of each other
        elif self._event:
            local = _C.driver_of(on.device_index)[1]
            self._driver.event_wait(self._local, self._event, local, on.native_handle)
            _C.mark_busy(on.device_index, on.stream_id)

    def query(self) -> bool:
        """Whether the work before the event is done."""
        return not self._event or self._driver.event_query(self._local, self._event)

    def synchronize(self) -> None:
        """Waits for the event on the calling thread."""
        if self._event:
            self._driver.event_wait(self._local, self._event, self._local, -1)

    def ipc_handle(self) -> bytes:
        """What from_ipc_handle of another process takes; the event must not go before that has been called."""
        if not self._event:
            raise RuntimeError("ipc_handle() of an event that was not recorded: call record() first")
        return self._driver.event_export(self._local, self._event).encode()

    @classmethod
    def from_ipc_handle(cls, device: Device, handle: bytes) -> InterprocessEvent:
        """The event behind a handle of another process."""
        event = cls(device)
        _C.ensure_open(event._index)
        event._hold(event._driver.event_import(event._local, handle.decode()))
        return event

    def _stream(self, stream: torch.Stream | None) -> Any:
        on = torch._C._accelerator_getStream(self._index) if stream is None else stream
        if on.device.type != in_use.device_type():
            raise ValueError(f"expected a {in_use.device_type()} stream, got one of {on.device}")
        if getattr(on, "is_capturing", bool)():
            raise RuntimeError("an event that other processes wait for cannot be captured into a graph")
        return on


def _destroy(driver: Driver, index: int, local: int, event: int, life: int) -> None:
    if _C.is_open(index) and _C.lives(index) == life:
        driver.event_destroy(local, event)
