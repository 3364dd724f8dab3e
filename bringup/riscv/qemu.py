"""QEMU as a machine: its own process, driven through its debugger port.

Nothing inside QEMU is touched, and it knows no device of ours: it stops at an access, we do what the instruction does,
and it goes on behind it. Memory is a file that both sides map. Physical memory protection hides everything else
but the UART, so that an access to a device, to the finisher or to nothing traps, and a breakpoint waits at the trap
vector; other breakpoints are on `wfi` and on instructions that concern traps. With ``-icount shift=0`` its minstret
counts exactly.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from bringup.riscv.device import Bus, Device
from bringup.riscv.machine import FINISHER, UART, Counts, Machine, MachineSpec, Stop
from bringup.riscv.memory_access import Access, decode_access, instruction_bytes
from bringup.riscv.qemu_gdb import OF_A_TRAP, GdbPort, QemuHart
from bringup.riscv.system_instructions import WFI, csr_number, lets_interrupts_in, system_instructions
from bringup.riscv.trap_report import instruction_at, reported_trap, trap_reason

#: Seconds until QEMU must listen.
START_SECONDS = 20.0
#: A running guest is looked at this often, for the limits.
LOOK_SECONDS = 0.25
#: QEMU's `virt` puts its description of the hardware near the end of memory; this much more keeps it out of ours.
_BEYOND = 4 << 20
_MTVEC, _MEPC, _MCAUSE, _MTVAL = 0x305, 0x341, 0x342, 0x343
_ILLEGAL, _BREAKPOINT, _ENVIRONMENT_CALLS = 2, 3, range(8, 12)
#: Bits of mstatus, and of mie and mip.
MIE, MPIE, MPP = 1 << 3, 1 << 7, 3 << 11
MEIE = 1 << 11
LOAD_FAULT, STORE_FAULT = 5, 7
EXTERNAL_INTERRUPT = 11
#: Bytes in one packet: QEMU takes 4096 characters, two per byte.
_PACKET_BYTES = 1024


class QemuMachine(Machine):
    """Runs a program in QEMU; it counts instructions only. Exact in what it counts and in when interrupts are taken."""

    name: ClassVar[str] = "qemu"

    def __init__(
        self,
        program: bytes | Path,
        spec: MachineSpec | None = None,
        devices: Mapping[int, Device] = MappingProxyType({}),
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="bringup-qemu-", dir=_shared_memory()))
        self._finalizer: weakref.finalize[..., QemuMachine] = weakref.finalize(self, _end, None, self._folder)
        self._counter = self._retired = self._counted_from = 0
        self._ended: Stop | None = None
        self._closed = False
        super().__init__(program, spec, devices)
        if self.spec.ram_base != 0x8000_0000:
            raise ValueError(f"machine 'qemu' has its memory at 0x80000000, not at {self.spec.ram_base:#x}")
        self.ram = self._make_ram(self.spec.ram_bytes)
        this = weakref.ref(self)  # so that a forgotten machine ends at once

        def retired() -> int:
            machine = this()
            assert machine is not None, "only a machine that runs has devices that ask"
            return machine._retired

        self.bus = Bus(devices, self.ram, self.spec.ram_base, retired)
        for segment in self.program.segments:
            self.bus.memory.write(segment.address, segment.data)
        self._process = self._start()
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _end, self._process, self._folder)
        self._port = self._connect()
        self.hart = QemuHart(self._port, self.spec.xlen)
        self._breakpoints: set[int] = set()
        self._before_trap: dict[str, int] = {}
        self._has_run = False
        self._prepare()

    @classmethod
    def absent_reason(cls) -> str | None:
        """What to install."""
        if shutil.which("qemu-system-riscv64"):
            return None
        return "there is no program qemu-system-riscv64; apt-get install qemu-system-misc"

    def _make_ram(self, nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        with (self._folder / "ram").open("w+b") as file:
            file.truncate(nbytes + _BEYOND)
            return np.frombuffer(mmap.mmap(file.fileno(), nbytes), np.uint8)

    def _start(self) -> subprocess.Popen[bytes]:
        total = self.spec.ram_bytes + _BEYOND
        command = [f"qemu-system-riscv{self.spec.xlen}", "-M", "virt,memory-backend=ram", "-m", f"{total}B"]
        command += ["-object", f"memory-backend-file,id=ram,size={total},mem-path={self._folder / 'ram'},share=on"]
        command += ["-cpu", _processor(self.spec), "-icount", "shift=0", "-bios", "none", "-display", "none"]
        command += ["-monitor", "none", "-serial", f"file:{self._folder / 'console'}", "-nodefaults"]
        command += ["-S", "-gdb", f"unix:{self._folder / 'gdb'},server=on,wait=off"]
        with (self._folder / "errors").open("wb") as errors:
            # Its own session: Ctrl-C in a terminal is for Python, and would end QEMU.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True
            )

    def _connect(self) -> GdbPort:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(TimeoutError):
                return GdbPort(self._folder / "gdb", 0.05)
        words = (self._folder / "errors").read_text(errors="replace").strip()
        self.close()
        raise RuntimeError(f"QEMU does not start: {words or f'it does not listen after {START_SECONDS:g} s'}")

    def _prepare(self) -> None:
        """From the reset vector of `virt` to the program's entry, with protected addresses and a counter at zero."""
        # The clock jumps once, when the first instruction runs; afterwards it counts instructions alone.
        self._port.ask(b"s")
        protection = _protection(self.spec)
        registers = dict.fromkeys(self.hart.names[1:32], 0)
        self._port.expect_ok(self._port.writes({**protection, **registers, "pc": self.program.entry, "mcause": 0}))
        for segment in self.program.segments:
            self._add_stops(segment.address, segment.data)
        self.hart.fetch()
        self._set_counter(-1)  # a guest that reads it in QEMU finds the reading instruction counted
        self._note_traps()

    # ---- breakpoints ----
    def _add_breakpoint(self, address: int) -> None:
        if address not in self._breakpoints:
            self._breakpoints.add(address)
            self._port.expect_ok([b"Z0,%x,4" % address])

    def _add_stops(self, address: int, data: bytes) -> None:
        for at, word in system_instructions(address, data):
            if word == WFI or lets_interrupts_in(word) or csr_number(word) in (_MTVEC, _MEPC, _MCAUSE, _MTVAL):
                self._add_breakpoint(at)

    # ---- running ----
    def run(self, *, instructions: int = 10**10, seconds: float = 60.0) -> Stop:
        """Runs until the program exits or waits; the limit of instructions is looked at now and then."""
        self._check_alive()
        self._has_run = True
        last, end = self._retired + instructions, time.monotonic() + seconds
        try:
            while True:
                stop = self._run_a_while(end)
                if stop is not None:
                    return stop
                if self._retired >= last:
                    raise self._error(f"ran longer than {instructions} instructions")
                if time.monotonic() >= end:
                    raise self._error(f"ran longer than {seconds:g} s")
        except ConnectionError as error:
            raise RuntimeError(f"QEMU ended by itself: {self._last_words()}") from error

    def _run_a_while(self, end: float) -> Stop | None:
        """Runs to the next stop, and does what it is for."""
        hart = self.hart
        at_breakpoint = hart.pc in self._breakpoints
        if at_breakpoint and instruction_at(self, hart.pc) == WFI:
            self._retire(4)
            return self._wait()
        if at_breakpoint:
            self._step_over()
        elif self.bus.next_alarm() is not None and self._interrupts_on():
            self._ask_with_changes(b"s")  # slow, but the interrupt comes when it should
            self._fetch()
        else:
            self._continue(end)
        if hart.pc == hart.csr("mtvec") & ~3:
            return self._trapped()
        if at_breakpoint:
            self._note_traps()
        self._take_interrupt()
        return None

    def _ask_with_changes(self, *requests: bytes) -> None:
        """Brings the hart's changes to QEMU, then some requests, of which the last may make it run."""
        changes = self._port.writes(self.hart.changed)
        self._expect_ok(self._port.ask(*changes, *requests, timeout=60.0)[: len(changes)])

    @staticmethod
    def _expect_ok(answers: Iterable[bytes]) -> None:
        refused = [answer for answer in answers if answer != b"OK"]
        if refused:
            raise RuntimeError(f"QEMU's debugger port does not take a register: {refused[0]!r}")

    def _step_over(self) -> None:
        """QEMU would not move from a breakpoint."""
        here = b"0,%x,4" % self.hart.pc
        self._ask_with_changes(b"z" + here, b"s")
        self._port.expect_ok([b"Z" + here])
        self._fetch()

    def _continue(self, end: float) -> None:
        changes = self._port.writes(self.hart.changed)
        self._port.send(*changes, b"c")
        self._expect_ok(self._port.answer(60.0) for _ in changes)
        try:
            self._port.answer(max(0.0, min(LOOK_SECONDS, end - time.monotonic())))
        except TimeoutError:
            self._interrupt()
        except KeyboardInterrupt:
            self._interrupt()
            self._fetch()
            raise
        self._fetch()

    def _interrupt(self) -> None:
        self._port.interrupt()
        self._port.answer(60.0)

    def _trapped(self) -> Stop | None:
        """Undoes a trap of QEMU's, to decide what it means."""
        hart = self.hart
        cause, value = hart.csr("mcause"), hart.csr("mtval")
        mstatus = hart.csr("mstatus")
        restored = mstatus & ~(MIE | MPIE | MPP) | (MIE if mstatus & MPIE else 0)
        hart.pc = hart.csr("mepc")
        for name in OF_A_TRAP:
            hart.set_csr(name, self._before_trap[name])
        hart.set_csr("mstatus", restored | self._before_trap["mstatus"] & (MPIE | MPP))
        if _is_counted(cause, instruction_at(self, hart.pc)):
            self._retired -= 1
            self._set_counter(self._counter - 1)
        if cause in (LOAD_FAULT, STORE_FAULT):
            return self._access(cause, value)
        self._trap(cause, hart.pc if cause == _BREAKPOINT else value)  # as in the other machines
        return None

    def _note_traps(self) -> None:
        """Remembers what the next trap will overwrite, and where it will go."""
        self._before_trap = {name: self.hart.csr(name) for name in ("mstatus", *OF_A_TRAP)}
        self._add_breakpoint(self.hart.csr("mtvec") & ~3)

    # ---- what a stop means; each leaves the hart ready to go on ----
    def _access(self, cause: int, trapped: int) -> Stop | None:
        """Does the load or store at pc if it is for a device, else lets the guest trap.

        The cause and the address are the emulator's; of scalar accesses we know both ourselves.
        """
        hart = self.hart
        word = instruction_at(self, hart.pc)
        access = None if word is None else decode_access(word, self.spec.xlen)
        address = trapped
        if access is None and self.bus.find(address) is not None:
            raise self._error(f"device at {address:#x}: devices know only scalar loads and stores")
        if access is not None and word is not None:
            address = (hart.x(access.base) + access.offset) & ((1 << self.spec.xlen) - 1)
            if access.store and not access.load and FINISHER <= address < FINISHER + 0x1000:
                self._retire(instruction_bytes(word))
                return self._finish(address, hart.x(access.register))
            if self.bus.find(address) is not None:
                self._device_access(access, address)
                self._retire(instruction_bytes(word))
                self._take_interrupt()
                return None
            cause = STORE_FAULT if access.store else LOAD_FAULT
        self._trap(cause, address)
        return None

    def _finish(self, address: int, value: int) -> Stop | None:
        kind, code = value & 0xFFFF, value >> 16 & 0xFFFF
        if address != FINISHER or kind not in (0x5555, 0x3333):
            return None  # as in QEMU: other values mean nothing
        self._ended = Stop("exit", code if kind == 0x3333 else 0)
        error = reported_trap(self)
        if error is not None:
            raise error
        return self._ended

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
        self._note_traps()

    def _error(self, reason: str) -> Exception:
        hart = self.hart
        registers = [hart.x(number) for number in range(32)]
        return self.guest_error(reason, hart.pc, registers, instruction_at(self, hart.pc))

    # ---- memory and counts ----
    def read(self, address: int, nbytes: int) -> bytes:
        """Bytes of RAM."""
        return self._checked(address, nbytes).tobytes()

    def write(self, address: int, data: bytes) -> None:
        """Changes RAM; code may be among it."""
        place = self._checked(address, len(data))
        if not self._has_run:
            place[:] = np.frombuffer(data, np.uint8)
        else:  # through the port, so that QEMU forgets what it has translated of it
            for group in range(0, len(data), 16 * _PACKET_BYTES):
                ends = range(group, min(group + 16 * _PACKET_BYTES, len(data)), _PACKET_BYTES)
                parts = [(address + at, data[at : at + _PACKET_BYTES]) for at in ends]
                self._port.expect_ok([b"M%x,%x:%s" % (at, len(part), part.hex().encode()) for at, part in parts])
        self._add_stops(address, data)

    def _checked(self, address: int, nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        self._check_open()
        return self.ram[self._place(address, nbytes)]

    def _retire(self, nbytes: int) -> None:
        """Goes on behind an instruction that was done here instead of in QEMU, and counts it."""
        self.hart.pc += nbytes
        self._retired += 1
        self._set_counter(self._counter + 1)

    def _fetch(self) -> None:
        """Reads the registers; the counter wraps in 32 bits, but is looked at more often than that."""
        self.hart.fetch()
        counter = self.hart.csr("minstret")
        self._retired += (counter - self._counter) % (1 << self.spec.xlen)
        self._counter = counter

    def _set_counter(self, value: int) -> None:
        self._counter = value % (1 << self.spec.xlen)
        self.hart.set_csr("minstret", value)
        self.hart.set_csr("mcycle", value)

    @property
    def counts(self) -> Counts:
        """Instructions; QEMU counts nothing else."""
        self._check_open()
        return Counts(self._retired - self._counted_from)

    def reset_counts(self) -> None:
        """Counts from zero again."""
        self._counted_from = self._retired

    @property
    def console(self) -> bytes:
        """What the guest wrote to its UART."""
        self._check_open()
        return (self._folder / "console").read_bytes()

    def _last_words(self) -> str:
        return (self._folder / "errors").read_text(errors="replace").strip() or "it said nothing"

    def _check_alive(self) -> None:
        self._check_open()
        if self._ended is not None:
            raise RuntimeError(f"the program has ended with exit code {self._ended.code}; make a new machine")

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the machine is closed")

    def close(self) -> None:
        """Ends QEMU."""
        self._closed = True
        self._finalizer()


def _is_counted(cause: int, instruction: int | None) -> bool:
    """Whether QEMU counts an instruction that trapped: it does where translating showed that it would."""
    if cause == _ILLEGAL:
        return instruction is not None and csr_number(instruction) is None
    return cause == _BREAKPOINT or cause in _ENVIRONMENT_CALLS


def _protection(spec: MachineSpec) -> dict[str, int]:
    """Registers of the physical memory protection that hide all of `virt` but the UART and our memory."""
    locked, up_to_here, all_rights, read_write = 0x80, 0x08, 0x07, 0x03  # locked: for machine mode, too
    rights = {
        UART: locked | up_to_here,
        UART + 0x1000: up_to_here | read_write,
        spec.ram_base: locked | up_to_here,
        spec.ram_base + spec.ram_bytes: up_to_here | all_rights,
        1 << (56 if spec.xlen == 64 else 34): locked | up_to_here,
    }
    registers = {f"pmpaddr{at}": (end >> 2) - (end >> 34 != 0) for at, end in enumerate(rights)}
    kinds = int.from_bytes(bytes(rights.values()), "little")
    if spec.xlen == 64:
        return {**registers, "pmpcfg0": kinds}
    return {**registers, "pmpcfg0": kinds & 0xFFFF_FFFF, "pmpcfg1": kinds >> 32}


def _processor(spec: MachineSpec) -> str:
    """QEMU's words for a processor.

    >>> _processor(MachineSpec("rv64gcv", vlen=256))
    'rv64,m=true,a=true,f=true,d=true,c=true,v=true,vlen=256,elen=64,vext_spec=v1.0'
    """
    words = [f"rv{spec.xlen}"]
    words += [f"{letter}={'true' if letter in spec.extensions else 'false'}" for letter in "mafdc"]
    if spec.vlen:
        words += ["v=true", f"vlen={spec.vlen}", "elen=64", "vext_spec=v1.0"]
    words += [f"{name.capitalize()}=true" for name in ("zfh", "zfhmin") if name in spec.extensions]
    return ",".join(words)


def _shared_memory() -> str | None:
    """A folder in memory: the guest's RAM is a file there."""
    folder = "/dev/shm"
    return folder if os.access(folder, os.W_OK) else None


def _end(process: subprocess.Popen[bytes] | None, folder: Path) -> None:
    if process is not None:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
