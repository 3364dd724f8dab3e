"""Devices of a guest, in Python: registers at an address, guest memory, an interrupt line, time in instructions.

A machine puts its devices on a `Bus`, which finds the device of an address, keeps time and the interrupt lines:

    bus = Bus(devices, ram, ram_base, retired)  # ram: a writable uint8 array, retired: () -> instructions since boot
    bus.read(address, size)                     # from the emulator's MMIO callbacks
    bus.interrupt                               # mip.MEIP
    bus.sleep()                                 # the guest executes wfi
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

if TYPE_CHECKING:
    from bringup.riscv.remote import RemoteDevice

Bytes: TypeAlias = NDArray[np.uint8]


class DeviceError(RuntimeError):
    """A device refuses an access; the guest stops with a GuestError that chains this."""


class Device:
    """A device with registers: subclass it, write `read` and `write`, and give it to a machine with an address.

    >>> class Scratch(Device):
    ...     value = 0
    ...     def read(self, offset, size):
    ...         return self.value
    ...     def write(self, offset, size, value):
    ...         self.value = value
    >>> bus = Bus({0x1020_0000: Scratch()}, np.zeros(4096, np.uint8), 0x8000_0000, retired=lambda: 0)
    >>> bus.write(0x1020_0000, 4, 7)
    >>> bus.read(0x1020_0000, 4)
    7
    """

    size = 0x1000
    """Bytes of address space."""
    _bus: Bus | None = None

    def read(self, offset: int, size: int) -> int:
        """What a load of ``size`` bytes gives; it may raise, which stops the guest."""
        raise DeviceError(f"{type(self).__name__} has nothing to read at offset {offset:#x}")

    def write(self, offset: int, size: int, value: int) -> None:
        """Takes a store of ``size`` bytes; it may raise, which stops the guest."""
        raise DeviceError(f"{type(self).__name__} has nothing to write at offset {offset:#x}")

    @property
    def mem(self) -> Memory:
        """The guest's memory."""
        return self.bus.memory

    def now(self) -> int:
        """The time: instructions the guest has retired, and those it would have while it slept in wfi."""
        return self.bus.now()

    def irq(self, level: bool = True) -> None:
        """Raises the machine's external interrupt, until it is lowered with False."""
        self.bus.set_line(self, level)

    def after(self, instructions: int, action: Callable[[], None]) -> Alarm:
        """Calls ``action`` when that many instructions have passed: at once for 0."""
        return self.bus.after(instructions, action)

    @property
    def bus(self) -> Bus:
        """Where this device is connected."""
        if self._bus is None:
            raise DeviceError(f"{type(self).__name__} is connected to no machine yet; it has no memory and no time")
        return self._bus

    @staticmethod
    def remote(socket_path: str | Path, *, timeout: float = 5.0, base: int = 0) -> RemoteDevice:
        """A device whose registers another process serves over a Unix socket; see `bringup.riscv.remote`."""
        from bringup.riscv.remote import RemoteDevice

        return RemoteDevice(socket_path, timeout=timeout, base=base)


class Memory:
    """The guest's memory, by guest addresses."""

    def __init__(self, ram: Bytes, base: int) -> None:
        self._ram, self._base = ram, base

    def view(self, address: int, nbytes: int) -> Bytes:
        """The bytes themselves: what is written into them is in the guest."""
        start = address - self._base
        if nbytes < 0 or start < 0 or start + nbytes > self._ram.size:
            end = self._base + self._ram.size
            raise DeviceError(f"{nbytes} bytes at {address:#x} are not within memory {self._base:#x}…{end:#x}")
        return self._ram[start : start + nbytes]

    def read(self, address: int, nbytes: int) -> bytes:
        """A copy of guest memory."""
        return self.view(address, nbytes).tobytes()

    def write(self, address: int, data: bytes) -> None:
        """Changes guest memory."""
        self.view(address, len(data))[:] = np.frombuffer(data, np.uint8)

    def array(self, address: int, shape: int | Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Guest memory as a NumPy array: a view, also where the address is not aligned.

        >>> memory = Memory(np.zeros(16, np.uint8), base=0x8000_0000)
        >>> memory.array(0x8000_0004, 2, np.uint16)[:] = 0x102, 0x304
        >>> memory.read(0x8000_0004, 4).hex()
        '02010403'
        """
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        return self.view(address, nbytes).view(dtype).reshape(shape)


class Alarm:
    """Something that happens at a time; it can be cancelled."""

    def __init__(self, time: int, action: Callable[[], None]) -> None:
        self.time, self.action = time, action
        self.live = True

    def cancel(self) -> None:
        """It will not happen."""
        self.live = False


class Bus:
    """Devices by address, their interrupt lines and their time.

    ``retired()`` counts from the guest's start (no reset) and, during an access, not the accessing instruction: then
    a device sees the same time on every machine. A guest in wfi retires nothing, but time passes: `sleep` jumps to
    the next alarm.
    """

    def __init__(
        self,
        devices: Mapping[int, Device],
        ram: Bytes,
        ram_base: int,
        retired: Callable[[], int],
    ) -> None:
        self.memory = Memory(ram, ram_base)
        self.devices = dict(sorted(devices.items()))
        self._check_places(ram_base, ram.size)
        self._retired = retired
        self._slept = 0
        self._due: int | None = None
        self._raised: set[int] = set()
        self._alarms: list[tuple[int, int, Alarm]] = []
        self._order = itertools.count()
        for device in self.devices.values():
            device._bus = self

    def _check_places(self, ram_base: int, ram_bytes: int) -> None:
        if len({id(device) for device in self.devices.values()}) < len(self.devices):
            raise ValueError("a device is given at two addresses; make two devices")
        taken = [(0x10_0000, 0x1000, "the finisher"), (0x1000_0000, 0x1000, "the UART"), (ram_base, ram_bytes, "RAM")]
        taken += [(base, device.size, type(device).__name__) for base, device in self.devices.items()]
        taken.sort(key=lambda place: place[0])
        for base, size, name in taken:
            if base < 0 or base % 0x1000 or size <= 0 or size % 0x1000:
                raise ValueError(f"{name} at {base:#x} with {size:#x} bytes: both must be multiples of 0x1000")
        for (base, size, name), (other, _, other_name) in itertools.pairwise(taken):
            if base + size > other:
                raise ValueError(f"{name} at {base:#x} ({size:#x} bytes) and {other_name} at {other:#x} overlap")

    def find(self, address: int) -> tuple[int, Device] | None:
        """The device of an address and where it starts."""
        for base, device in self.devices.items():
            if base <= address < base + device.size:
                return base, device
        return None

    def read(self, address: int, size: int) -> int:
        """A load by the guest."""
        base, device = self._need(address, size)
        self.run_due()
        return device.read(address - base, size) & ((1 << 8 * size) - 1)

    def write(self, address: int, size: int, value: int) -> None:
        """A store by the guest."""
        base, device = self._need(address, size)
        self.run_due()
        device.write(address - base, size, value & ((1 << 8 * size) - 1))

    def _need(self, address: int, size: int) -> tuple[int, Device]:
        found = self.find(address)
        if found is None:
            raise DeviceError(f"there is no device at {address:#x}")
        if address % size:
            raise DeviceError(f"misaligned access of {size} bytes at {address:#x}, in {type(found[1]).__name__}")
        return found

    # ---- time ----
    def now(self) -> int:
        """Device time: retired instructions, and what was skipped in wfi; within an alarm, the time it was set to."""
        return self._retired() + self._slept if self._due is None else self._due

    def after(self, instructions: int, action: Callable[[], None]) -> Alarm:
        """Runs ``action`` that many instructions from now."""
        alarm = Alarm(self.now() + instructions, action)
        if instructions <= 0:
            action()
        else:
            heapq.heappush(self._alarms, (alarm.time, next(self._order), alarm))
        return alarm

    def next_alarm(self) -> int | None:
        """How many instructions from now something happens, at least 0; None if nothing will."""
        while self._alarms and not self._alarms[0][2].live:
            heapq.heappop(self._alarms)
        return max(0, self._alarms[0][0] - self.now()) if self._alarms else None

    def run_due(self) -> None:
        """Runs the alarms whose time has come. Accesses do so too; a machine need call it only for interrupts."""
        while self._due is None and self.next_alarm() == 0:
            self._due, _, alarm = heapq.heappop(self._alarms)
            try:
                alarm.action()
            finally:
                self._due = None

    def sleep(self) -> bool:
        """The guest waits: time jumps from alarm to alarm until a line is raised; False if none ever will be."""
        self.run_due()
        while not self.interrupt:
            wait = self.next_alarm()
            if wait is None:
                return False
            self._slept += wait
            self.run_due()
        return True

    # ---- interrupts ----
    @property
    def interrupt(self) -> bool:
        """Whether any device raises its line."""
        return bool(self._raised)

    def set_line(self, device: Device, level: bool) -> None:
        """Raises or lowers the line of a device."""
        if level:
            self._raised.add(id(device))
        else:
            self._raised.discard(id(device))
