"""The sim driver's options, memory and copies through the contract alone: no torch."""

from __future__ import annotations

import ctypes
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.driver import Placement
from bringup.driver.abi import DriverError
from tests.driver.through_the_contract import D2D, D2H, H2D, HOST, LARGE, address_of, pattern, read, write


# ---- options ----
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("devices=0", "devices=0 1 to 64"),
        ("devices=65", "devices=65 1 to 64"),
        ("devices=-1", "devices=-1 1 to 64"),
        ("devices=two", "devices=two 1 to 64"),
        ("devices=", "devices= 1 to 64"),
        ("memory=4X", "memory=4X K, M, G"),
        ("memory=1.5G", "memory=1.5G whole number"),
        ("memory=99999999999G", "memory=99999999999G 4K to 1024G"),
        ("memory=1K", "memory=1K 4K"),
        ("mode=fast", "mode=fast library and kernels"),
        ("trap=2", "trap=2 0 and 1"),
        ("partitions=0", "partitions=0 1 to 1024"),
        ("placement=partial", "placement=partial single, shard and replicate"),
        ("shard_block=12", "shard_block=12 multiple of 8"),
        ("fail=alloc:1.5", "fail=alloc:1.5 from 0 to 1"),
        ("fail=alloc:0.1,magic:0.1", "fail=magic:0.1 alloc:p, copy:p"),
        ("seed=x", "seed=x whole number"),
        ("jitter=-1", "jitter=-1 whole number seed"),
        ("colour=red", "colour=red unknown option devices, memory"),
        ("devices", '"devices" key=value'),
        ("peak_flops.float33=1", "peak_flops.float33 no such dtype"),
        ("peak_flops.float32=0", "peak_flops.float32=0 above 0"),
        ("bandwidth=nan,peak_flops.float32=1", "bandwidth=nan"),
        ("launch_ns=5", "peak_flops.float32 bandwidth both needed"),
        ("memory=64K,partitions=64", "memory=65536 partitions=64 4K"),
        ("profile=nowhere.toml", "profile=nowhere.toml no such file edge_npu"),
    ],
)
def test_a_wrong_option_names_key_value_and_what_is_allowed(make_sim, options, words):
    with pytest.raises(DriverError) as error:
        make_sim(options, open_devices=False)
    for word in words.split():
        assert word in str(error.value)


def test_defaults_and_options(make_sim, monkeypatch):
    plain = make_sim("", open_devices=False)
    assert plain.device_count() == 2
    spec = plain.open(1)
    assert (spec.memory_bytes, spec.partitions, spec.host_offset) == (4 << 30, 1, 0)
    assert spec.host_visible
    assert not spec.host_library
    assert spec.peer_copy
    assert not plain.offers("charge")  # nothing to charge where time is wall time
    assert plain.offers("launch")
    plain.close(1)
    other = make_sim(" devices = 3 , memory=64K, mode = library,fail=alloc:0,copy:0,seed=7, memory=128K")
    spec = other.open(0)
    assert (other.device_count(), spec.memory_bytes, spec.host_library) == (3, 128 << 10, True)
    assert not other.offers("launch")
    monkeypatch.setenv("BRINGUP_SIM", "devices=5")
    assert make_sim(None, open_devices=False).device_count() == 5


@pytest.mark.parametrize("options", ["", "devices=1,memory=64K", "devices=1,bandwidth=1e9,peak_flops.float32=1e9"])
def test_without_a_compiler_the_default_is_library_mode_and_opening_says_so(make_sim, monkeypatch, options):
    monkeypatch.setenv("BRINGUP_CC", "no-such-compiler")
    one = make_sim(options, open_devices=False)
    assert not one.offers("launch")
    assert one.struct_address != ctypes.addressof(one._functions())  # the core's open is the one that tells

    def opened_twice():
        one.open(0)
        one.close(0)
        return one.open(0)

    with pytest.warns(RuntimeWarning, match=r"mode=library.*BRINGUP_CC=no-such-compiler") as told:
        spec = opened_twice()
    assert len(told) == 1
    assert spec.host_library
    one.close(0)


@pytest.mark.parametrize(("mode", "library"), [("library", True), ("kernels", False)])
def test_a_mode_that_is_given_needs_no_compiler_and_no_warning(make_sim, monkeypatch, recwarn, mode, library):
    monkeypatch.setenv("BRINGUP_CC", "no-such-compiler")
    one = make_sim(f"mode={mode}", open_devices=False)
    assert one.open(0).host_library is library
    assert not recwarn.list
    one.close(0)


def test_another_abi_version_is_refused(sim_library):
    reason = ctypes.create_string_buffer(500)
    table = ctypes.create_string_buffer(4096)
    assert ctypes.CDLL(str(sim_library)).bringup_driver_create(99, b"", table, reason, ctypes.c_uint64(500)) == 3
    assert b"version 2" in reason.value
    assert b"version 99" in reason.value


def test_a_device_is_checked_by_every_call(make_sim):
    driver = make_sim("devices=2,memory=1M", open_devices=False)
    driver.open(0)
    with pytest.raises(ValueError, match="device 1 is not open"):
        driver.alloc(1, 8)
    for device in (-1, 2, 1000):
        with pytest.raises(ValueError, match=f"device {device} does not exist: there are 2"):
            driver.open(device)
        calls = [
            lambda d=device: driver.alloc(d, 8),
            lambda d=device: driver.free(d, 8),
            lambda d=device: driver.copy(d, 0, 0, 0, D2D, 0),
            lambda d=device: driver.stream_create(d, 0),
            lambda d=device: driver.stream_destroy(d, 1),
            lambda d=device: driver.event_record(d, 0),
            lambda d=device: driver.event_query(d, 1),
            lambda d=device: driver.event_wait(d, 1, 0, HOST),
            lambda d=device: driver.event_elapsed(d, 1, 1),
            lambda d=device: driver.event_destroy(d, 1),
            lambda d=device: driver.clock(d),
            lambda d=device: driver.copy_peer(d, 0, 0, 0, 0, 0),
            lambda d=device: driver.relayout(d, 0, Placement(), 0, Placement(), 0, 0),
            lambda d=device: driver.ipc_export(d, 1),
            lambda d=device: driver.ipc_import(d, "x"),
            lambda d=device: driver.ipc_close(d, 1),
            lambda d=device: driver.host_function(d, 0, print),
            lambda d=device: driver.close(d),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="does not exist"):
                call()
    driver.close(0)


# ---- memory ----
def test_alloc_free_and_the_limit(make_sim):
    driver = make_sim("devices=2,memory=1M")
    first = driver.alloc(0, 700 << 10)
    assert first
    assert first % 512 == 0
    with pytest.raises(
        MemoryError, match="device 0 is out of memory: 409600 bytes asked, 716800 of 1048576 bytes in use"
    ):
        driver.alloc(0, 400 << 10)
    elsewhere = driver.alloc(1, 1 << 20)  # the other device has its own memory
    assert not first <= elsewhere < first + (1 << 20)
    driver.free(0, first)
    assert driver.alloc(0, 1 << 20) == first  # all of it, in one piece
    driver.free(0, first)
    with pytest.raises(ValueError, match=f"{first:#x} is not an allocation of device 0, or was freed"):
        driver.free(0, first)
    with pytest.raises(ValueError, match="0x3039"):
        driver.free(0, 12345)
    with pytest.raises(ValueError, match="is not an allocation"):
        driver.free(0, elsewhere)
    with pytest.raises(MemoryError):
        driver.alloc(0, (1 << 64) - 1)
    assert driver.alloc(0, 0) != driver.alloc(0, 0)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40 << 10)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_live_allocations_never_overlap_and_all_memory_comes_back(flat_sim, steps):
    live: dict[int, int] = {}
    for take, number in steps:
        if take or not live:
            address = flat_sim.alloc(1, number)
            for other, size in live.items():
                assert address + number <= other or other + size <= address
            live[address] = number
        else:
            address = sorted(live)[number % len(live)]
            flat_sim.free(1, address)
            del live[address]
    for address in live:
        flat_sim.free(1, address)
    flat_sim.free(1, flat_sim.alloc(1, 64 << 20))  # neighbours were joined: everything is one piece again


def test_freed_pages_go_back_to_the_host(make_sim):
    driver = make_sim("devices=1,memory=64M")
    address = driver.alloc(0, 32 << 20)
    write(driver, address, b"x" * (32 << 20))
    descriptor = os.open(f"/proc/self/fd/{driver.ipc_export(0, address).split(':')[1]}", os.O_RDONLY)
    used = os.fstat(descriptor).st_blocks
    driver.free(0, address)
    assert used * 512 >= 32 << 20
    assert os.fstat(descriptor).st_blocks == 0
    os.close(descriptor)


def test_host_memory(flat_sim):
    pointer = flat_sim.host_alloc(100)
    assert pointer % 64 == 0
    ctypes.memset(pointer, 1, 100)
    flat_sim.host_free(pointer)
    with pytest.raises(ValueError, match="did not come from host_alloc"):
        flat_sim.host_free(pointer)


# ---- copies ----
@pytest.mark.parametrize("nbytes", [0, 1, 7, 4096, 64 << 10, (64 << 10) + 1, LARGE])
def test_copies_there_within_and_back(flat_sim, nbytes):
    a, b = flat_sim.alloc(0, nbytes + 3), flat_sim.alloc(0, nbytes + 3)
    data = pattern(nbytes)
    write(flat_sim, a + 3, data)  # base + offset may be passed
    flat_sim.copy(0, b + 1, a + 3, nbytes, D2D, 0)
    assert read(flat_sim, b + 1, nbytes) == data
    assert ctypes.string_at(b + 1, nbytes) == data  # host-visible, host_offset 0
    flat_sim.free(0, a)
    flat_sim.free(0, b)


def test_a_copy_outside_the_device_is_refused(flat_sim):
    address, there = flat_sim.alloc(0, 8), flat_sim.alloc(1, 8)
    data = b"12345678"
    with pytest.raises(ValueError, match="copy destination: 8 bytes at 0x10 are not in the memory of device 0"):
        flat_sim.copy(0, 16, address_of(data), 8, H2D, 0)
    with pytest.raises(ValueError, match="copy source"):
        flat_sim.copy(0, address, there, 8, D2D, 0)
    with pytest.raises(ValueError, match="copy source"):
        flat_sim.copy(0, address_of(data), address, (64 << 20) + 1, D2H, 0)
    with pytest.raises(ValueError, match="copy source"):
        flat_sim.copy(0, address_of(data), address, (1 << 64) - 1, D2H, 0)
    with pytest.raises(ValueError, match="NULL"):
        flat_sim.copy(0, address, 0, 8, H2D, 0)
    with pytest.raises(ValueError, match="kind 3"):
        flat_sim.copy(0, address, address, 8, 3, 0)
    with pytest.raises(ValueError, match="stream 77 of device 0 does not exist"):
        flat_sim.copy(0, address, address_of(data), 8, H2D, 77)
    flat_sim.free(0, address)
    flat_sim.free(1, there)


@pytest.mark.parametrize("nbytes", [5, LARGE])
def test_peer_copies(flat_sim, nbytes):
    a, b = flat_sim.alloc(0, nbytes), flat_sim.alloc(1, nbytes)
    write(flat_sim, a, pattern(nbytes))
    stream = flat_sim.stream_create(1, 0)  # of the destination
    flat_sim.copy_peer(1, b, 0, a, nbytes, stream)
    assert read(flat_sim, b, nbytes, stream, device=1) == pattern(nbytes)
    flat_sim.stream_destroy(1, stream)
    with pytest.raises(ValueError, match="peer copy destination"):
        flat_sim.copy_peer(1, a, 0, a, nbytes, 0)
    flat_sim.free(0, a)
    flat_sim.free(1, b)
