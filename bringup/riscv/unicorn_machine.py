"""unicorn as a machine: RISC-V from a Python package, with every count; vectors go one by one to our interpreter."""

from __future__ import annotations

import importlib
import importlib.util
import mmap
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from bringup.riscv.device import Device
from bringup.riscv.hosted import LOAD_FAULT, STORE_FAULT, HostedMachine
from bringup.riscv.machine import UART, Counts, FunctionCounts, GuestError, MachineSpec, Stop
from bringup.riscv.memory_access import decode_access, instruction_bytes
from bringup.riscv.system_instructions import (
    UPPER_COUNTERS,
    WFI,
    csr_number,
    lets_interrupts_in,
    reads_counter,
    system_instructions,
)
from bringup.riscv.trap_report import instruction_at
from bringup.riscv.unicorn_blocks import BlockCounter
from bringup.riscv.unicorn_vectors import VectorUnit, vector_kind

#: Instructions between looks at the clock: about a tenth of a second.
SLICE = 10_000_000
_ILLEGAL, _BREAKPOINT = 2, 3
_NEVER = 1  # an address at which no instruction can be, for unicorn's `until`


class UnicornHart:
    """unicorn's registers while it is stopped."""

    def __init__(self, engine: Any, xlen: int) -> None:
        names = importlib.import_module("unicorn.riscv_const")
        self._engine, self._mask = engine, (1 << xlen) - 1
        self._x, self._f, self._pc = names.UC_RISCV_REG_X0, names.UC_RISCV_REG_F0, names.UC_RISCV_REG_PC
        self._csrs = {
            name: getattr(names, f"UC_RISCV_REG_{name.upper()}")
            for name in ("mstatus", "mie", "mtvec", "mepc", "mcause", "mtval")
        }

    @property
    def pc(self) -> int:
        """Where it is."""
        return int(self._engine.reg_read(self._pc)) & self._mask

    @pc.setter
    def pc(self, value: int) -> None:
        self._engine.reg_write(self._pc, value & self._mask)

    def x(self, number: int) -> int:
        """An integer register."""
        return int(self._engine.reg_read(self._x + number)) & self._mask

    def set_x(self, number: int, value: int) -> None:
        """Changes one; x0 stays 0."""
        if number:
            self._engine.reg_write(self._x + number, value & self._mask)

    def f(self, number: int) -> int:
        """The bits of a floating-point register."""
        return int(self._engine.reg_read(self._f + number))

    def set_f(self, number: int, value: int) -> None:
        """Changes one."""
        self._engine.reg_write(self._f + number, value)

    def csr(self, name: str) -> int:
        """A control register."""
        return int(self._engine.reg_read(self._csrs[name])) & self._mask

    def set_csr(self, name: str, value: int) -> None:
        """Changes one."""
        self._engine.reg_write(self._csrs[name], value & self._mask)


class UnicornMachine(HostedMachine):
    """Runs a program in unicorn; loads, stores and functions are counted, too."""

    name: ClassVar[str] = "unicorn"

    def __init__(
        self,
        program: bytes | Path,
        spec: MachineSpec | None = None,
        devices: Mapping[int, Device] = MappingProxyType({}),
    ) -> None:
        super().__init__(program, spec, devices)
        unicorn: Any = importlib.import_module("unicorn")
        self._unicorn = unicorn
        mode = unicorn.UC_MODE_RISCV64 if self.spec.xlen == 64 else unicorn.UC_MODE_RISCV32
        self._engine = unicorn.Uc(unicorn.UC_ARCH_RISCV, mode)
        self.hart = UnicornHart(self._engine, self.spec.xlen)
        self._engine.mem_map_ptr(self.spec.ram_base, self.ram.size, unicorn.UC_PROT_ALL, self.ram.ctypes.data)
        self._console = bytearray()
        self._engine.mmio_map(UART, 0x1000, self._uart_read, None, self._uart_write, None)
        self._blocks = BlockCounter(self._engine, self.ram, self.spec.ram_base)
        self._exception: int | None = None
        self._engine.hook_add(unicorn.UC_HOOK_INTR, self._on_exception)
        self._at_counter = False
        self._held_at: int | None = None
        self._passing: int | None = None
        self._stops: set[int] = set()
        for segment in self.program.segments:
            self._add_stops(segment.address, segment.data)
        self._vectors = VectorUnit(program, self.spec, self.ram) if self.spec.vlen else None
        self._functions: dict[str, FunctionCounts] = {}
        self._decoded: dict[tuple[int, int], list[tuple[str, bool, bool]]] = {}
        self._counted_from = 0
        self.hart.pc = self.program.entry

    @classmethod
    def absent_reason(cls) -> str | None:
        """What to install."""
        found = importlib.util.find_spec("unicorn")
        return None if found else "the Python package unicorn is missing; pip install unicorn"

    def _make_ram(self, nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        self._mapping = mmap.mmap(-1, nbytes)  # aligned to pages, and zero
        return np.frombuffer(self._mapping, np.uint8)

    # ---- running ----
    def run(self, *, instructions: int = 10**10, seconds: float = 60.0) -> Stop:
        """Runs until the program exits or waits."""
        self._check_alive()
        last, end = self.retired() + instructions, time.monotonic() + seconds
        while True:
            if self.retired() >= last:
                raise self._error(f"ran longer than {instructions} instructions")
            if time.monotonic() > end:
                raise self._error(f"ran longer than {seconds:g} s")
            stop = self._run_a_while(last)
            if stop is not None:
                return stop

    def _run_a_while(self, last: int) -> Stop | None:
        """Runs until something must be done by hand, and does it."""
        now = self.retired()
        exact = last
        alarm = self.bus.next_alarm()
        if alarm is not None and self._interrupts_on():
            exact = min(exact, now + alarm)
        self._passing, self._held_at = self._held_at, None
        blocks = SLICE if self._passing is None else 1
        self._blocks.start(min(exact, now + SLICE), blocks)
        done, stop = self._emulate()
        if done:
            return stop
        if blocks > 1 and self.retired() == now and 0 < exact - now < SLICE:
            return self._run_exactly(exact - now)
        self._take_interrupt()
        return None

    def _run_exactly(self, instructions: int) -> Stop | None:
        """For less than a block. Blocks that unicorn has translated already do not count what it runs."""
        self._engine.ctl_flush_tb()
        self._blocks.start((1 << 64) - 1)
        done, stop = self._emulate(instructions)
        self._engine.ctl_flush_tb()
        if not done:
            self._take_interrupt()
        return stop

    def _emulate(self, count: int = 0) -> tuple[bool, Stop | None]:
        """Runs unicorn and does what it stopped for; False if that was nothing but a limit of ours."""
        unicorn = self._unicorn
        self._exception, self._at_counter = None, False
        fault = unicorn.UC_ERR_OK
        try:
            self._engine.emu_start(self.hart.pc, _NEVER, count=count)
        except unicorn.UcError as error:
            fault = error.errno
        if self._exception is not None:
            self.hart.pc -= 4  # unicorn goes on behind what it takes for an ecall
        pc = self.hart.pc
        by_us = self._blocks.stopped_at(pc)
        if self._exception == _ILLEGAL and self._execute_vector():
            pass
        elif self._exception is not None:
            self._trap(*self._cause(self._exception))
        elif fault == unicorn.UC_ERR_INSN_INVALID:  # that is how it says ebreak
            self._trap(*self._cause(_BREAKPOINT if instruction_at(self, pc) in (0x9002, 0x0010_0073) else _ILLEGAL))
        elif fault == unicorn.UC_ERR_FETCH_UNMAPPED:
            self._trap(1, pc)
        elif fault in (unicorn.UC_ERR_READ_UNMAPPED, unicorn.UC_ERR_WRITE_UNMAPPED):
            return True, self._access(LOAD_FAULT if fault == unicorn.UC_ERR_READ_UNMAPPED else STORE_FAULT, 0)
        elif fault != unicorn.UC_ERR_OK:
            raise self._error(f"unicorn stopped: {unicorn.UcError(fault)}")
        elif self._at_counter:
            self._read_counter()
        elif self._held_at is not None:
            pass  # the next time it runs this instruction, and stops behind it
        elif not by_us and instruction_at(self, pc - 4) == WFI:
            return True, self._wait()
        else:
            return False, None
        return True, None

    def _cause(self, exception: int) -> tuple[int, int]:
        """mcause and mtval."""
        if exception == _ILLEGAL:
            return _ILLEGAL, instruction_at(self, self.hart.pc) or 0
        if exception == _BREAKPOINT:
            return _BREAKPOINT, self.hart.pc
        return (11 if exception == 8 else exception), 0  # calls come from machine mode

    def _execute_vector(self) -> bool:
        """Executes the instruction at pc if it is one for vectors."""
        pc = self.hart.pc
        word = instruction_at(self, pc)
        kind = None if word is None else vector_kind(word)
        if self._vectors is None or word is None or kind is None:
            return False
        try:
            beats = self._vectors.execute(word, kind, self.hart)
        except GuestError as error:
            raise self._error(error.reason) from error
        counts = self._functions.setdefault(self.program.function_at(pc) or "?", FunctionCounts())
        counts.vector = (counts.vector or 0) + (kind != "csr")
        counts.lane_beats = (counts.lane_beats or 0) + beats
        self._retire(pc, 4)
        self.hart.pc = pc + 4
        return True

    def _on_exception(self, engine: Any, number: int, _: object) -> None:
        self._exception = number
        engine.emu_stop()

    # ---- instructions before which unicorn stops ----
    def _add_stops(self, address: int, data: bytes) -> None:
        for at, word in system_instructions(address, data):
            if at not in self._stops and (reads_counter(word) or lets_interrupts_in(word)):
                self._stops.add(at)
                self._engine.hook_add(self._unicorn.UC_HOOK_CODE, self._on_stop, begin=at, end=at)

    def _on_stop(self, engine: Any, address: int, size: int, _: object) -> None:
        word = instruction_at(self, address) or 0  # other code may have been written there since
        if reads_counter(word):  # unicorn would give it the host's clock
            self._at_counter = True
        elif not (lets_interrupts_in(word) and self._passing != address and self._interrupt_may_come()):
            return
        else:
            self._held_at = address
        engine.emu_stop()

    def _interrupt_may_come(self) -> bool:
        return self.bus.interrupt or self.bus.next_alarm() is not None

    def _read_counter(self) -> None:
        pc = self.hart.pc
        word = instruction_at(self, pc) or 0
        value = self.retired()
        self.hart.set_x(word >> 7 & 31, value >> 32 if csr_number(word) in UPPER_COUNTERS else value)
        self._retire(pc, 4)
        self.hart.pc = pc + 4

    # ---- counts ----
    def retired(self) -> int:
        """Instructions since the start."""
        self._check_open()
        return self._blocks.retired

    def _retire(self, pc: int, nbytes: int) -> None:
        self._blocks.add(pc, nbytes)

    @property
    def counts(self) -> Counts:
        """What retired since the last reset."""
        self._sum_up()
        kinds = ("loads", "stores", "vector", "lane_beats")
        sums = {kind: sum(getattr(counts, kind) for counts in self._functions.values()) for kind in kinds}
        functions = {name: replace(counts) for name, counts in self._functions.items()}
        return Counts(self.retired() - self._counted_from, **sums, by_function=functions)

    def reset_counts(self) -> None:
        """Counts from zero again."""
        self._sum_up()
        self._functions = {}
        self._counted_from = self.retired()

    def _sum_up(self) -> None:
        """Adds what ran since the last time to the functions."""
        self._check_open()
        for address, nbytes, runs in self._blocks.take():
            for function, load, store in self._decode(address, nbytes):
                counts = self._functions.setdefault(function, FunctionCounts())
                counts.instructions += runs
                counts.loads = (counts.loads or 0) + runs * load
                counts.stores = (counts.stores or 0) + runs * store

    def _decode(self, address: int, nbytes: int) -> list[tuple[str, bool, bool]]:
        found = self._decoded.get((address, nbytes))
        if found is None:
            found, at = [], address
            while at < address + nbytes:
                word = instruction_at(self, at) or 0
                access, kind = decode_access(word, self.spec.xlen), vector_kind(word)
                load = kind == "load" or (access is not None and access.load)
                store = kind == "store" or (access is not None and access.store)
                found.append((self.program.function_at(at) or "?", load, store))
                at += instruction_bytes(word)
            self._decoded[address, nbytes] = found
        return found

    def name_range(self, name: str, start: int, end: int) -> None:
        """Names code that the host wrote into RAM."""
        self._sum_up()
        self._decoded.clear()
        super().name_range(name, start, end)

    def write(self, address: int, data: bytes) -> None:
        """Changes RAM; what unicorn has translated of it is forgotten."""
        self._sum_up()
        if any(at < address + len(data) and address < at + nbytes for at, nbytes in self._decoded):
            self._decoded.clear()
            self._engine.ctl_flush_tb()
        super().write(address, data)
        self._add_stops(address, data)

    # ---- the console ----
    @property
    def console(self) -> bytes:
        """What the guest wrote to its UART."""
        self._check_open()
        return bytes(self._console)

    def _uart_read(self, engine: Any, offset: int, size: int, _: object) -> int:
        return 0x60 if offset == 5 else 0  # ready to send

    def _uart_write(self, engine: Any, offset: int, size: int, value: int, _: object) -> None:
        if offset == 0:
            self._console.append(value & 0xFF)

    def close(self) -> None:
        """Gives unicorn's memory back."""
        self._closed = True
        self._blocks.close()
        if self._vectors is not None:
            self._vectors.close()
