"""torch.<name>._trace: what a device ran and when, from the driver's own trace buffer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bringup import _C
from bringup.driver import ClockPair, TraceRecord, in_use
from bringup.torch_device.device_index import Device, device_index

#: Records that one call of ``trace_read`` takes.
_CHUNK = 4096


@dataclass
class Trace:
    """The records of a trace, by their start; filled when the block ends. ``dropped`` had no room."""

    begin: ClockPair
    end: ClockPair
    records: list[TraceRecord] = field(default_factory=list)
    dropped: int = 0

    def host_ns(self, device_ns: int) -> int:
        """A moment of the device's clock as Unix time, between the two moments that are known on both clocks.

        >>> Trace(ClockPair(0, 1000), ClockPair(100, 1200)).host_ns(50)
        1100
        """
        length = self.end.device_ns - self.begin.device_ns
        rate = (self.end.host_ns - self.begin.host_ns) / length if length > 0 else 1.0
        return self.begin.host_ns + round((device_ns - self.begin.device_ns) * rate)


@contextmanager
def trace(device: Device = None, capacity: int = 1 << 20) -> Iterator[Trace]:
    """Records what a device runs inside of a block; ``stream`` of a record is a stream's ``native_handle``.

    >>> with torch.sim._trace() as trace:  # doctest: +SKIP
    ...     y = x @ x
    >>> [(record.name, record.end_ns - record.start_ns) for record in trace.records]  # doctest: +SKIP
    """
    index = device_index(device)
    driver, local = in_use.driver_of(index).driver, _C.driver_of(index)[1]
    if not all(map(driver.offers, ("trace_start", "trace_stop", "trace_read"))):
        raise NotImplementedError(f"driver '{driver.name}' records no traces (it has no trace_start)")
    _C.ensure_open(index)
    _C.finish_work(index)  # what was queued before is not part of it
    begin = driver.trace_start(local, capacity)
    found = Trace(begin, begin)
    try:
        yield found
    finally:
        _C.finish_work(index)
        found.end = driver.trace_stop(local)
        while True:
            records, found.dropped = driver.trace_read(local, _CHUNK)
            if not records:
                break
            found.records += records
        found.records.sort(key=lambda record: record.start_ns)
