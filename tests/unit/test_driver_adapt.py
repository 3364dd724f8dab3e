"""A Python driver works behind C function pointers, and nothing it raises escapes to C."""

from __future__ import annotations

import ctypes
import re
import threading
from ctypes import POINTER, byref, c_double, c_int32, c_uint64, c_void_p
from pathlib import Path

import pytest

from bringup.driver import (
    CallSpec,
    ClockPair,
    CopyKind,
    DeviceLost,
    DeviceSpec,
    Driver,
    DriverAbsent,
    EventFlags,
    HostFlags,
    Launch,
    LibraryOp,
    NumberArgument,
    Placement,
    PlacementKind,
    Reduction,
    TensorArgument,
    TensorSpec,
    TraceKind,
    TraceRecord,
    c_functions,
)
from bringup.driver import c_struct as abi
from bringup.driver.abi import DriverError, DriverStruct, adapt, struct_of
from bringup.driver.c_calls import call_struct, trace_records_from
from bringup.driver.c_functions import _binaries
from tests.c_compiler import compile_c


class Small(Driver):
    name = "small"

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.result: object = 4096
        self.error: BaseException | None = None

    def device_count(self) -> int:
        return 2

    def open(self, device: int) -> DeviceSpec:
        return self.result  # type: ignore[return-value]

    def alloc(self, device: int, nbytes: int) -> int:
        self.calls.append(("alloc", device, nbytes))
        if self.error:
            raise self.error
        return self.result  # type: ignore[return-value]

    def free(self, device: int, address: int) -> None:
        self.calls.append(("free", device, address))

    def copy(self, device, dst, src, nbytes, kind, stream):  # type: ignore[no-untyped-def, override]
        self.calls.append(("copy", device, dst, src, nbytes, kind, stream))


class Full(Small):
    """Writes every optional method; ``calls`` records what arrives."""

    name = "full"
    records = (
        TraceRecord(TraceKind.KERNEL, 1, 2, 3, 4, "mm", 5),
        TraceRecord(TraceKind.COPY, 6, 7, 0, bytes=8, copy_kind=CopyKind.DEVICE_TO_HOST),
    )

    def copy(self, device, dst, src, nbytes, kind, stream, placement=None):  # type: ignore[no-untyped-def, override]
        self.calls.append(("copy", device, dst, src, nbytes, kind, stream, placement))

    # fmt: off
    def target(self): return "c; vector=512"
    def compile(self, source): return source.encode() + b"\0\1"
    def load(self, *args): self.calls.append(("load", *args)); return 7  # noqa: E702
    def launch(self, *args): self.calls.append(("launch", *args))
    def stream_create(self, device, priority): return 3 + priority
    def stream_destroy(self, *args): self.calls.append(("stream_destroy", *args))
    def event_record(self, device, stream): return 100 + stream
    def library_op(self, device, call): self.calls.append(("library_op", device, call)); return LibraryOp(64, 7, 512)  # noqa: E702
    def event_query(self, device, event): return event == 100
    def event_wait(self, *args): self.calls.append(("event_wait", *args))
    def event_elapsed(self, device, start, end): return end - start
    def event_destroy(self, *args): self.calls.append(("event_destroy", *args))
    def event_export(self, device, event): return f"event {event}"
    def event_import(self, device, handle): return int(handle.split()[1])
    def graph_begin(self, *args): self.calls.append(("graph_begin", *args))
    def graph_end(self, *args): self.calls.append(("graph_end", *args)); return 33  # noqa: E702
    def graph_launch(self, *args): self.calls.append(("graph_launch", *args))
    def graph_destroy(self, *args): self.calls.append(("graph_destroy", *args))
    def trace_start(self, device, capacity): return ClockPair(device, capacity)
    def trace_stop(self, device): return ClockPair(5, 6)
    def trace_read(self, device, limit): return self.records, 2
    def host_register(self, *args): self.calls.append(("host_register", *args))
    def host_unregister(self, *args): self.calls.append(("host_unregister", *args))
    def clock(self, device): return 1 << 40
    def charge(self, *args): self.calls.append(("charge", *args))
    def memory_info(self, device): return 3, 1 << 40
    def can_access_peer(self, device, peer): return peer == 1
    def copy_peer(self, *args): self.calls.append(("copy_peer", *args))
    def relayout(self, *args): self.calls.append(("relayout", *args))
    def host_alloc(self, nbytes): return nbytes * 64
    def host_free(self, *args): self.calls.append(("host_free", *args))
    def ipc_export(self, device, address): return f"{device}:{address}"
    def ipc_import(self, device, handle): return int(handle.split(":")[1])
    def ipc_close(self, *args): self.calls.append(("ipc_close", *args))
    def host_function(self, device, stream, function): function(); self.calls.append(("ran", device, stream))  # noqa: E702
    def comm_id(self, device): return f"group of {device}"
    def comm_create(self, *args): self.calls.append(("comm_create", *args)); return 44  # noqa: E702
    def comm_destroy(self, *args): self.calls.append(("comm_destroy", *args))
    def all_reduce(self, *args): self.calls.append(("all_reduce", *args))
    def broadcast(self, *args): self.calls.append(("broadcast", *args))
    def all_gather(self, *args): self.calls.append(("all_gather", *args))
    def reduce_scatter(self, *args): self.calls.append(("reduce_scatter", *args))
    def close(self, *args): self.calls.append(("close", *args))
    # fmt: on


def last_error(struct: DriverStruct) -> str:
    text = ctypes.create_string_buffer(1024)
    struct.last_error(struct.self, ctypes.addressof(text), 1024)
    return text.value.decode()


def test_only_written_methods_are_offered() -> None:
    struct = DriverStruct.from_address(adapt(Small()).address)
    offered = {name for name in c_functions.FUNCTIONS if getattr(struct, name)}
    assert offered == {"device_count", "open", "alloc", "free", "copy", "last_error"}
    struct = DriverStruct.from_address(adapt(Full()).address)
    assert all(getattr(struct, name) for name in c_functions.FUNCTIONS)
    assert (struct.abi_version, struct.struct_size) == (2, ctypes.sizeof(DriverStruct))


def test_a_driver_without_a_required_method_is_refused() -> None:
    class Half(Driver):
        name = "half_written"

        def device_count(self) -> int:
            return 1

    with pytest.raises(DriverError, match=r"'half_written'.*needs: open, alloc, free, copy"):
        adapt(Half())


def test_every_function_reaches_the_driver() -> None:
    driver = Full()
    s = adapt(driver).struct
    u64, text, pointer = c_uint64(), ctypes.create_string_buffer(64), c_void_p()
    assert s.device_count(None) == 2
    assert s.alloc(None, 1, 256, byref(u64)) == abi.OK
    assert u64.value == 4096
    assert s.free(None, 1, 1 << 63) == abi.OK
    where = abi.PlacementStruct(2, 0, 64, 8)
    assert s.copy(None, 0, 1, 2, 3, 1, 9, byref(where)) == abi.OK
    assert s.copy(None, 0, 1, 2, 3, 0, 9, None) == abi.OK
    assert s.target(None, ctypes.addressof(text), 64) == abi.OK
    assert text.value == b"c; vector=512"
    assert s.load(None, 0, ctypes.addressof(text), 3, b"main", byref(u64)) == abi.OK
    assert u64.value == 7
    args = (c_uint64 * 2)(5, 6)
    given = {"arg_count": 2, "address_count": 1, "grid": 4, "stream": 9, "flops": 1.5, "bytes": 2.5}
    launch = abi.LaunchStruct(**given, block=64, local_bytes=512, name=b"main", correlation=11)
    launch.args = ctypes.cast(args, POINTER(c_uint64))
    assert s.launch(None, 0, 7, byref(launch)) == abi.OK
    assert s.stream_create(None, 0, -1, byref(u64)) == abi.OK
    assert u64.value == 2
    assert s.event_record(None, 0, 5, 0, byref(u64)) == abi.OK
    assert u64.value == 105
    done, ms = c_int32(), c_double()
    assert s.event_query(None, 0, 100, byref(done)) == abi.OK
    assert done.value == 1
    assert s.event_wait(None, 0, 105, 1, -1) == abi.OK
    assert s.event_elapsed(None, 0, 5, 9, byref(ms)) == abi.OK
    assert ms.value == 4.0
    assert s.clock(None, 0, byref(u64)) == abi.OK
    assert u64.value == 1 << 40
    assert s.charge(None, 0, 1, 8, 2.0, 3.0) == abi.OK
    total = c_uint64()
    assert s.memory_info(None, 0, byref(u64), byref(total)) == abi.OK
    assert (u64.value, total.value) == (3, 1 << 40)
    assert s.can_access_peer(None, 0, 1, byref(done)) == abi.OK
    assert done.value == 1
    assert s.can_access_peer(None, 0, 2, byref(done)) == abi.OK
    assert done.value == 0
    assert s.copy_peer(None, 1, 2, 3, 4, 5, 6) == abi.OK
    assert s.relayout(None, 0, 1, byref(where), 2, byref(abi.PlacementStruct(1, 0, 0, 0)), 3, 4) == abi.OK
    assert s.host_alloc(None, 2, 0, 1, byref(pointer)) == abi.OK
    assert pointer.value == 128
    assert s.host_free(None, 128) == abi.OK
    assert s.ipc_export(None, 1, 4096, ctypes.addressof(text), 64) == abi.OK
    assert text.value == b"1:4096"
    assert s.ipc_import(None, 1, b"1:4096", byref(u64)) == abi.OK
    assert u64.value == 4096
    assert s.ipc_close(None, 1, 4096) == abi.OK
    assert s.close(None, 1) == abi.OK
    assert s.stream_destroy(None, 0, 2) == abi.OK
    assert s.event_destroy(None, 0, 105) == abi.OK
    shard = Placement(PlacementKind.SHARD, 64, 8)
    for call in [
        ("alloc", 1, 256),
        ("free", 1, 1 << 63),
        ("copy", 0, 1, 2, 3, CopyKind.DEVICE_TO_HOST, 9, shard),
        ("copy", 0, 1, 2, 3, CopyKind.HOST_TO_DEVICE, 9, None),
        ("load", 0, b"c; ", "main"),
        ("launch", 0, 7, Launch((5, 6), 4, 9, 1.5, 2.5, None, 1, 64, 512, "main", 11)),
        ("event_wait", 0, 105, 1, -1),
        ("charge", 0, 1, 8, 2.0, 3.0),
        ("copy_peer", 1, 2, 3, 4, 5, 6),
        ("relayout", 0, 1, shard, 2, Placement(PlacementKind.REPLICATE), 3, 4),
        ("host_free", 128),
        ("ipc_close", 1, 4096),
        ("close", 1),
        ("stream_destroy", 0, 2),
        ("event_destroy", 0, 105),
    ]:
        assert call in driver.calls


def test_later_groups_reach_the_driver() -> None:
    driver = Full()
    s = adapt(driver).struct
    u64, text = c_uint64(), ctypes.create_string_buffer(64)
    assert s.event_export(None, 0, 105, ctypes.addressof(text), 64) == abi.OK
    assert text.value == b"event 105"
    assert s.event_import(None, 0, b"event 106", byref(u64)) == abi.OK
    assert u64.value == 106
    assert s.event_import(None, 0, b"event x", byref(u64)) == abi.INVALID
    assert s.graph_begin(None, 0, 3) == abi.OK
    assert s.graph_end(None, 0, 3, byref(u64)) == abi.OK
    assert u64.value == 33
    assert s.graph_launch(None, 0, 33, 4, 5) == abi.OK
    assert s.graph_destroy(None, 0, 33) == abi.OK
    assert s.host_register(None, 4096, 64, 1, int(HostFlags.PORTABLE | HostFlags.MAPPED)) == abi.OK
    assert s.host_unregister(None, 4096) == abi.OK
    clocks = abi.ClockPairStruct()
    assert s.trace_start(None, 1, 100, byref(clocks)) == abi.OK
    assert (clocks.device_ns, clocks.host_ns) == (1, 100)
    assert s.trace_stop(None, 1, byref(clocks)) == abi.OK
    records, dropped = (abi.TraceRecordStruct * 2)(), c_uint64()
    assert s.trace_read(None, 0, records, 2, byref(u64), byref(dropped)) == abi.OK
    assert (u64.value, dropped.value) == (2, 2)
    assert tuple(trace_records_from(records)) == driver.records
    assert s.trace_read(None, 0, records, 1, byref(u64), byref(dropped)) == abi.INVALID  # more than there is room for
    for call in [
        ("graph_begin", 0, 3),
        ("graph_launch", 0, 33, 4, 5),
        ("graph_destroy", 0, 33),
        ("host_register", 4096, 64, 1, HostFlags.PORTABLE | HostFlags.MAPPED),
        ("host_unregister", 4096),
    ]:
        assert call in driver.calls


def test_a_call_of_an_op_crosses_as_it_is() -> None:
    driver = Full()
    s = adapt(driver).struct
    op = abi.LibraryOpStruct(struct_size=ctypes.sizeof(abi.LibraryOpStruct))
    arguments = {
        "self": TensorArgument((0,)),
        "tensors": TensorArgument((1, 0)),
        "alpha": NumberArgument(0),
        "stride": [1, 2],
        "eps": 0.5,
        "mode": "tanh",
        "bias": None,
    }
    tensors = (
        TensorSpec("float32", (2, 3), (3, 1)),
        TensorSpec("int64", (), ()),
        TensorSpec("bool", (4,), (1,), PlacementKind.SHARD),
    )
    call = CallSpec("aten::conv", tensors, 1, arguments)
    assert s.library_op(None, 1, byref(call_struct(call)), byref(op)) == abi.OK
    assert (op.function, op.context, op.workspace_bytes) == (64, 7, 512)
    assert driver.calls[-1] == ("library_op", 1, call)
    assert call.outputs == tensors[2:]


@pytest.mark.parametrize("result", [None, LibraryOp(0), LibraryOp(64, workspace_bytes=-1)])
def test_a_wrong_library_op_is_an_error(result: object) -> None:
    class Wrong(Full):
        def library_op(self, device, call):  # type: ignore[no-untyped-def, override]
            return result

    op = abi.LibraryOpStruct()
    call = call_struct(CallSpec("aten::mm", (), 0, {}))
    assert adapt(Wrong()).struct.library_op(None, 0, byref(call), byref(op)) == abi.INVALID
    assert not op.function


def test_flags_reach_only_a_method_that_takes_them() -> None:
    """A driver of before has event_record(device, stream) and host_alloc(nbytes)."""

    class Flagged(Full):
        def event_record(self, device, stream, flags=EventFlags.NONE):  # type: ignore[no-untyped-def, override]
            return 1 + int(flags)

        def host_alloc(self, nbytes, device=0, flags=HostFlags.NONE):  # type: ignore[no-untyped-def, override]
            return 64 * (nbytes + device + flags)

    u64, pointer = c_uint64(), c_void_p()
    for driver, event, memory in ((Full(), 100, 128), (Flagged(), 4, 64 * (2 + 3 + 5))):
        s = adapt(driver).struct
        assert s.event_record(None, 0, 0, 3, byref(u64)) == abi.OK
        assert s.host_alloc(None, 2, 3, 5, byref(pointer)) == abi.OK
        assert (u64.value, pointer.value) == (event, memory)


def test_a_lost_device_is_a_status_of_its_own() -> None:
    driver = Full()
    driver.error = DeviceLost("fell off the bus")
    assert adapt(driver).struct.alloc(None, 0, 64, byref(c_uint64())) == abi.DEVICE_LOST
    assert isinstance(abi.exception_of(abi.DEVICE_LOST, "x"), DeviceLost)


def test_launch_with_placements_and_without_arguments() -> None:
    driver = Full()
    struct = adapt(driver).struct
    args, where = (c_uint64 * 1)(5), (abi.PlacementStruct * 1)(abi.PlacementStruct(1, 0, 0, 16))
    struct.launch(None, 0, 7, byref(abi.LaunchStruct(arg_count=1, args=args, grid=1, placements=where)))
    struct.launch(None, 0, 7, byref(abi.LaunchStruct(grid=1)))
    assert driver.calls[0][3].placements == (Placement(PlacementKind.REPLICATE, 0, 16),)  # type: ignore[attr-defined]
    assert driver.calls[1][3].args == ()  # type: ignore[attr-defined]


def test_compiled_bytes_live_until_binary_free() -> None:
    binary, nbytes, free = c_void_p(), c_uint64(), c_void_p()
    before = len(_binaries)
    assert adapt(Full()).struct.compile(None, b"int x;", byref(binary), byref(nbytes), byref(free)) == abi.OK
    assert len(_binaries) == before + 1
    assert ctypes.string_at(binary, nbytes.value) == b"int x;\0\1"
    c_functions.VOID_CALL(free.value)(binary)
    assert len(_binaries) == before


def test_collectives_arrive_with_dtype_and_reduction() -> None:
    driver = Full()
    s, u64, text = adapt(driver).struct, c_uint64(), ctypes.create_string_buffer(64)
    assert s.comm_id(None, 1, ctypes.addressof(text), 64) == abi.OK
    assert text.value == b"group of 1"
    assert s.comm_create(None, 1, b"group of 1", 2, 4, 5000, byref(u64)) == abi.OK
    assert u64.value == 44
    assert s.all_reduce(None, 1, 44, 8, 16, 3, abi.DTYPES.index("bfloat16"), 4, 7) == abi.OK
    assert s.reduce_scatter(None, 1, 44, 8, 16, 3, abi.DTYPES.index("int64"), 0, 7) == abi.OK
    assert s.broadcast(None, 1, 44, 8, 99, 3, 7) == abi.OK
    assert s.all_gather(None, 1, 44, 8, 16, 99, 7) == abi.OK
    assert s.comm_destroy(None, 1, 44) == abi.OK
    assert driver.calls == [
        ("comm_create", 1, "group of 1", 2, 4, 5000),
        ("all_reduce", 1, 44, 8, 16, 3, "bfloat16", Reduction.MAX, 7),
        ("reduce_scatter", 1, 44, 8, 16, 3, "int64", Reduction.SUM, 7),
        ("broadcast", 1, 44, 8, 99, 3, 7),
        ("all_gather", 1, 44, 8, 16, 99, 7),
        ("comm_destroy", 1, 44),
    ]
    assert s.all_reduce(None, 1, 44, 8, 16, 3, 0, 99, 7) == abi.INVALID  # no such reduction


def test_host_function_calls_the_c_function_with_its_argument() -> None:
    driver, seen = Full(), []
    function = c_functions.VOID_CALL(seen.append)
    assert adapt(driver).struct.host_function(None, 0, 3, ctypes.cast(function, c_void_p), 1234) == abi.OK
    assert seen == [1234]
    assert driver.calls == [("ran", 0, 3)]
    assert adapt(driver).struct.host_function(None, 0, 3, None, 1234) == abi.INVALID


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (MemoryError("no room"), abi.OUT_OF_MEMORY, "small.alloc: MemoryError: no room"),
        (ValueError("bad"), abi.INVALID, "small.alloc: ValueError: bad"),
        (TypeError("bad"), abi.INVALID, "small.alloc: TypeError: bad"),
        (NotImplementedError(), abi.UNSUPPORTED, "small.alloc: NotImplementedError"),
        (DriverAbsent("no /dev/chip"), abi.ABSENT, "small.alloc: DriverAbsent: no /dev/chip"),
        (OSError(5, "I/O"), abi.ERROR, "small.alloc: OSError: [Errno 5] I/O"),
        (KeyboardInterrupt(), abi.ERROR, "small.alloc: KeyboardInterrupt"),
        (SystemExit(3), abi.ERROR, "small.alloc: SystemExit: 3"),
        (Unprintable(), abi.ERROR, "small.alloc: Unprintable: (its text cannot be printed)"),
    ],
)
def test_every_exception_becomes_a_status(error: BaseException, status: int, message: str) -> None:
    driver = Small()
    driver.error = error
    struct = adapt(driver).struct
    assert struct.alloc(None, 0, 1, byref(c_uint64())) == status
    assert last_error(struct) == message


@pytest.mark.parametrize("result", [None, 0, -1, "4096", 1.5, True, 1 << 64])
def test_alloc_must_return_an_address(result: object) -> None:
    driver = Small()
    driver.result = result
    struct = adapt(driver).struct
    assert struct.alloc(None, 0, 1, byref(c_uint64())) == abi.INVALID
    assert re.match(r"small\.alloc: (Type|Value)Error: must return an int", last_error(struct))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "must return a DeviceSpec, not NoneType"),
        ({"name": "x"}, "must return a DeviceSpec, not dict"),
        (DeviceSpec("x", 0), "memory_bytes must be positive"),
        (DeviceSpec("x", 1, alignment=48), "alignment must be a power of two, not 48"),
        (DeviceSpec("x", 1, dtypes=("float32", "float31")), "unknown dtypes ['float31']"),
        (DeviceSpec("x", 1, partitions=0), "partitions must be at least 1"),
    ],
)
def test_open_must_return_a_sane_spec(result: object, message: str) -> None:
    driver = Small()
    driver.result = result
    struct = adapt(driver).struct
    assert struct.open(None, 0, byref(abi.DeviceSpecStruct())) == abi.INVALID
    assert last_error(struct).startswith("small.open: ")
    assert message in last_error(struct)


def test_a_spec_survives_the_round_trip() -> None:
    driver = Small()
    driver.result = spec = DeviceSpec(
        "Chip µ",
        1 << 40,
        256,
        ("bool", "float32", "quantized"),
        True,
        -4096,
        True,
        8,
        Placement(PlacementKind.SHARD, 64, 0),
        True,
        (7, 5),
        1e12,
        2e9,
    )
    out = abi.DeviceSpecStruct()
    assert adapt(driver).struct.open(None, 0, byref(out)) == abi.OK
    assert abi.spec_from(out) == spec


def test_a_long_device_name_is_cut_at_a_character() -> None:
    driver = Small()
    driver.result = DeviceSpec("µ" * 100, 1)
    out = abi.DeviceSpecStruct()
    assert adapt(driver).struct.open(None, 0, byref(out)) == abi.OK
    assert out.name.decode() == "µ" * 63


def test_device_count_never_raises_and_is_asked_once() -> None:
    class Raises(Small):
        asked = 0

        def device_count(self) -> int:
            self.asked += 1
            raise OSError("no bus")

    driver = Raises()
    adapted = adapt(driver)
    assert [adapted.struct.device_count(None) for _ in range(3)] == [0, 0, 0]
    assert isinstance(adapted.count_error, OSError)
    assert driver.asked == 1
    assert last_error(adapted.struct) == "raises.device_count: OSError: no bus".replace("raises", "small")


def test_copy_without_a_placement_parameter() -> None:
    driver = Small()
    struct = adapt(driver).struct
    assert struct.copy(None, 0, 1, 2, 3, 2, 0, None) == abi.OK
    assert driver.calls == [("copy", 0, 1, 2, 3, CopyKind.DEVICE_TO_DEVICE, 0)]
    assert struct.copy(None, 0, 1, 2, 3, 2, 0, byref(abi.PlacementStruct())) == abi.INVALID
    assert "has no placement parameter" in last_error(struct)
    assert struct.copy(None, 0, 1, 2, 3, 3, 0, None) == abi.INVALID


def test_last_error_belongs_to_its_thread() -> None:
    driver = Small()
    struct = adapt(driver).struct
    barrier, seen = threading.Barrier(4), {}

    def work(number: int) -> None:
        driver_error = ValueError(f"thread {number}")
        with lock:
            driver.error = driver_error
            struct.alloc(None, 0, 1, byref(c_uint64()))
        barrier.wait(10)
        seen[number] = last_error(struct)

    lock = threading.Lock()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {n: f"small.alloc: ValueError: thread {n}" for n in range(4)}
    assert last_error(struct) == ""


FOREIGN_THREAD = """
#include <bringup/driver.h>
#include <pthread.h>
static char message[256];
static void *work(void *d) {
  bringup_driver *driver = d;
  uint64_t address;
  if (driver->alloc(driver->self, 0, 1, &address) != BRINGUP_OK)
    driver->last_error(driver->self, message, sizeof message);
  return 0;
}
const char *run(bringup_driver *driver) {
  pthread_t thread;
  pthread_create(&thread, 0, work, driver);
  pthread_join(thread, 0);
  return message;
}
"""


def test_last_error_on_a_thread_python_did_not_start(tmp_path: Path) -> None:
    library = ctypes.CDLL(str(compile_c(tmp_path, FOREIGN_THREAD, "-shared", "-fPIC")))
    library.run.restype, library.run.argtypes = ctypes.c_char_p, [c_void_p]
    driver = Small()
    driver.error = ValueError("far away")
    assert library.run(adapt(driver).address) == b"small.alloc: ValueError: far away"


def test_text_that_does_not_fit() -> None:
    struct = adapt(Full()).struct
    text = ctypes.create_string_buffer(b"\xff" * 8, 8)
    assert struct.target(None, ctypes.addressof(text), 4) == abi.INVALID
    assert text.raw[4:] == b"\xff" * 4
    driver = Small()
    driver.error = ValueError("x" * 1000)
    struct = adapt(driver).struct
    struct.alloc(None, 0, 1, byref(c_uint64()))
    struct.last_error(None, ctypes.addressof(text), 8)
    assert text.raw == b"small.a\0"
    struct.last_error(None, None, 8)
    struct.last_error(None, ctypes.addressof(text), 0)


def test_struct_of_gives_one_struct_per_driver() -> None:
    driver = Small()
    assert struct_of(driver) == struct_of(driver) != struct_of(Small())
