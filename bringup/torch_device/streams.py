"""torch.<name>.Stream and Event: torch.cuda's signatures, which make PyTorch's own torch.Stream and torch.Event.

They make the plain classes because torch.Event.elapsed_time and torch.Stream.record_event refuse a subclass.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from bringup import _C
from bringup.driver import in_use
from bringup.torch_device.device_index import Device, device_index
from bringup.torch_device.interprocess_events import InterprocessEvent


class _MakesStreams(type):
    def __call__(cls, device: Device = None, priority: int = 0) -> torch.Stream:
        return torch.Stream(torch.device(in_use.device_type(), device_index(device)), priority=priority)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch.Stream) and value.device.type == in_use.device_type()


class Stream(torch.Stream, metaclass=_MakesStreams):
    """A queue of work of one device: ``Stream(device=None, priority=0)``.

    >>> side = torch.sim.Stream()  # doctest: +SKIP
    >>> with torch.sim.stream(side):  # doctest: +SKIP
    ...     y = x @ x
    """


class _MakesEvents(type):
    def __call__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event | InterprocessEvent:
        if interprocess and enable_timing:
            raise ValueError("an event is for timing or for another process, not both")
        if interprocess:
            return InterprocessEvent()
        return torch.Event(torch.device(in_use.device_type()), enable_timing=enable_timing, blocking=blocking)

    def __instancecheck__(cls, value: object) -> bool:
        if isinstance(value, InterprocessEvent):
            return True
        return isinstance(value, torch.Event) and value.device.type == in_use.device_type()


class Event(torch.Event, metaclass=_MakesEvents):
    """A point in a stream's work: ``Event(enable_timing=False, blocking=False, interprocess=False)``.

    One that is ``interprocess`` has ``ipc_handle()``, for ``Event.from_ipc_handle`` of another process.

    >>> start, end = torch.sim.Event(enable_timing=True), torch.sim.Event(enable_timing=True)  # doctest: +SKIP
    >>> start.record(); y = x @ x; end.record(); end.synchronize(); start.elapsed_time(end)  # doctest: +SKIP
    """

    from_ipc_handle = InterprocessEvent.from_ipc_handle  # type: ignore[assignment]


class StreamContext:
    """Selects a stream for the work of a ``with`` block; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            self._device = _C.current_device()
            self._before = current_stream(self.stream.device_index)
            set_stream(self.stream)
        return self.stream

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stream is not None:
            set_stream(self._before)
            _C.set_device(self._device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """A context manager: the block's work goes to ``stream``, on the stream's device."""
    return StreamContext(stream)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream the current one, and its device the current device; None changes nothing."""
    if stream is None:
        return
    if stream.device.type != in_use.device_type():
        raise ValueError(f"expected a {in_use.device_type()} stream, got one of {stream.device}")
    torch._C._accelerator_setStream(stream)


def current_stream(device: Device = None) -> torch.Stream:
    """The stream that work of this thread goes to."""
    return torch._C._accelerator_getStream(device_index(device))


def default_stream(device: Device = None) -> torch.Stream:
    """The stream every thread starts with."""
    return stream_of(0, device_index(device), _DEVICE_TYPE)


def stream_of(stream_id: int, index: int, device_type: int) -> torch.Stream:
    """A stream that exists, by its numbers."""
    return torch.Stream(stream_id=stream_id, device_index=index, device_type=device_type)


#: c10::DeviceType::PrivateUse1, the same number in every torch version
_DEVICE_TYPE = 20


def synchronize(device: Device = None, timeout: float | None = None) -> None:
    """Waits for all work of a device; one that was never used has none.

    With a ``timeout`` in seconds a device that does not come to an end is a TimeoutError that names its streams.
    Nothing is ended by that: other devices go on, and this one may be waited for again.

    >>> torch.sim.synchronize(timeout=10)  # doctest: +SKIP
    """
    if device is None and _C.device_count() == 0:
        return
    index = device_index(device)
    if timeout is not None:
        wait_until_idle(index, timeout)
    _C.synchronize(index)


#: The default stream, and two pools of 32.
COUNT = 65


def wait_until_idle(index: int, timeout: float, meanwhile: Callable[[], object] = bool) -> None:
    """Waits until nothing runs on a device; raises TimeoutError where something does for longer than ``timeout``.

    ``meanwhile`` is called again and again until then.
    """
    if not timeout >= 0:
        raise ValueError(f"synchronize cannot wait for {timeout} seconds")
    end, pause = time.monotonic() + timeout, 1e-5
    streams = [stream_of(number, index, _DEVICE_TYPE) for number in range(COUNT)]
    while streams := [one for one in streams if not one.query()]:
        if time.monotonic() >= end:
            names = ", ".join(str(one.stream_id) for one in streams)
            raise TimeoutError(
                f"{in_use.device_type()}:{index} is not done after {timeout:.3g} s: work of stream {names} still runs. "
                "A kernel may be stuck (BRINGUP_DEBUG=4 prints each launch), or wait for an event that nothing records"
            )
        meanwhile()
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


def sleep(milliseconds: float) -> None:
    """Queues work on the current stream that takes this long; for tests of asynchrony."""
    if not milliseconds >= 0:
        raise ValueError(f"a stream cannot sleep {milliseconds} ms")
    now = current_stream()
    _C.sleep(now.device_index, now.stream_id, milliseconds)


def launch_host_function(function: Any, stream: torch.Stream | None = None) -> None:
    """Calls ``function()`` on the host when the work queued so far on the stream is done.

    >>> torch.sim.launch_host_function(lambda: print("done"))  # doctest: +SKIP
    """
    if not callable(function):
        raise TypeError(f"launch_host_function needs a callable, not {type(function).__name__}")
    on = current_stream() if stream is None else stream
    _C.host_function(on.device_index, on.stream_id, function)
