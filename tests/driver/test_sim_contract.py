"""What the sim driver offers beyond memory, streams and kernels: pinned memory, traces, events of two processes."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time

import pytest

from bringup.driver import CopyKind, EventFlags, HostFlags, TraceKind
from tests.driver.through_the_contract import D2H, H2D, HOST, LARGE, address_of, pattern, synchronize


# ---- host memory ----
def test_host_memory_takes_a_device_and_flags(flat_sim):
    pointer = flat_sim.host_alloc(100, 1, HostFlags.PORTABLE | HostFlags.WRITE_COMBINED)
    flat_sim.host_free(pointer)
    assert flat_sim.open(0).host_flags == HostFlags.WRITE_COMBINED
    with pytest.raises(NotImplementedError, match="flags"):
        flat_sim.host_alloc(100, 0, HostFlags.MAPPED)
    with pytest.raises(ValueError, match="device 2 does not exist"):
        flat_sim.host_alloc(100, 2)


def test_registered_memory(flat_sim):
    buffer = ctypes.create_string_buffer(1000)
    start = ctypes.addressof(buffer)
    flat_sim.host_register(start, 1000)
    for pointer, nbytes in ((start, 1000), (start + 999, 1), (start - 10, 11)):
        with pytest.raises(ValueError, match="pinned already"):
            flat_sim.host_register(pointer, nbytes)
    with pytest.raises(ValueError, match="nothing was registered"):
        flat_sim.host_unregister(start + 1)
    with pytest.raises(ValueError, match="did not come from host_alloc"):
        flat_sim.host_free(start)
    flat_sim.host_unregister(start)
    with pytest.raises(ValueError, match="nothing was registered"):
        flat_sim.host_unregister(start)
    for pointer, nbytes in ((0, 8), (start, 0), (start, (1 << 64) - 1)):
        with pytest.raises(ValueError, match="no memory"):
            flat_sim.host_register(pointer, nbytes)
    with pytest.raises(NotImplementedError, match="flags"):
        flat_sim.host_register(start, 8, 0, HostFlags.MAPPED)


# ---- traces ----
def test_a_trace_shows_what_ran(flat_sim):
    data, cell = pattern(LARGE), flat_sim.alloc(0, LARGE)
    stream, other = flat_sim.stream_create(0, 0), flat_sim.stream_create(0, 0)
    begin = flat_sim.trace_start(0, 100)
    flat_sim.host_function(0, stream, lambda: time.sleep(0.01))
    flat_sim.copy(0, cell, address_of(data), LARGE, H2D, stream)
    event = flat_sim.event_record(0, stream)
    flat_sim.event_wait(0, event, 0, other)
    back = ctypes.create_string_buffer(LARGE)
    flat_sim.copy(0, ctypes.addressof(back), cell, 16, D2H, other)
    synchronize(flat_sim, 0, other)
    end = flat_sim.trace_stop(0)
    flat_sim.copy(0, cell, address_of(data), 16, H2D, stream)  # after the end
    synchronize(flat_sim, 0, stream)
    records, dropped = flat_sim.trace_read(0, 100)
    assert dropped == 0
    host, copy, wait, back_copy = sorted(records, key=lambda record: record.end_ns)
    assert [host.kind, copy.kind, wait.kind, back_copy.kind] == [
        TraceKind.HOST,
        TraceKind.COPY,
        TraceKind.WAIT,
        TraceKind.COPY,
    ]
    assert (copy.bytes, copy.copy_kind, copy.stream) == (LARGE, CopyKind.HOST_TO_DEVICE, stream)
    assert (back_copy.bytes, back_copy.copy_kind, back_copy.stream) == (16, CopyKind.DEVICE_TO_HOST, other)
    assert host.end_ns - host.start_ns >= 9_000_000
    for record in records:
        assert begin.device_ns <= record.start_ns <= record.end_ns <= end.device_ns
    wall, device = end.host_ns - begin.host_ns, end.device_ns - begin.device_ns
    assert abs(wall - device) < 1_000_000_000  # both clocks tell the same time
    assert flat_sim.trace_read(0, 100) == ([], 0)


def test_a_full_trace_counts_what_it_drops(flat_sim):
    data, cell = pattern(64), flat_sim.alloc(0, 64)
    flat_sim.trace_start(0, 3)
    for _ in range(5):
        flat_sim.copy(0, cell, address_of(data), 64, H2D, 0)
    flat_sim.trace_stop(0)
    first, dropped = flat_sim.trace_read(0, 2)
    rest, _ = flat_sim.trace_read(0, 2)
    assert (len(first), len(rest), dropped) == (2, 1, 2)


def test_wrong_use_of_a_trace(flat_sim):
    with pytest.raises(ValueError, match="not being traced"):
        flat_sim.trace_stop(0)
    for capacity in (0, 1 << 40):
        with pytest.raises(ValueError, match="allowed is 1 to"):
            flat_sim.trace_start(0, capacity)
    flat_sim.trace_start(0, 1)
    with pytest.raises(ValueError, match="traced already"):
        flat_sim.trace_start(0, 1)
    flat_sim.trace_stop(0)
    with pytest.raises(ValueError, match="does not exist"):
        flat_sim.trace_start(7, 1)


def test_a_trace_of_a_described_chip_is_on_its_clock(make_sim):
    sim = make_sim(
        "devices=1,memory=64M,bandwidth=1e9,link_bandwidth=1e6,link_latency_ns=1000,launch_ns=10,peak_flops.float32=1e9"
    )
    data, cell = pattern(1000), sim.alloc(0, 1000)
    sim.trace_start(0, 10)
    sim.copy(0, cell, address_of(data), 1000, H2D, 0)
    sim.trace_stop(0)
    [[record], _] = sim.trace_read(0, 10)
    assert record.end_ns - record.start_ns == 1000 + 1_000_000  # the latency, and 1000 bytes at 1 MB/s


# ---- events of two processes ----
def test_an_imported_event_completes_with_its_original(flat_sim):
    stream, other, gate, seen = flat_sim.stream_create(0, 0), flat_sim.stream_create(0, 0), threading.Event(), []
    flat_sim.host_function(0, stream, gate.wait)
    event = flat_sim.event_record(0, stream, EventFlags.INTERPROCESS)
    imported = flat_sim.event_import(1, flat_sim.event_export(0, event))
    flat_sim.event_wait(1, imported, 0, other)
    flat_sim.host_function(0, other, lambda: seen.append("after"))
    assert not flat_sim.event_query(1, imported)
    time.sleep(0.02)
    assert seen == []
    gate.set()
    flat_sim.event_wait(1, imported, 0, HOST)
    assert flat_sim.event_query(1, imported)
    synchronize(flat_sim, 0, other)
    assert seen == ["after"]
    flat_sim.event_destroy(0, event)
    assert flat_sim.event_query(1, imported)  # also once the original is forgotten, and its place used again
    again = flat_sim.event_record(0, stream, EventFlags.INTERPROCESS)
    assert flat_sim.event_query(1, imported)
    flat_sim.event_destroy(0, again)
    flat_sim.event_destroy(1, imported)


def test_many_events_of_two_processes(flat_sim):
    for _ in range(10_000):  # there is room for 4096 at a time
        flat_sim.event_destroy(0, flat_sim.event_record(0, 0, EventFlags.INTERPROCESS))
    held = [flat_sim.event_record(0, 0, EventFlags.INTERPROCESS) for _ in range(4096)]
    with pytest.raises(RuntimeError, match="no room"):
        flat_sim.event_record(0, 0, EventFlags.INTERPROCESS)
    for event in held:
        flat_sim.event_destroy(0, event)
    flat_sim.event_destroy(0, flat_sim.event_record(0, 0, EventFlags.INTERPROCESS))


WAITER = """
import sys
from bringup.drivers.sim import Driver
driver = Driver("devices=1,memory=16M")
driver.open(0)
event = driver.event_import(0, sys.argv[1])
print("waits" if not driver.event_query(0, event) else "done", flush=True)
driver.event_wait(0, event, 0, -1)
print("went on", flush=True)
"""


def test_another_process_waits(flat_sim):
    stream, gate = flat_sim.stream_create(0, 0), threading.Event()
    flat_sim.host_function(0, stream, gate.wait)
    event = flat_sim.event_record(0, stream, EventFlags.INTERPROCESS)
    command = [sys.executable, "-c", WAITER, flat_sim.event_export(0, event)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waits\n"
        gate.set()
        assert child.stdout.readline() == "went on\n"
    assert child.returncode == 0


def test_wrong_handles_of_events(flat_sim):
    plain = flat_sim.event_record(0, 0)
    with pytest.raises(ValueError, match="not recorded here as INTERPROCESS"):
        flat_sim.event_export(0, plain)
    for handle in ("", "nonsense", "1:2:3:4:zz", f"1:2:99999:4:{'0' * 32}"):
        with pytest.raises(ValueError, match="not a handle"):
            flat_sim.event_import(0, handle)
    event = flat_sim.event_record(0, 0, EventFlags.INTERPROCESS)
    pid, file, word, number, token = flat_sim.event_export(0, event).split(":")
    with pytest.raises(ValueError, match="no longer the exported memory"):
        flat_sim.event_import(0, ":".join([pid, file, word, number, "0" * 32]))
    with pytest.raises(ValueError, match="does not offer"):
        flat_sim.event_import(0, ":".join([pid, "9999", word, number, token]))
    imported = flat_sim.event_import(0, flat_sim.event_export(0, event))
    with pytest.raises(ValueError, match="not recorded here"):
        flat_sim.event_export(0, imported)
    with pytest.raises(NotImplementedError, match="flags"):
        flat_sim.event_record(0, 0, 8)
