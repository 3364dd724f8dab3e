"""One persistent guest: a machine whose program waits for commands, and whose RAM is the memory of a device."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from bringup.driver.heap import Heap
from bringup.drivers.riscv.kernels import Image, command_loop, read_image
from bringup.drivers.riscv.options import Options
from bringup.riscv.device import Device
from bringup.riscv.machine import Machine, open_machine

#: Where the guest's program never looks: a device that only tells the time.
_TIMER = 0x1020_0000
#: struct command of command_loop.c, up to its arguments.
_COMMAND = struct.Struct("<Q2q3q")
_REPORT = struct.Struct("<3q")
_REPORT_OFFSET = _COMMAND.size - _REPORT.size
#: Launches end by time, not by number.
_NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class Kernel:
    """A function in guest memory."""

    name: str
    entry: int
    address: int
    image: Image


class ServingMachine:
    """A booted machine. Methods may be called from several threads; they wait for the machine where they need it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._program = command_loop(options.spec)
        self._lock = threading.Lock()
        self._time_lock = threading.Lock()
        self._before = 0
        self._kernels: list[Kernel] = []
        self._boot()
        symbols = {symbol.name: symbol for symbol in self.machine.program.symbols}
        self._command = symbols["bringup_command"].address
        self._arguments = (symbols["bringup_command"].size - _COMMAND.size) // 8
        self.heap = Heap(symbols["__free_memory"].address, symbols["__end_of_memory"].address)

    def _boot(self) -> None:
        timer = Device()
        machine = open_machine(self._options.machine, self._program, self._options.spec, {_TIMER: timer})
        self._run(machine)
        self.machine: Machine = machine
        self._timer = timer

    def _run(self, machine: Machine) -> None:
        stop = machine.run(instructions=_NO_LIMIT, seconds=self._options.seconds)
        if stop.reason == "exit":
            raise RuntimeError(f"the guest's program ended with exit code {stop.code}; it is started again")

    def _reboot(self) -> None:
        """A machine that waits for commands again, with the memory of the last one."""
        last, timer = self.machine, self._timer
        kept = [(address, last.read(address, nbytes)) for address, nbytes in self.heap.blocks()]
        with self._time_lock:
            self._before += timer.now()
            self._boot()
            last.close()
        for address, data in kept:
            self.machine.write(address, data)
        for kernel in self._kernels:
            self._place(kernel)

    # ---- memory ----
    def read(self, address: int, nbytes: int) -> bytes:
        """Bytes of device memory."""
        self.check(address, nbytes)
        with self._lock:
            return self.machine.read(address, nbytes)

    def write(self, address: int, data: bytes) -> None:
        """Changes device memory."""
        self.check(address, len(data))
        with self._lock:
            self.machine.write(address, data)

    def check(self, address: int, nbytes: int) -> None:
        """Raises ValueError unless all of it is device memory: the guest's own program is not."""
        if not self.heap.start <= address <= address + nbytes <= self.heap.end:
            where = f"{self.heap.start:#x} to {self.heap.end:#x}"
            raise ValueError(f"{nbytes} bytes at {address:#x} are not within device memory ({where})")

    # ---- kernels ----
    def load(self, binary: bytes, entry: str) -> Kernel:
        """Puts a kernel into memory, for good."""
        image = read_image(binary)
        offset = image.offset(entry)
        address = self.heap.allocate(len(image.data), at_end=True)
        kernel = Kernel(entry, address + offset, address, image)
        with self._lock:
            self._kernels.append(kernel)
            self._place(kernel)
        return kernel

    def _place(self, kernel: Kernel) -> None:
        self.machine.write(kernel.address, kernel.image.data)
        self.machine.name_range(kernel.name, kernel.address, kernel.address + len(kernel.image.data))

    def check_arguments(self, count: int) -> None:
        """Raises ValueError if a command has no room for so many."""
        if count > self._arguments:
            raise ValueError(f"a launch with {count} arguments; allowed is up to {self._arguments}")

    def call(self, kernel: Kernel, args: Sequence[int], grid: int) -> None:
        """Runs the units 0 … grid-1 of a kernel; a trap or a hang is a GuestError, after which the guest works on."""
        command = _COMMAND.pack(kernel.entry, 0, grid, 0, 0, 0) + struct.pack(f"<{len(args)}Q", *args)
        with self._lock:
            self.machine.write(self._command, command)
            try:
                self._run(self.machine)
            except BaseException:
                self._reboot()
                raise
            found, index, extent = _REPORT.unpack(self.machine.read(self._command + _REPORT_OFFSET, _REPORT.size))
        if found:
            raise IndexError(f"index {index} is out of range for a dimension of {extent} (kernel {kernel.name})")

    # ---- time ----
    def clock(self) -> int:
        """Instructions retired since the start, those before a trap included."""
        with self._time_lock:
            return self._before + self._timer.now()

    def close(self) -> None:
        """Ends the machine."""
        with self._lock:
            self.machine.close()
