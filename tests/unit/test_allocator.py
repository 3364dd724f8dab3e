"""The caching allocator against a model: hypothesis drives it through ctypes on a device that is only numbers."""

import ctypes
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_uint64, c_void_p
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

ROOT = Path(__file__).resolve().parents[2]
MiB = 1 << 20
OK, OUT_OF_MEMORY, INVALID = 0, 2, 3
SETS = ["allocation", "segment", "active", "inactive_split"]
SETS += ["allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"]
COUNTERS = ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"]
SIGNATURES = {  # name: (result, arguments)
    "session_new": (c_void_p, [c_uint64]),
    "session_delete": (None, [c_void_p]),
    "last_message": (c_char_p, []),
    "allocate": (c_int32, [c_void_p, c_uint64, c_int32, POINTER(c_void_p)]),
    "release": (None, [c_void_p, c_void_p]),
    "record_stream": (None, [c_void_p, c_void_p, c_int32]),
    "address": (c_uint64, [c_void_p]),
    "size": (c_uint64, [c_void_p]),
    "find": (c_void_p, [c_void_p, c_uint64]),
    "empty_cache": (c_int32, [c_void_p]),
    "set_fraction": (c_int32, [c_void_p, c_double]),
    "reset_peak": (None, [c_void_p]),
    "reset_accumulated": (None, [c_void_p]),
    "stats": (c_uint64, [c_void_p, c_void_p]),
    "snapshot": (c_uint64, [c_void_p, c_void_p, c_uint64]),
    "device_used": (c_uint64, [c_void_p]),
    "device_segments": (c_uint64, [c_void_p]),
    "device_events": (c_int64, [c_void_p]),
    "recorded": (c_uint64, [c_void_p, c_int32]),
    "completed": (c_uint64, [c_void_p, c_int32]),
    "complete": (None, [c_void_p, c_int32]),
    "refuse_events": (None, [c_void_p, c_int32]),
    "set_hook": (None, [c_void_p, c_void_p]),
}

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def typed(library):
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@pytest.fixture(scope="session")
def library_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("allocator") / "allocator.so"
    runtime = ROOT / "bringup/csrc/runtime"
    sources = [ROOT / "tests/unit/allocator_shim.cpp"]
    sources += [runtime / name for name in ("allocator.cpp", "block_pool.cpp")]
    includes = [f"-I{ROOT / 'bringup/csrc'}", f"-I{ROOT / 'bringup/include'}"]
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-pthread"]
    subprocess.run(["g++", *flags, *includes, *map(str, sources), "-o", str(path)], check=True)
    return str(path)


@pytest.fixture(scope="session")
def library(library_path):
    return typed(ctypes.CDLL(library_path))


class Allocator:
    """The C++ allocator on its own pretended device; a failed call returns its status and message."""

    def __init__(self, library, memory):
        self.library, self.memory = library, memory
        self.session = library.session_new(memory)

    def __getattr__(self, name):
        function = getattr(self.library, name)
        return lambda *arguments: function(self.session, *arguments)

    def allocate(self, nbytes, stream=0):
        block = c_void_p()
        status = self.library.allocate(self.session, nbytes, stream, byref(block))
        if status != OK:
            return None, status, self.library.last_message().decode()
        return SimpleNamespace(
            pointer=block.value,
            address=self.library.address(block),
            size=self.library.size(block),
            requested=nbytes,
            stream=stream,
            events={},  # stream: ticket that must be completed before reuse
            recorded=set(),
        )

    def stats(self):
        values = np.empty(self.library.stats(self.session, None), np.int64)
        self.library.stats(self.session, values.ctypes.data)
        table = values[: len(SETS) * 12].reshape(len(SETS), 3, 4)
        result = {name: table[i] for i, name in enumerate(SETS)}
        return result | dict(zip(COUNTERS, values[len(SETS) * 12 :].tolist()))

    def snapshot(self):
        rows = np.empty((self.library.snapshot(self.session, None, 0), 9), np.uint64)
        self.library.snapshot(self.session, rows.ctypes.data, len(rows))
        return rows.astype(np.int64)


def kinds(blocks, value=lambda block: 1):
    """(all, small pool, large pool) as in MemoryStats."""
    small = sum(value(b) for b in blocks if b.size <= MiB)
    large = sum(value(b) for b in blocks if b.size > MiB)
    return [small + large, small, large]


class Machine(RuleBasedStateMachine):
    library = None
    blocks = Bundle("blocks")
    sizes = st.one_of(st.integers(1, 3000), st.integers(1, 3 * MiB), st.integers(1, 30 * MiB), st.just(512))
    streams = st.integers(0, 3)

    @initialize(memory=st.sampled_from([200_000, 3 * MiB, 60 * MiB, 4096 * MiB]))
    def start(self, memory):
        self.allocator = Allocator(self.library, memory)
        self.bound, self.live, self.deferred = memory, {}, []
        self.peak = defaultdict(int)

    def waiting(self):
        """Deferred blocks whose events are not all done: nobody may get their bytes."""
        done = [self.allocator.completed(stream) for stream in range(4)]
        return [b for b in self.deferred if any(done[stream] < ticket for stream, ticket in b.events.items())]

    @rule(target=blocks, nbytes=sizes, stream=streams, copies=st.sampled_from([1, 1, 1, 20]))
    def allocate(self, nbytes, stream, copies):
        return multiple(*filter(None, (self.allocate_one(nbytes, stream) for _ in range(copies))))

    def allocate_one(self, nbytes, stream):
        block = self.allocator.allocate(nbytes, stream)
        rounded = -(-nbytes // 512) * 512
        if isinstance(block, tuple):
            _, status, message = block
            assert status == OUT_OF_MEMORY
            assert "pretended:0 is out of memory" in message
            assert self.allocator.device_used() + rounded > self.bound  # nothing cached could have helped
            return None
        assert rounded <= block.size <= rounded + (MiB if rounded > MiB else 0)
        end = block.address + block.size
        for other in [*self.live.values(), *self.waiting()]:
            assert end <= other.address or other.address + other.size <= block.address, "overlap"
        # Done events may be noticed now or later; a block whose bytes came back has certainly been returned.
        self.deferred = [b for b in self.deferred if b.address >= end or b.address + b.size <= block.address]
        self.live[block.pointer] = block
        self.peak["allocation"] = max(self.peak["allocation"], len(self.live))
        allocated = sum(b.size for b in self.live.values())
        self.peak["allocated_bytes"] = max(self.peak["allocated_bytes"], allocated)
        return block

    @rule(block=consumes(blocks))
    def free(self, block):
        del self.live[block.pointer]
        block.events = {stream: self.allocator.recorded(stream) + 1 for stream in block.recorded}
        self.allocator.release(block.pointer)
        assert all(self.allocator.recorded(stream) == ticket for stream, ticket in block.events.items())
        if block.recorded:
            self.deferred.append(block)

    @rule(block=blocks, stream=streams)
    def record(self, block, stream):
        self.allocator.record_stream(block.pointer, stream)
        if stream != block.stream:
            block.recorded.add(stream)

    @rule(stream=streams)
    def complete_events(self, stream):
        self.allocator.complete(stream)

    @rule()
    def empty_cache(self):
        assert self.allocator.empty_cache() == OK
        self.deferred = []

    @rule(fraction=st.sampled_from([0.0, 0.3, 0.75, 1.0, 1.0]))
    def set_fraction(self, fraction):
        assert self.allocator.set_fraction(fraction) == OK
        self.bound = int(fraction * self.allocator.memory)

    @rule()
    def reset_peak(self):
        self.allocator.reset_peak()
        self.peak = defaultdict(int)
        self.peak |= {"allocation": len(self.live), "allocated_bytes": sum(b.size for b in self.live.values())}

    @invariant()
    def statistics_are_the_sums_of_the_model(self):
        stats, live, waiting = self.allocator.stats(), list(self.live.values()), self.waiting()
        current = {name: stats[name][:, 0].tolist() for name in SETS}
        assert current["allocation"] == kinds(live)
        assert current["allocated_bytes"] == kinds(live, lambda b: b.size)
        measures = {"active": lambda b: 1, "active_bytes": lambda b: b.size, "requested_bytes": lambda b: b.requested}
        for name, measure in measures.items():
            least = kinds(live + waiting, measure)
            most = kinds(live + self.deferred, measure)
            assert all(a <= b <= c for a, b, c in zip(least, current[name], most)), name
        assert current["reserved_bytes"][0] == self.allocator.device_used()
        assert current["segment"][0] == self.allocator.device_segments()
        assert stats["num_device_alloc"] - stats["num_device_free"] == current["segment"][0]
        for name in SETS:
            assert (stats[name][:, 1] >= stats[name][:, 0]).all(), name
            assert (stats[name][:, 2] - stats[name][:, 3] == stats[name][:, 0]).all(), name
            assert stats[name][0, 0] == stats[name][1, 0] + stats[name][2, 0], name
        for name, peak in self.peak.items():
            assert stats[name][0, 1] == peak, name

    @invariant()
    def snapshot_tiles_the_segments(self):
        rows = self.allocator.snapshot()
        segments = defaultdict(list)
        for row in rows.tolist():
            segments[row[0], row[1], row[2], row[3]].append(row[4:])
        split = 0
        for (address, size, _stream, large), blocks in segments.items():
            for block in blocks:
                assert block[0] == address
                address += block[1]
                assert large or block[1] % 512 == 0
            assert sum(block[1] for block in blocks) == size
            assert all(a[4] or b[4] for a, b in pairwise(blocks)), "two free neighbours were not merged"
            split += sum(block[1] for block in blocks if not block[4] and len(blocks) > 1)
        assert {row[4] for row in rows.tolist() if row[7]} == {b.address for b in self.live.values()}
        assert self.allocator.stats()["inactive_split_bytes"][0, 0] == split

    @invariant()
    def blocks_are_found_by_any_of_their_bytes(self):
        for block in self.live.values():
            assert self.allocator.find(block.address + block.requested - 1) == block.pointer

    def teardown(self):
        if not hasattr(self, "allocator"):
            return
        for block in self.live.values():
            self.allocator.release(block.pointer)
        assert self.allocator.empty_cache() == OK
        stats = self.allocator.stats()
        assert all((stats[name][:, 0] == 0).all() for name in SETS)
        assert self.allocator.device_used() == self.allocator.device_events() == 0
        self.allocator.session_delete()


def test_allocator_equals_its_model(library):
    Machine.library = library
    run_state_machine_as_test(Machine, settings=settings(max_examples=150, stateful_step_count=40, deadline=None))


def test_pools_and_segments_have_cudas_sizes(library):
    allocator = Allocator(library, 1024 * MiB)
    reserved = []
    for nbytes in (1, MiB, MiB, 3 * MiB, 9 * MiB, 10 * MiB, 11 * MiB + 1):
        assert allocator.allocate(nbytes).size >= nbytes
        reserved.append(allocator.device_used() // MiB)
    assert reserved == [2, 2, 4, 24, 24, 34, 46]


def test_freed_memory_of_one_stream_is_reused_at_once_and_other_streams_have_their_own(library):
    allocator = Allocator(library, 1024 * MiB)
    for nbytes in (600, 200_000, 15 * MiB):
        block = allocator.allocate(nbytes, 0)
        allocator.release(block.pointer)
        assert allocator.allocate(nbytes, 1).address != block.address
        assert allocator.allocate(nbytes, 0).address == block.address


def test_an_allocation_above_the_limit_is_refused(library):
    allocator = Allocator(library, 100 * MiB)
    allocator.allocate(30 * MiB)
    assert allocator.set_fraction(0.5) == OK
    _, status, message = allocator.allocate(2048 * MiB)
    assert status == OUT_OF_MEMORY
    assert message == f"pretended:0 is out of memory: tried to allocate {2048 * MiB} bytes"
    assert allocator.set_fraction(1.5) == INVALID
    allocator.reset_accumulated()
    assert allocator.stats()["num_ooms"] == 0


def test_a_block_whose_event_cannot_be_recorded_is_kept_and_tried_again(library):
    allocator = Allocator(library, 1024 * MiB)
    block = allocator.allocate(15 * MiB, 0)
    allocator.record_stream(block.pointer, 2)
    allocator.refuse_events(1)
    allocator.release(block.pointer)
    assert allocator.allocate(15 * MiB, 0).address != block.address
    allocator.refuse_events(0)
    assert allocator.allocate(15 * MiB, 0).address != block.address  # recorded now, not done
    assert allocator.recorded(2) == 1
    allocator.complete(2)
    assert allocator.allocate(15 * MiB, 0).address == block.address


def work_with_a_python_driver(library_path):
    """Eight threads whose tensors die while the GIL is held (PyDLL), over a driver that needs the GIL."""
    library, holding_gil = typed(ctypes.CDLL(library_path)), typed(ctypes.PyDLL(library_path))
    hook = ctypes.CFUNCTYPE(None)(lambda: time.sleep(0))  # lets another thread take the GIL meanwhile
    allocator = Allocator(library, 64 * MiB)
    allocator.set_hook(ctypes.cast(hook, c_void_p))

    def work(thread):
        random = np.random.default_rng(thread)
        for _ in range(200):
            block = allocator.allocate(int(random.integers(1, 6 * MiB)), thread % 3)
            if isinstance(block, tuple):
                continue
            holding_gil.record_stream(allocator.session, block.pointer, int(random.integers(0, 3)))
            holding_gil.release(allocator.session, block.pointer)

    sys.setswitchinterval(1e-6)  # hand the GIL over as often as possible
    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert allocator.empty_cache() == OK
    assert allocator.device_used() == 0


def test_a_python_driver_never_deadlocks_with_the_gil(library_path):
    """Trap 20. In a process of its own: a deadlock that holds the GIL would stop pytest too."""
    subprocess.run([sys.executable, __file__, library_path], check=True, timeout=60)


if __name__ == "__main__":
    work_with_a_python_driver(sys.argv[1])
