"""Driver checks of streams, events, host functions and the clock."""

from __future__ import annotations

import math
import time
from functools import partial

from bringup.kit.driver_checks import Probe, check, difference, expect, pattern, threads

_EVENTS = ("open_spec", "event_completes")
_NEEDS = (*_EVENTS, "copy_round_trip")
_SLEEP = 0.05


def _slow_down(probe: Probe, stream: int) -> None:
    """Keeps a stream busy for a while, where the driver can; without it the order checks are weaker but still true."""
    if probe.driver.offers("host_function"):
        probe.driver.host_function(probe.device, stream, lambda: time.sleep(_SLEEP))


def _slowly_append(seen: list[str], what: str) -> None:
    time.sleep(_SLEEP)
    seen.append(what)


@check(needs=_EVENTS)
def streams_distinct(probe: Probe) -> None:
    """Streams are distinct, and can be made and ended many times."""
    probe.need("stream_create", "stream_destroy")
    streams = [probe.stream() for _ in range(8)]
    expect(len({0, *streams}) == 9, f"stream handles {streams} must differ, also from the default stream, 0")
    for _ in range(50):
        stream = probe.driver.stream_create(probe.device, -1)
        probe.driver.stream_destroy(probe.device, stream)


@check(needs=_NEEDS)
def stream_order(probe: Probe) -> None:
    """Work on one stream runs in the order it was queued."""
    for stream in (0, *([probe.stream()] if probe.driver.offers("stream_create") else [])):
        first, second = probe.alloc(8192), probe.alloc(8192)
        probe.write(first, bytes(8192))
        probe.write(second, bytes(8192))
        _slow_down(probe, stream)
        for seed in range(20):
            probe.start_write(first, pattern(8192, seed), stream=stream)
            probe.move(second, first, 8192, stream)
        got = probe.read(second, 8192, stream=stream)
        expect(got == pattern(8192, 19), f"stream {stream}, 20 copies in a row: {difference(got, pattern(8192, 19))}")


@check(needs=_NEEDS)
def stream_destroy_drains(probe: Probe) -> None:
    """Ending a stream lets its work finish."""
    probe.need("stream_create", "stream_destroy")
    stream, base, data = probe.stream(), probe.alloc(8192), pattern(8192, 3)
    probe.write(base, bytes(8192))
    _slow_down(probe, stream)
    probe.start_write(base, data, stream=stream)
    event = probe.record(stream)
    probe.driver.stream_destroy(probe.device, stream)
    probe.forget_stream(stream)
    probe.driver.event_wait(probe.device, event, probe.device, -1)
    got = probe.read(base, 8192)
    expect(got == data, difference(got, data))


@check(needs=_EVENTS)
def event_host_wait(probe: Probe) -> None:
    """A host wait returns only after the work before the event is done."""
    probe.need("event_wait", "stream_create", "host_function")
    for turn in range(3):
        done: list[str] = []
        stream = probe.stream()
        probe.driver.host_function(probe.device, stream, partial(_slowly_append, done, "done"))
        event = probe.record(stream)
        if probe.driver.event_query(probe.device, event):
            expect(done, f"turn {turn}: the event counts as complete while the work before it runs")
        probe.driver.event_wait(probe.device, event, probe.device, -1)
        expect(done, f"turn {turn}: the wait returned before the work was done")
        expect(probe.driver.event_query(probe.device, event), "after the wait the event is not complete")


@check(needs=_NEEDS)
def event_stream_wait(probe: Probe) -> None:
    """A stream that waits for an event sees the work before it."""
    probe.need("event_wait", "stream_create")
    one, two = probe.stream(), probe.stream()
    source, target = probe.alloc(8192), probe.alloc(8192)
    for seed in range(3):
        data = pattern(8192, seed + 40)
        probe.write(source, bytes(8192))
        _slow_down(probe, one)
        probe.start_write(source, data, stream=one)
        probe.driver.event_wait(probe.device, probe.record(one), probe.device, two)
        probe.move(target, source, 8192, two)
        got = probe.read(target, 8192, stream=two)
        expect(got == data, f"the waiting stream ran too early: {difference(got, data)}")


@check(needs=_EVENTS)
def event_device_wait(probe: Probe) -> None:
    """Streams of two devices can wait for each other."""
    probe.need("event_wait", "stream_create", "host_function")
    for other in probe.devices:
        if other == probe.device:
            continue
        order: list[str] = []
        mine, theirs = probe.stream(), probe.stream(other)
        probe.driver.host_function(probe.device, mine, partial(_slowly_append, order, "first"))
        probe.driver.event_wait(probe.device, probe.record(mine), other, theirs)
        probe.driver.host_function(other, theirs, partial(order.append, "second"))
        probe.wait(theirs, other)
        expect(order == ["first", "second"], f"device {other} did not wait for device {probe.device}: {order}")


@check(needs=_NEEDS)
def event_elapsed(probe: Probe) -> None:
    """The time between two events is finite, not negative, and adds up."""
    probe.need("event_elapsed")
    nbytes = min(1 << 20, probe.spec.memory_bytes // 8)
    base, events = probe.alloc(nbytes), [probe.record(0)]
    for seed in range(4):
        probe.start_write(base, pattern(nbytes, seed))
        events.append(probe.record(0))
    probe.wait()
    times = [probe.driver.event_elapsed(probe.device, events[0], event) for event in events]
    expect(all(math.isfinite(t) for t in times), f"milliseconds since the first event: {times}")
    expect(times == sorted(times) and times[0] >= 0, f"milliseconds since the first event run backwards: {times}")
    expect(abs(times[0]) < 1e-6, f"an event is {times[0]} ms after itself")
    part = probe.driver.event_elapsed(probe.device, events[2], events[4])
    expect(abs(times[2] + part - times[4]) < 1e-2, f"{times[2]} ms and {part} ms do not add up to {times[4]} ms")


@check(needs=_EVENTS)
def host_function(probe: Probe) -> None:
    """Host functions run once each, in stream order."""
    probe.need("host_function")
    seen: list[int] = []
    for number in range(20):
        probe.driver.host_function(probe.device, 0, partial(seen.append, number))
    probe.wait()
    expect(seen == list(range(20)), f"20 functions ran as {seen}")


@check(needs=_NEEDS)
def eight_threads_of_events(probe: Probe) -> None:
    """Eight threads can record, query and wait at once."""
    probe.need("stream_create", "event_record")

    def work(number: int) -> None:
        mine = Probe(probe.session)
        stream, base = mine.stream(), mine.alloc(4096)
        for turn in range(25):
            data = pattern(4096, number * 31 + turn)
            mine.start_write(base, data, stream=stream)
            got = mine.read(base, 4096, stream=stream)
            expect(got == data, f"thread {number}, turn {turn}: {difference(got, data)}")
        mine.give_back()

    threads(8, work)


@check(needs=("open_spec", "copy_round_trip"))
def clock(probe: Probe) -> None:
    """The clock is an int that never runs backwards."""
    probe.need("clock")
    base, last = probe.alloc(4096), 0
    for turn in range(50):
        now = probe.driver.clock(probe.device)
        expect(isinstance(now, int) and now >= 0, f"clock returned {now!r}")
        expect(now >= last, f"the clock ran back from {last} to {now} ns")
        last = now
        if turn % 10 == 0:
            probe.write(base, pattern(4096, turn))
