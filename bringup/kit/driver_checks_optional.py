"""Driver checks of what few drivers offer: registered host memory, events of processes, graphs, traces, library ops."""

from __future__ import annotations

import ctypes
import time

from bringup.driver import (
    CallSpec,
    CopyKind,
    EventFlags,
    HostFlags,
    LibraryOp,
    TensorArgument,
    TensorSpec,
    TraceKind,
    TraceRecord,
)
from bringup.kit.driver_checks import Probe, check, difference, expect, pattern

_NEEDS = ("open_spec", "copy_round_trip")
_EVENTS = (*_NEEDS, "event_completes")
_SIZE = 5000


@check(needs=_NEEDS)
def host_register(probe: Probe) -> None:
    """Host memory that was there already can be registered, copied both ways, and taken back."""
    probe.need("host_register", "host_unregister")
    data, base = pattern(_SIZE, 21), probe.alloc(_SIZE)
    buffer = probe.host(data)
    pointer = ctypes.addressof(buffer)
    address, placement = probe.placed(base, 0, probe.device)
    for _ in range(2):  # what was taken back can be registered again
        probe.driver.host_register(pointer, _SIZE, probe.device, HostFlags.PORTABLE)
        try:
            probe.copy(probe.device, address, pointer, _SIZE, CopyKind.HOST_TO_DEVICE, 0, placement)
            probe.wait()
            ctypes.memset(pointer, 0, _SIZE)
            probe.copy(probe.device, pointer, address, _SIZE, CopyKind.DEVICE_TO_HOST, 0, placement)
            probe.wait()
            expect(buffer.raw[:_SIZE] == data, difference(buffer.raw[:_SIZE], data))
        finally:
            probe.driver.host_unregister(pointer)
    try:
        probe.driver.host_unregister(pointer)
    except Exception:
        return
    expect(False, "memory that is not registered was taken back without an error")


@check(needs=("open_spec",))
def host_flags(probe: Probe) -> None:
    """host_alloc takes the flags that the spec lists, and refuses the others."""
    probe.need("host_alloc", "host_free")
    if not probe.spec.host_flags:
        return  # it may also be a driver whose host_alloc takes no flags
    for flag in (HostFlags.MAPPED, HostFlags.WRITE_COMBINED):
        listed = flag in probe.spec.host_flags
        try:
            probe.driver.host_free(probe.driver.host_alloc(64, probe.device, HostFlags.PORTABLE | flag))
        except NotImplementedError:
            expect(not listed, f"the spec lists {flag.name}, and host_alloc refuses it")
        else:
            expect(listed, f"the spec does not list {flag.name}, and host_alloc takes it")


@check(needs=_EVENTS)
def event_export(probe: Probe) -> None:
    """An event that was exported and imported again completes with its original, and both can be waited for."""
    probe.need("event_export", "event_import", "stream_create")
    stream = probe.stream()
    if probe.driver.offers("host_function"):
        probe.driver.host_function(probe.device, stream, lambda: time.sleep(0.05))
    event = probe.driver.event_record(probe.device, stream, EventFlags.INTERPROCESS)
    handle = probe.driver.event_export(probe.device, event)
    expect(isinstance(handle, str) and handle, f"event_export returned {handle!r}")
    imported = probe.driver.event_import(probe.device, handle)
    if probe.driver.event_query(probe.device, imported):
        expect(probe.driver.event_query(probe.device, event), "the imported event is done before its original")
    probe.driver.event_wait(probe.device, imported, probe.device, -1)
    expect(probe.driver.event_query(probe.device, event), "the wait for the imported event ended too early")
    probe.driver.event_destroy(probe.device, event)
    expect(probe.driver.event_query(probe.device, imported), "an imported event is not done once its original is gone")
    probe.driver.event_destroy(probe.device, imported)
    try:
        probe.driver.event_import(probe.device, "this is not a handle")
    except Exception:
        return
    expect(False, "event_import accepted a text that is not a handle")


@check(needs=_NEEDS)
def graph(probe: Probe) -> None:
    """Work inside of graph_begin and graph_end runs with every graph_launch, and not before."""
    probe.need("graph_begin", "graph_end", "graph_launch", "graph_destroy")
    stream = probe.stream() if probe.driver.offers("stream_create") else 0
    source, target = probe.alloc(_SIZE), probe.alloc(_SIZE)
    probe.write(source, pattern(_SIZE, 30))
    probe.write(target, bytes(_SIZE))
    probe.driver.graph_begin(probe.device, stream)
    probe.move(target, source, _SIZE, stream)
    made = probe.driver.graph_end(probe.device, stream)
    try:
        probe.wait(stream)
        expect(probe.read(target, _SIZE) == bytes(_SIZE), "what the graph holds ran while it was made")
        for seed in (31, 32):
            data = pattern(_SIZE, seed)
            probe.write(source, data)
            probe.driver.graph_launch(probe.device, made, stream, seed)
            got = probe.read(target, _SIZE, stream=stream)
            expect(got == data, f"launch of the graph: {difference(got, data)}")
    finally:
        probe.wait(stream)
        probe.driver.graph_destroy(probe.device, made)


@check(needs=_NEEDS)
def trace(probe: Probe) -> None:
    """A trace has a record of each copy, between the clocks of its start and its end, and nothing of later work."""
    probe.need("trace_start", "trace_stop", "trace_read")
    base, sizes = probe.alloc(_SIZE), (_SIZE, 100, 3)
    begin = probe.driver.trace_start(probe.device, 100)
    for nbytes in sizes:
        probe.write(base, pattern(nbytes, 41))
    end = probe.driver.trace_stop(probe.device)
    probe.write(base, pattern(7, 42))
    found: list[TraceRecord] = []
    while records := probe.driver.trace_read(probe.device, 2)[0]:
        found += records
        expect(len(found) < 100, f"trace_read gives more and more records: {records}")
    copies = sorted((r for r in found if r.kind == TraceKind.COPY), key=lambda record: record.start_ns)
    expect([r.bytes for r in copies] == list(sizes), f"copies of {sizes} bytes were recorded as {copies}")
    for record in found:
        inside = begin.device_ns <= record.start_ns <= record.end_ns <= end.device_ns
        expect(inside, f"{record} lies outside of the trace, {begin.device_ns} to {end.device_ns} ns")
    expect(abs(begin.host_ns - time.time_ns()) < 60_000_000_000, f"host_ns is {begin.host_ns}, which is not Unix time")
    expect(end.host_ns >= begin.host_ns, f"the host's clock ran back from {begin.host_ns} to {end.host_ns} ns")


@check(needs=("open_spec",))
def library_op(probe: Probe) -> None:
    """library_op gives a LibraryOp for a call, or declines it with NotImplementedError."""
    probe.need("library_op")
    expect(probe.driver.library_ops, "library_op is never asked: `library_ops` lists no ops")
    square = TensorSpec("float32", (16, 16), (16, 1))
    arguments = {"self": TensorArgument((0,)), "other": TensorArgument((1,))}
    for op in (*probe.driver.library_ops, "no::op"):
        try:
            found = probe.driver.library_op(probe.device, CallSpec(op, (square, square, square), 1, arguments))
        except NotImplementedError:
            continue
        expect(op != "no::op", "library_op serves an op that does not exist")
        expect(isinstance(found, LibraryOp) and found.function > 0, f"library_op returned {found!r} for {op}")
