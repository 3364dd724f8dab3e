"""Machines whose emulator knows no device of ours: it stops, we do what the instruction does, and it goes on behind it.

This holds what such machines share: accesses to devices and the finisher, ``wfi``, traps and interrupts, done by hand
on a `Hart`. They are exact in what they count and in when an interrupt is taken.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np

from bringup.riscv.device import Bus, Device
from bringup.riscv.machine import FINISHER, Machine, MachineSpec, Stop
from bringup.riscv.memory_access import Access, decode_access, instruction_bytes
from bringup.riscv.trap_report import instruction_at, reported_trap, trap_reason

WFI = 0x1050_0073
#: Bits of mstatus, and of mie and mip.
MIE, MPIE, MPP = 1 << 3, 1 << 7, 3 << 11
MEIE = 1 << 11
LOAD_FAULT, STORE_FAULT = 5, 7
EXTERNAL_INTERRUPT = 11


class Hart(Protocol):
    """A stopped processor."""

    pc: int

    def x(self, number: int) -> int:
        """An integer register."""

    def set_x(self, number: int, value: int) -> None:
        """Changes one; x0 stays 0."""

    def f(self, number: int) -> int:
        """The bits of a floating-point register."""

    def set_f(self, number: int, value: int) -> None:
        """Changes one."""

    def csr(self, name: str) -> int:
        """A control register: mstatus, mie, mtvec, mepc, mcause, mtval."""

    def set_csr(self, name: str, value: int) -> None:
        """Changes one."""


class HostedMachine(Machine):
    """What unicorn and QEMU share; ``hart`` is what the emulator's stops are handled on."""

    hart: Hart

    def __init__(
        self,
        program: bytes | Path,
        spec: MachineSpec | None = None,
        devices: Mapping[int, Device] = MappingProxyType({}),
    ) -> None:
        super().__init__(program, spec, devices)
        self.ram = self._make_ram(self.spec.ram_bytes)
        this = weakref.ref(self)  # so that a forgotten machine ends at once

        def retired() -> int:
            machine = this()
            assert machine is not None, "only a machine that runs has devices that ask"
            return machine.retired()

        self.bus = Bus(devices, self.ram, self.spec.ram_base, retired)
        self.ended: Stop | None = None
        self._closed = False
        for segment in self.program.segments:
            self.bus.memory.write(segment.address, segment.data)

    @abstractmethod
    def _make_ram(self, nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Memory that the emulator shares, all zero."""

    @abstractmethod
    def retired(self) -> int:
        """Instructions since the start."""

    @abstractmethod
    def _retire(self, pc: int, nbytes: int) -> None:
        """Counts an instruction that was done here instead of in the emulator."""

    def read(self, address: int, nbytes: int) -> bytes:
        """Bytes of RAM."""
        return self._checked(address, nbytes).tobytes()

    def write(self, address: int, data: bytes) -> None:
        """Changes RAM; code may be among it."""
        self._checked(address, len(data))[:] = np.frombuffer(data, np.uint8)

    def _checked(self, address: int, nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        self._check_open()
        start = address - self.spec.ram_base
        if nbytes < 0 or start < 0 or start + nbytes > self.ram.size:
            raise ValueError(f"{nbytes} bytes at {address:#x} are outside of RAM ({self.spec.ram_base:#x} and up)")
        return self.ram[start : start + nbytes]

    # ---- what a stop means; each leaves the hart ready to go on ----
    def _access(self, cause: int, trapped: int) -> Stop | None:
        """Does the load or store at pc if it is for a device, else lets the guest trap.

        The cause and the address are the emulator's; of scalar accesses we know both ourselves.
        """
        hart = self.hart
        pc, word = hart.pc, instruction_at(self, hart.pc)
        access = None if word is None else decode_access(word, self.spec.xlen)
        address = trapped
        if access is None and self.bus.find(address) is not None:
            raise self._error(f"device at {address:#x}: devices know only scalar loads and stores")
        if access is not None and word is not None:
            address = (hart.x(access.base) + access.offset) & ((1 << self.spec.xlen) - 1)
            if access.store and not access.load and FINISHER <= address < FINISHER + 0x1000:
                self._retire(pc, instruction_bytes(word))
                hart.pc = pc + instruction_bytes(word)
                return self._finish(address, hart.x(access.register))
            if self.bus.find(address) is not None:
                self._device_access(access, address)
                self._retire(pc, instruction_bytes(word))
                hart.pc = pc + instruction_bytes(word)
                self._take_interrupt()
                return None
            cause = STORE_FAULT if access.store else LOAD_FAULT
        self._trap(cause, address)
        return None

    def _finish(self, address: int, value: int) -> Stop | None:
        kind, code = value & 0xFFFF, value >> 16 & 0xFFFF
        if address != FINISHER or kind not in (0x5555, 0x3333):
            return None  # as in QEMU: other values mean nothing
        self.ended = Stop("exit", code if kind == 0x3333 else 0)
        error = reported_trap(self)
        if error is not None:
            raise error
        return self.ended

    def _device_access(self, access: Access, address: int) -> None:
        hart = self.hart
        try:
            if access.atomic:
                raise RuntimeError("devices know no atomic access")
            if access.store:
                value = hart.f(access.register) if access.floating else hart.x(access.register)
                self.bus.write(address, access.size, value & ((1 << 8 * access.size) - 1))
                return
            value = self.bus.read(address, access.size)
        except Exception as error:  # devices are the user's code: whatever it raises stops the guest where it is
            raise self._error(f"device at {address:#x}: {error}") from error
        bits = 8 * access.size
        if access.floating:
            hart.set_f(access.register, value | ((1 << 64) - (1 << bits)))
        else:
            if access.signed and value >> bits - 1:
                value -= 1 << bits
            hart.set_x(access.register, value & ((1 << self.spec.xlen) - 1))

    def _wait(self) -> Stop | None:
        """The guest is behind a wfi: idle if nothing will wake it."""
        if self.hart.csr("mie") & MEIE and self.bus.sleep():
            self._take_interrupt()
            return None
        return Stop("idle")

    def _take_interrupt(self) -> None:
        """Enters the guest's handler if an interrupt is pending and let in."""
        self.bus.run_due()
        if self.bus.interrupt and self._interrupts_on():
            self._enter_trap(EXTERNAL_INTERRUPT | 1 << self.spec.xlen - 1, 0)

    def _interrupts_on(self) -> bool:
        return bool(self.hart.csr("mie") & MEIE and self.hart.csr("mstatus") & MIE)

    def _trap(self, cause: int, value: int) -> None:
        """The instruction at pc traps: the guest's handler goes on, if it has one."""
        base = self.hart.csr("mtvec") & ~3
        if not self.spec.ram_base <= base < self.spec.ram_base + self.spec.ram_bytes:
            raise self._error(trap_reason(cause, value))
        self._enter_trap(cause, value)

    def _enter_trap(self, cause: int, value: int) -> None:
        hart, mtvec = self.hart, self.hart.csr("mtvec")
        mstatus = hart.csr("mstatus")
        hart.set_csr("mstatus", mstatus & ~(MIE | MPIE) | MPP | (MPIE if mstatus & MIE else 0))
        hart.set_csr("mepc", hart.pc)
        hart.set_csr("mcause", cause)
        hart.set_csr("mtval", value)
        interrupt = cause >> self.spec.xlen - 1
        hart.pc = (mtvec & ~3) + (4 * EXTERNAL_INTERRUPT if interrupt and mtvec & 1 else 0)

    def _error(self, reason: str) -> Exception:
        hart = self.hart
        registers = [hart.x(number) for number in range(32)]
        return self.guest_error(reason, hart.pc, registers, instruction_at(self, hart.pc))

    def _check_alive(self) -> None:
        self._check_open()
        if self.ended is not None:
            raise RuntimeError(f"the program has ended with exit code {self.ended.code}; make a new machine")

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the machine is closed")
