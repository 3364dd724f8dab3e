"""The sim driver's partitioned memory against a model of a few lines of Python."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.driver import Placement, PlacementKind
from bringup.drivers import sim
from tests.driver.through_the_contract import D2D, pattern, read, write

PARTITIONS, PARTITION_BYTES = 4, 1 << 20
SINGLE, REPLICATE, SHARD, PARTIAL = PlacementKind


@pytest.fixture(scope="session")
def parts(make_sim) -> sim.Driver:
    return make_sim(f"devices=1,memory={PARTITIONS}M,partitions={PARTITIONS},placement=shard")


def places(kind: PlacementKind, block: int, x: int) -> list[tuple[int, int]]:
    """(partition, local offset) of logical byte x."""
    if kind == SHARD:
        return [(x // block % PARTITIONS, x // (block * PARTITIONS) * block + x % block)]
    return [(p, x) for p in range(1 if kind == SINGLE else PARTITIONS)]


def raw(driver, base: int, partition: int, nbytes: int) -> bytes:
    """The bytes of one partition, seen through a shard whose blocks are whole partitions' worth."""
    whole = 1 << 16
    return read(driver, base, nbytes, placement=Placement(SHARD, whole, partition * whole))


def test_the_spec_of_partitioned_memory(make_sim, parts):
    spec = parts.open(0)
    assert (spec.partitions, spec.memory_bytes) == (PARTITIONS, PARTITION_BYTES)
    assert spec.default_placement == Placement(SHARD, 64)
    assert not spec.host_visible
    assert not spec.host_library
    assert not spec.peer_copy
    single = make_sim("devices=1,memory=4M,partitions=4,placement=single,mode=library").open(0)
    assert single.host_visible
    assert single.host_library
    assert single.default_placement == Placement(SINGLE)
    assert (
        make_sim("devices=1,memory=4M,partitions=2,placement=shard,shard_block=1K").open(0).default_placement.block
        == 1024
    )
    with pytest.raises(NotImplementedError, match="4 partitions"):
        parts.copy_peer(0, 0, 0, 0, 0, 0)


blocks = st.integers(1, 20).map(lambda n: 8 * n)
kinds = st.sampled_from([SINGLE, REPLICATE, SHARD])


@given(kinds, blocks, st.integers(0, 700), st.binary(max_size=900))
@settings(max_examples=150, deadline=None)
def test_bytes_lie_where_the_model_says(parts, kind, block, offset, data):
    base, size = parts.alloc(0, 4096), 1700
    before = pattern(size)
    write(parts, base, before, placement=Placement(REPLICATE))
    model = [bytearray(before) for _ in range(PARTITIONS)]
    write(parts, base, data, placement=Placement(kind, block, offset))
    for i, byte in enumerate(data):
        for partition, local in places(kind, block, offset + i):
            model[partition][local] = byte
    assert [raw(parts, base, p, size) for p in range(PARTITIONS)] == model
    assert read(parts, base, len(data), placement=Placement(kind, block, offset)) == data
    parts.free(0, base)


@given(kinds, blocks, kinds, blocks, st.integers(0, 300), st.integers(0, 300), st.binary(max_size=900), st.booleans())
@settings(max_examples=100, deadline=None)
def test_relayout_keeps_the_logical_bytes(parts, kind, block, new_kind, new_block, offset, new_offset, data, in_place):
    a, b = parts.alloc(0, 4096), parts.alloc(0, 4096)
    old, new = Placement(kind, block, offset), Placement(new_kind, new_block, new_offset)
    write(parts, a, data, placement=old)
    parts.relayout(0, a if in_place else b, new, a, old, len(data), 0)
    assert read(parts, a if in_place else b, len(data), placement=new) == data
    for address in (a, b):
        parts.free(0, address)


@given(st.sampled_from([SINGLE, REPLICATE, SHARD, PARTIAL]), blocks, st.integers(0, 200), st.integers(0, 300))
@settings(max_examples=60, deadline=None)
def test_a_copy_within_the_device_moves_every_partition(parts, kind, block, offset, words):
    a, b = parts.alloc(0, 8192), parts.alloc(0, 8192)
    for partition in range(PARTITIONS):
        whole = Placement(SHARD, 1 << 16, partition << 16)
        write(parts, a, pattern(1 << 12, start=partition), placement=whole)
        write(parts, b, bytes(1 << 12), placement=whole)
    placement = Placement(kind, block, 4 * offset)
    parts.copy(0, b, a, 4 * words, D2D, 0, placement)
    before = [pattern(1 << 12, start=partition) for partition in range(PARTITIONS)]
    model = [bytearray(1 << 12) for _ in range(PARTITIONS)]
    for x in range(4 * offset, 4 * (offset + words)):
        for partition, local in places(kind, block, x):
            model[partition][local] = before[partition][local]
    assert [raw(parts, b, p, 1 << 12) for p in range(PARTITIONS)] == model
    for address in (a, b):
        parts.free(0, address)


def test_partial_storages_add_up(parts):
    base = parts.alloc(0, 4096)
    floats = ctypes.c_float * 5
    for partition in range(PARTITIONS):
        summand = bytes(floats(*[10.0**partition * (i + 1) for i in range(5)]))
        write(parts, base, summand, placement=Placement(SHARD, 1 << 16, partition << 16))
    assert list(floats.from_buffer_copy(read(parts, base, 20, placement=Placement(PARTIAL)))) == [
        1111.0 * (i + 1) for i in range(5)
    ]
    write(parts, base, bytes((ctypes.c_float * 2)(7, 8)), placement=Placement(PARTIAL, 0, 4))
    assert list(floats.from_buffer_copy(read(parts, base, 20, placement=Placement(PARTIAL)))) == [
        1111.0,
        7.0,
        8.0,
        4444.0,
        5555.0,
    ]
    assert raw(parts, base, 1, 12)[4:] == bytes(8)  # zeros beside the value
    parts.relayout(0, base, Placement(REPLICATE), base, Placement(PARTIAL), 20, 0)
    assert list(floats.from_buffer_copy(raw(parts, base, 3, 20))) == [1111.0, 7.0, 8.0, 4444.0, 5555.0]
    with pytest.raises(ValueError, match="cut a float32"):
        read(parts, base, 6, placement=Placement(PARTIAL))
    parts.free(0, base)


def test_wrong_placements_are_refused(parts):
    base = parts.alloc(0, 4096)
    for placement, nbytes, reason in [
        (Placement(SHARD, 0), 8, "multiple of 8"),
        (Placement(SHARD, 12), 8, "multiple of 8"),
        (Placement(SINGLE, 0, PARTITION_BYTES), 8, "not in the memory"),
        (Placement(SHARD, 64, PARTITIONS * PARTITION_BYTES), 8, "not in the memory"),
        (Placement(SINGLE, 0, 1 << 63), 8, "too many"),
    ]:
        with pytest.raises(ValueError, match=reason):
            read(parts, base, nbytes, placement=placement)
    write(parts, base, b"flat", placement=None)  # no placement: partition 0 as it lies
    assert raw(parts, base, 0, 4) == b"flat"
    parts.free(0, base)
