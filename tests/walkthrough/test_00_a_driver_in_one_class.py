"""Chapter 0. A driver is one class with five methods. No PyTorch yet: we call the methods ourselves."""

import ctypes

import pytest

import bringup
from bringup.driver import CopyKind, contract

MEMORY = 16 << 20


# A chip's memory, here on the heap of this process. A real driver talks to its hardware in the same five places.
class Notepad(bringup.Driver):
    name = "notepad"

    def __init__(self):
        self.pages = {}

    def device_count(self):
        return 1  # cheap, opens nothing, never fails

    def open(self, device):
        return bringup.DeviceSpec(name="Notepad", memory_bytes=MEMORY, alignment=8)

    def alloc(self, device, nbytes):
        if nbytes + sum(map(len, self.pages.values())) > MEMORY:
            raise MemoryError(f"no room for {nbytes} bytes")
        page = ctypes.create_string_buffer(nbytes)
        self.pages[ctypes.addressof(page)] = page
        return ctypes.addressof(page)

    def free(self, device, address):
        del self.pages[address]

    def copy(self, device, dst, src, nbytes, kind, stream):
        ctypes.memmove(dst, src, nbytes)


def test_bytes_go_in_and_come_out():
    chip = Notepad()
    chip.open(0)
    address = chip.alloc(0, 5)
    sent, received = ctypes.create_string_buffer(b"hello"), ctypes.create_string_buffer(5)
    chip.copy(0, address, ctypes.addressof(sent), 5, CopyKind.HOST_TO_DEVICE, 0)
    chip.copy(0, ctypes.addressof(received), address, 5, CopyKind.DEVICE_TO_HOST, 0)
    assert received.raw == b"hello"

    # An address is a number with arithmetic: the middle of an allocation is base + offset.
    chip.copy(0, ctypes.addressof(received), address + 1, 4, CopyKind.DEVICE_TO_HOST, 0)
    assert received.raw[:4] == b"ello"

    chip.free(0, address)
    assert not chip.pages


def test_failures_are_exceptions():
    with pytest.raises(MemoryError):  # becomes torch.OutOfMemoryError
        Notepad().alloc(0, 1 << 30)


def test_five_methods_are_required_and_the_rest_is_optional():
    rows = contract()  # what `bringup contract` prints
    required = [method for method, _, needed, _ in rows if needed]
    assert required == ["device_count", "open", "alloc", "free", "copy"]
    assert Notepad().offers("copy")
    assert not Notepad().offers("stream_create")  # so bringup treats the chip as synchronous
