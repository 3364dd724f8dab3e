"""The allocator of guest memory: no two blocks overlap, and everything comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bringup.driver.heap import Heap

START, END = 0x8000_0040, 0x8001_0000


@given(st.lists(st.tuples(st.integers(0, 9000), st.booleans(), st.integers(0, 99)), max_size=60))
def test_blocks_do_not_overlap_and_come_back(steps: list[tuple[int, bool, int]]) -> None:
    heap = Heap(START, END)
    held: dict[int, int] = {}
    for nbytes, at_end, freed in steps:
        try:
            address = heap.allocate(nbytes, at_end)
        except MemoryError:
            # The largest hole between what is held is too small: nothing is lost.
            edges = [START, *(edge for a in sorted(held) for edge in (a, a + max(64, -(-held[a] // 64) * 64))), END]
            assert all(high - low < nbytes for low, high in zip(edges[::2], edges[1::2]))
        else:
            assert address % 64 == 0
            assert START <= address <= address + nbytes <= END
            for other, size in held.items():
                assert address + max(nbytes, 1) <= other or other + max(size, 1) <= address
            held[address] = nbytes
        if held and freed < 50:
            address = list(held)[freed % len(held)]
            heap.free(address)
            del held[address]
    assert [address for address, _ in heap.blocks()] == sorted(held)
    for address in held:
        heap.free(address)
    assert heap.allocate(END - START) == START


def test_what_is_not_allocated_cannot_be_freed() -> None:
    heap = Heap(START, END)
    address = heap.allocate(128)
    for wrong in (address + 64, 0):
        with pytest.raises(ValueError, match="nothing is allocated"):
            heap.free(wrong)
    heap.free(address)
    with pytest.raises(ValueError, match="nothing is allocated"):
        heap.free(address)


def test_no_room_is_said_with_numbers() -> None:
    with pytest.raises(MemoryError, match=f"no room for 65536 bytes: {END - START} are free"):
        Heap(START, END).allocate(65536)
