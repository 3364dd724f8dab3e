"""Step 1: the chip's memory. Five methods make it a PyTorch device; every op runs on the CPU."""

import ctypes
import threading

import bringup

MEMORY = 1 << 28


class Driver(bringup.Driver):
    name = "heron"

    def __init__(self):
        self.blocks = {}
        self.lock = threading.Lock()  # any method may be called from several threads at once

    def device_count(self):
        return 1

    def open(self, device):
        self.refuse(device)
        return bringup.DeviceSpec(name="Heron", memory_bytes=MEMORY, alignment=64, host_visible=True)

    def alloc(self, device, nbytes):
        self.refuse(device)
        with self.lock:
            if nbytes + sum(map(len, self.blocks.values())) > MEMORY:
                raise MemoryError(f"no room for {nbytes} bytes")
            block = ctypes.create_string_buffer(nbytes + 64)
            address = -(-ctypes.addressof(block) // 64) * 64
            self.blocks[address] = block
            return address

    def free(self, device, address):
        with self.lock:
            del self.blocks[address]

    def copy(self, device, dst, src, nbytes, kind, stream):
        self.refuse(device)
        ctypes.memmove(dst, src, nbytes)

    def refuse(self, device):
        if device != 0:
            raise ValueError(f"there is no device {device}")
