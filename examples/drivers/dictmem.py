"""A chip in one page: two devices of 1 GiB whose memory is a dict of bytearrays. Start your own driver from here.

BRINGUP_DRIVERS=examples/drivers/dictmem.py python -c "import torch; print(torch.ones(3, device='dictmem') + 1)"
"""

import ctypes
import itertools
import threading

import bringup
from bringup.driver import CopyKind, DeviceSpec

MEMORY = 1 << 30
WINDOW = 32  # block number n starts at address n << 32: base + offset then needs no search


class Driver(bringup.Driver):
    name = "dictmem"

    def __init__(self):
        self.blocks = {0: {}, 1: {}}  # device → {block number: its bytes}
        self.numbers = itertools.count(1)
        self.lock = threading.Lock()  # any method may be called from several threads at once

    def device_count(self):
        return len(self.blocks)

    def open(self, device):
        if device not in self.blocks:
            raise ValueError(f"there is no device {device}")
        return DeviceSpec(name="Dictionary memory", memory_bytes=MEMORY)

    def alloc(self, device, nbytes):
        with self.lock:
            if sum(map(len, self.blocks[device].values())) + nbytes > MEMORY:
                raise MemoryError(f"no room for {nbytes} bytes on device {device}")
            number = next(self.numbers)
            self.blocks[device][number] = bytearray(nbytes)
            return number << WINDOW

    def free(self, device, address):
        with self.lock:
            del self.blocks[device][address >> WINDOW]

    def copy(self, device, dst, src, nbytes, kind, stream):
        to = self.host(dst, nbytes) if kind == CopyKind.DEVICE_TO_HOST else self.bytes_at(device, dst, nbytes)
        to[:] = self.host(src, nbytes) if kind == CopyKind.HOST_TO_DEVICE else self.bytes_at(device, src, nbytes)

    def bytes_at(self, device, address, nbytes):
        block, offset = self.blocks[device][address >> WINDOW], address % (1 << WINDOW)
        if offset + nbytes > len(block):
            raise ValueError(f"{nbytes} bytes at {address:#x} reach beyond their block of {len(block)}")
        return memoryview(block)[offset : offset + nbytes]

    def host(self, pointer, nbytes):
        return memoryview((ctypes.c_char * nbytes).from_address(pointer)).cast("B")
