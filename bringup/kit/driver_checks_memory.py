"""Driver checks of devices, allocation and copies."""

from __future__ import annotations

import ctypes
import threading
import time
from itertools import pairwise

from bringup.driver import DTYPES, CopyKind, DeviceSpec, Placement, PlacementKind
from bringup.driver.in_use import active_drivers
from bringup.driver.lookup import check_device_name
from bringup.kit.driver_checks import NoDevice, Probe, Skip, Wrong, check, difference, expect, pattern, threads

#: Asynchronous methods are useless one by one; so are these.
_TOGETHER = (
    ("target", "compile", "load", "launch"),
    (
        "stream_create",
        "stream_destroy",
        "event_record",
        "event_query",
        "event_wait",
        "event_elapsed",
        "event_destroy",
    ),
    ("host_alloc", "host_free"),
    ("host_register", "host_unregister"),
    ("event_export", "event_import"),
    ("graph_begin", "graph_end", "graph_launch", "graph_destroy"),
    ("trace_start", "trace_stop", "trace_read"),
    ("ipc_export", "ipc_import", "ipc_close"),
    ("comm_id", "comm_create", "comm_destroy"),
)


def _sizes(probe: Probe) -> list[int]:
    """Odd and even, below and above a page; at most an eighth of the device, because a check holds several at once."""
    return [nbytes for nbytes in (1, 3, 511, 512, 4097, (1 << 20) + 3) if nbytes <= probe.spec.memory_bytes // 8]


@check()
def device_count(probe: Probe) -> None:
    """device_count is an int, cheap, constant, and opens no device."""
    driver, seconds = probe.driver, []
    opened: list[int] = []
    answers: list[int] = []
    real_open = driver.open

    def watched_open(device: int) -> DeviceSpec:
        opened.append(device)
        spec: DeviceSpec = real_open(device)
        return spec

    driver.open = watched_open  # type: ignore[method-assign]
    try:
        for _ in range(20):
            start = time.perf_counter()
            answers.append(driver.device_count())
            seconds.append(time.perf_counter() - start)
    finally:
        del driver.open
    threads(1, lambda _: answers.append(driver.device_count()))
    count = answers[0]
    expect(isinstance(count, int) and 0 <= count <= 127, f"device_count() is {count!r}, not an int from 0 to 127")
    expect(set(answers) == {count}, f"device_count() is not constant: {sorted(set(answers))}")
    expect(not opened, "device_count() opened a device")
    expect(min(seconds[1:]) < 1e-3, f"device_count() takes {min(seconds[1:]) * 1e3:.1f} ms; PyTorch calls it often")
    if count == 0:
        raise NoDevice("there is no device on this machine")
    expect(probe.device < count, f"there is no device {probe.device}: device_count() is {count}")
    probe.session.count = count


@check(needs=("device_count",))
def groups(probe: Probe) -> None:
    """Methods that only make sense together are offered together."""
    for group in _TOGETHER:
        offered = [name for name in group if probe.driver.offers(name)]
        missing = [name for name in group if name not in offered]
        expect(not offered or not missing, f"offers {', '.join(offered)} but not {', '.join(missing)}")


@check(needs=("device_count",))
def torch_name(probe: Probe) -> None:
    """torch.device() can read the driver's name."""
    name = probe.driver.device_name or probe.driver.name
    in_use = any(name == driver.device_name for driver in active_drivers())  # torch.<name> is then the driver's own
    try:
        check_device_name(name, () if in_use else None)
    except ValueError as error:
        raise Wrong(str(error)) from None


@check(needs=("device_count",))
def open_spec(probe: Probe) -> None:
    """open returns a complete and sane DeviceSpec for every device."""
    for device in probe.devices:
        spec = probe.driver.open(device)
        expect(isinstance(spec, DeviceSpec), f"open({device}) returned {type(spec).__name__}, not a DeviceSpec")
        probe.session.specs[device] = spec
        expect(0 < len(spec.name.encode()) < 128, f"name {spec.name!r} must have 1 to 127 bytes")
        expect(spec.memory_bytes > 0, f"memory_bytes is {spec.memory_bytes}")
        align = spec.alignment
        expect(align > 0 and align & (align - 1) == 0, f"alignment {align} is not a power of two")
        unknown = set(spec.dtypes) - set(DTYPES)
        expect(not unknown, f"unknown dtypes {sorted(unknown)}; known: {', '.join(DTYPES)}")
        expect(spec.host_visible or not spec.host_library, "host_library needs host_visible")
        expect(spec.partitions >= 1, f"partitions is {spec.partitions}")
        flat = spec.partitions == 1
        expect(not flat or spec.default_placement == Placement(), "flat memory has the default placement SINGLE")
        sharded, block = spec.default_placement.kind == PlacementKind.SHARD, spec.default_placement.block
        expect(not sharded or (block > 0 and block % 8 == 0), f"block {block} is not a multiple of 8")
        expect(spec.peak_flops >= 0 and spec.peak_bandwidth >= 0, "peak_flops and peak_bandwidth must not be negative")
        expect(not spec.peer_copy or probe.driver.offers("copy_peer"), "peer_copy is set but copy_peer is not offered")
    probe.session.asynchronous = probe.session.events_work = probe.driver.offers("event_record")


@check(needs=("open_spec", "groups"))
def event_completes(probe: Probe) -> None:
    """Every recorded event completes: a query says so and a host wait returns."""
    probe.need("event_record", "event_query", "event_wait", "event_destroy")
    probe.session.events_work = False
    for number in range(32):
        event = probe.record(0)
        deadline = time.perf_counter() + 1.0
        while not probe.driver.event_query(probe.device, event):
            expect(time.perf_counter() < deadline, f"event {number + 1} on an idle stream is not complete after 1 s")
            time.sleep(1e-4)
        returns = _host_wait_returns(probe, event, 1.0)
        expect(returns, f"a host wait for event {number + 1}, which is complete, did not return in 1 s")
        expect(probe.driver.event_query(probe.device, event), "an event that was complete is not complete any more")
    probe.session.events_work = True


def _host_wait_returns(probe: Probe, event: int, seconds: float) -> bool:
    """Waits on a daemon thread, so that a lost wake-up costs a second and not the run."""
    returned: list[bool] = []

    def wait() -> None:
        probe.driver.event_wait(probe.device, event, probe.device, -1)
        returned.append(True)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(returned)


@check(needs=("open_spec",))
def alloc_alignment(probe: Probe) -> None:
    """Addresses are positive and aligned as the spec says."""
    for nbytes in (*_sizes(probe), 64, 100, 8192):
        address = probe.alloc(nbytes)
        is_int = isinstance(address, int) and not isinstance(address, bool)
        expect(is_int and 0 < address < 1 << 63, f"alloc({nbytes}) returned {address!r}, not a positive int")
        expect(address % probe.spec.alignment == 0, f"{address:#x} is not aligned to {probe.spec.alignment}")


@check(needs=("open_spec",))
def alloc_distinct(probe: Probe) -> None:
    """Blocks do not overlap: what is written into one does not change another."""
    blocks = [(probe.alloc(nbytes), nbytes) for nbytes in (1, 64, 100, 512, 4097, 65536) * 6]
    for (low, nbytes), (high, _) in pairwise(sorted(blocks)):
        expect(low + nbytes <= high, f"block {low:#x} of {nbytes} bytes reaches into block {high:#x}")
    for seed, (address, nbytes) in enumerate(blocks):
        probe.write(address, pattern(nbytes, seed))
    for seed, (address, nbytes) in enumerate(blocks):
        got = probe.read(address, nbytes)
        expect(got == pattern(nbytes, seed), f"block {seed}: {difference(got, pattern(nbytes, seed))}")


@check(needs=("open_spec",))
def free_any_order(probe: Probe) -> None:
    """Freeing one block leaves its neighbours alone, in any order."""
    blocks = {seed: probe.alloc(1000) for seed in range(24)}
    for seed, address in blocks.items():
        probe.write(address, pattern(1000, seed))
    for seed in (0, 23, 11, 5, 6, 7, 18):
        probe.free(blocks.pop(seed))
    for seed in range(100, 107):
        blocks[seed] = probe.alloc(1000)
        probe.write(blocks[seed], pattern(1000, seed))
    for seed, address in blocks.items():
        got = probe.read(address, 1000)
        expect(got == pattern(1000, seed), f"block {seed}: {difference(got, pattern(1000, seed))}")


@check(needs=("open_spec",))
def copy_round_trip(probe: Probe) -> None:
    """The bytes read back are the bytes written, and their neighbours are untouched."""
    for nbytes in _sizes(probe):
        for offset in (0, 1, 64, 127):
            room = nbytes + 256
            base, before, data = probe.alloc(room), pattern(room, 1), pattern(nbytes, 2)
            probe.write(base, before)
            probe.write(base, data, offset)
            expected = before[:offset] + data + before[offset + nbytes :]
            got = probe.read(base, room)
            what = f"host to device, {nbytes} bytes at offset {offset}"
            expect(got == expected, f"{what}: {difference(got, expected)}")
            guarded = probe.host(b"\x5a" * room)
            address, placement = probe.placed(base, offset, probe.device)
            to = ctypes.addressof(guarded) + 128
            probe.copy(probe.device, to, address, nbytes, CopyKind.DEVICE_TO_HOST, 0, placement)
            probe.wait()
            expected = b"\x5a" * 128 + data + b"\x5a" * 128
            what = f"device to host, {nbytes} bytes at offset {offset}"
            expect(guarded.raw == expected, f"{what}: {difference(guarded.raw, expected)}")
            probe.free(base)


@check(needs=("open_spec", "copy_round_trip"))
def copy_nothing(probe: Probe) -> None:
    """A copy of no bytes changes nothing."""
    base, data = probe.alloc(64), pattern(64, 3)
    probe.write(base, data)
    probe.write(base, b"")
    probe.read(base, 0)
    probe.move(base, base, 0)
    expect(probe.read(base, 64) == data, "the bytes changed")


@check(needs=("open_spec", "copy_round_trip"))
def copy_device_to_device(probe: Probe) -> None:
    """Device-to-device copies move exactly the bytes asked for."""
    offsets = ((0, 0), (1, 0), (64, 3), (5, 64)) if probe.spec.partitions == 1 else ((0, 0),)
    for nbytes in _sizes(probe):
        for to, of in offsets:
            room = nbytes + 128
            source, target = probe.alloc(room), probe.alloc(room)
            probe.write(source, pattern(room, 4))
            probe.write(target, pattern(room, 5))
            probe.move(target + to, source + of, nbytes)
            probe.wait()
            expected = pattern(room, 5)[:to] + pattern(room, 4)[of : of + nbytes] + pattern(room, 5)[to + nbytes :]
            got = probe.read(target, room)
            expect(got == expected, f"{nbytes} bytes from offset {of} to {to}: {difference(got, expected)}")
            got = probe.read(source, room)
            expect(got == pattern(room, 4), f"the source changed: {difference(got, pattern(room, 4))}")
            probe.free(source)
            probe.free(target)


@check(needs=("open_spec", "copy_round_trip"))
def host_visible(probe: Probe) -> None:
    """Host-visible memory is really readable and writable by the CPU."""
    if not probe.spec.host_visible:
        raise Skip("the memory is not host visible")
    data, base = pattern(5000, 6), probe.alloc(5000)
    probe.write(base, data)
    got = ctypes.string_at(base + probe.spec.host_offset, 5000)
    expect(got == data, f"read by the CPU: {difference(got, data)}")
    ctypes.memmove(base + probe.spec.host_offset, pattern(5000, 7), 5000)
    got = probe.read(base, 5000)
    expect(got == pattern(5000, 7), f"written by the CPU: {difference(got, pattern(5000, 7))}")


@check(needs=("open_spec", "copy_round_trip"))
def every_device(probe: Probe) -> None:
    """Every device has its own memory."""
    blocks = {device: probe.alloc(4097, device) for device in probe.devices}
    for device, base in blocks.items():
        probe.write(base, pattern(4097, device), device=device)
    for device, base in blocks.items():
        got = probe.read(base, 4097, device=device)
        expect(got == pattern(4097, device), f"device {device}: {difference(got, pattern(4097, device))}")


@check(needs=("open_spec", "copy_round_trip"))
def host_memory(probe: Probe) -> None:
    """Pinned host memory can be written by the CPU and copied."""
    probe.need("host_alloc", "host_free")
    data, base = pattern(5000, 8), probe.alloc(5000)
    pointer = probe.driver.host_alloc(5000)
    expect(pointer > 0, f"host_alloc returned {pointer}")
    try:
        ctypes.memmove(pointer, data, 5000)
        address, placement = probe.placed(base, 0, probe.device)
        probe.copy(probe.device, address, pointer, 5000, CopyKind.HOST_TO_DEVICE, 0, placement)
        probe.wait()
        got = probe.read(base, 5000)
        expect(got == data, difference(got, data))
    finally:
        probe.driver.host_free(pointer)


@check(needs=("open_spec",))
def memory_info(probe: Probe) -> None:
    """memory_info never has more free than there is, and an allocation takes its part of it."""
    probe.need("memory_info")
    before, total = probe.driver.memory_info(probe.device)
    expect(0 <= before <= total, f"{before} bytes free of {total}")
    size = min(1 << 20, before // 2)
    address = probe.driver.alloc(probe.device, size)
    try:
        left, again = probe.driver.memory_info(probe.device)
    finally:
        probe.driver.free(probe.device, address)
    expect(again == total, f"the total changed from {total} to {again}")
    expect(left <= before - size, f"{before} bytes were free, and {left} are after an allocation of {size}")


@check(needs=("open_spec", "copy_round_trip"))
def copy_peer(probe: Probe) -> None:
    """copy_peer moves bytes between every two devices, or those that can_access_peer names."""
    probe.need("copy_peer")
    if not probe.spec.peer_copy:
        raise Skip("the spec says peer_copy=False")
    here = probe.device
    for other in probe.devices:
        if probe.driver.offers("can_access_peer") and not probe.driver.can_access_peer(other, here):
            continue
        mine, theirs = probe.alloc(4097), probe.alloc(4097, other)
        probe.write(mine, pattern(4097, 10 + other))
        probe.write(theirs, bytes(4097), device=other)
        probe.driver.copy_peer(other, theirs, here, mine, 4000, 0)
        probe.wait(0, here)
        probe.wait(0, other)
        expected = pattern(4097, 10 + other)[:4000] + bytes(97)
        got = probe.read(theirs, 4097, device=other)
        expect(got == expected, f"device {here} to {other}: {difference(got, expected)}")


@check(needs=("open_spec",))
def placements(probe: Probe) -> None:
    """On partitioned memory every placement keeps the bytes, and relayout moves them."""
    if probe.spec.partitions == 1:
        raise Skip("the memory is flat")
    kinds = [Placement(), Placement(PlacementKind.REPLICATE), Placement(PlacementKind.SHARD, 64),
             Placement(PlacementKind.SHARD, 8)]  # fmt: skip
    nbytes, room = 4000, 8192
    for number, kind in enumerate(kinds):
        base, data = probe.alloc(room), pattern(nbytes, number)
        _placed_copy(probe, base, data, kind)
        expect(_placed_read(probe, base, nbytes, kind) == data, f"bytes written as {kind} come back changed")
        if not probe.driver.offers("relayout"):
            continue
        for other in kinds:
            moved = probe.alloc(room)
            probe.driver.relayout(probe.device, moved, other, base, kind, nbytes, 0)
            probe.wait()
            got = _placed_read(probe, moved, nbytes, other)
            expect(got == data, f"relayout from {kind} into {other}: {difference(got, data)}")


def _placed_copy(probe: Probe, base: int, data: bytes, kind: Placement) -> None:
    source = ctypes.addressof(probe.host(data))
    probe.copy(probe.device, base, source, len(data), CopyKind.HOST_TO_DEVICE, 0, kind)
    probe.wait()


def _placed_read(probe: Probe, base: int, nbytes: int, kind: Placement) -> bytes:
    buffer = probe.host(bytes(nbytes))
    probe.copy(probe.device, ctypes.addressof(buffer), base, nbytes, CopyKind.DEVICE_TO_HOST, 0, kind)
    probe.wait()
    return buffer.raw


@check(needs=("open_spec",))
def ipc(probe: Probe) -> None:
    """An allocation can be exported to another process."""
    probe.need("ipc_export", "ipc_import", "ipc_close")
    handle = probe.driver.ipc_export(probe.device, probe.alloc(4096))
    expect(isinstance(handle, str) and 0 < len(handle) < 1024, f"ipc_export returned {handle!r}")
