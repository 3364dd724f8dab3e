"""What every emulator offers: a machine that runs a bare-metal program, and counts what it does.

Memory map: RAM at ``ram_base``; a UART (16550: bytes written to +0 are the console, +5 says it is always ready) at
``UART``; the finisher (0x5555 is exit code 0, ``0x3333 | code << 16`` another one) at ``FINISHER``; devices elsewhere.
"""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, ClassVar, Literal

from .elf import Program

if TYPE_CHECKING:
    from typing_extensions import Self

    from .device import Device

UART = 0x1000_0000
FINISHER = 0x10_0000

#: The names of x0…x31 in the calling convention.
REGISTERS = (
    "zero ra sp gp tp t0 t1 t2 s0 s1 a0 a1 a2 a3 a4 a5 a6 a7 s2 s3 s4 s5 s6 s7 s8 s9 s10 s11 t3 t4 t5 t6"
).split()

_ISA = re.compile(r"rv(?P<xlen>32|64)(?P<letters>[a-z]+?)(?P<more>(_z[a-z0-9]+)*)$")
_EXTENSIONS = ("zicsr", "zifencei", "zfh", "zfhmin", "zvfh")


@dataclass(frozen=True)
class MachineSpec:
    """The processor and its memory.

    >>> MachineSpec("rv64gcv", vlen=256).extensions
    frozenset({...})
    >>> MachineSpec("rv32imc").xlen
    32
    """

    isa: str = "rv64gc"
    """rv64gc, rv64gcv, rv32imc, rv32imfc; ``_zfh`` and ``_zvfh`` behind it add half floats."""
    vlen: int = 0
    """Bits of a vector register, 128…1024; 0 without V."""
    ram_base: int = 0x8000_0000
    ram_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        unknown = [name for name in self.extensions if len(name) > 1 and name not in _EXTENSIONS]
        if unknown or not self.extensions >= {"i"}:
            raise ValueError(f"isa '{self.isa}': {', '.join(unknown) or 'the base instructions (i)'} not known here")
        if self.vlen not in ((128, 256, 512, 1024) if "v" in self.extensions else (0,)):
            wanted = "128, 256, 512 or 1024" if "v" in self.extensions else f"0, as '{self.isa}' has no v"
            raise ValueError(f"vlen is {self.vlen}, and must be {wanted}")
        if self.ram_bytes <= 0 or self.ram_bytes % 4096 or self.ram_base % 4096 or self.ram_base < 0:
            raise ValueError(f"RAM of {self.ram_bytes:#x} bytes at {self.ram_base:#x}: both must be multiples of 4096")
        if self.ram_base + self.ram_bytes > 1 << min(self.xlen, 56):
            raise ValueError(f"RAM of {self.ram_bytes:#x} bytes at {self.ram_base:#x} ends beyond the address space")

    @property
    def xlen(self) -> int:
        """Bits of an integer register."""
        return int(self._parts["xlen"])

    @property
    def extensions(self) -> frozenset[str]:
        """Letters and z-names, with ``g`` and what an extension implies written out."""
        named = {*self._parts["letters"].replace("g", "imafd"), *self._parts["more"].split("_")} - {""}
        implied = {"v": "d", "d": "f", "zvfh": "zfh", "zfh": "zfhmin", "zfhmin": "f"}
        while missing := {implied[name] for name in named if name in implied} - named:
            named |= missing
        return frozenset(named)

    @property
    def _parts(self) -> re.Match[str]:
        match = _ISA.match(self.isa)
        if match is None:
            raise ValueError(f"isa '{self.isa}' reads unlike rv64gc, rv64gcv, rv32imc or rv64gcv_zfh")
        return match


@dataclass
class FunctionCounts:
    """What one function retired, without the functions that it called; None where an emulator does not count it."""

    instructions: int = 0
    loads: int | None = 0
    stores: int | None = 0
    vector: int | None = 0
    lane_beats: int | None = 0


@dataclass
class Counts:
    """What retired since the last reset; None where an emulator does not count it.

    An atomic read-modify-write is a load and a store. A vector instruction moves ``ceil(vl·SEW / VLEN)`` lane-beats, of
    the wider SEW where it widens or narrows, times the fields of a segment; vset* moves none.
    """

    instructions: int = 0
    loads: int | None = None
    stores: int | None = None
    vector: int | None = None
    """Vector instructions, vset* included."""
    lane_beats: int | None = None
    by_function: dict[str, FunctionCounts] | None = field(default=None, repr=False)
    """By symbol; code without one is '?'."""


@dataclass(frozen=True)
class Stop:
    """Why ``run`` came back: the program ended, or waits (``wfi`` with nothing pending), to go on at the next run."""

    reason: Literal["exit", "idle"]
    code: int = 0


class GuestError(RuntimeError):
    """A program that trapped, hung or used a device wrongly: where it was, and its registers."""

    def __init__(
        self,
        reason: str,
        *,
        pc: int,
        instruction: int | None = None,
        function: str | None = None,
        line: str | None = None,
        registers: Sequence[int] = (),
        machine: str = "",
        xlen: int = 64,
    ) -> None:
        self.reason = reason
        self.pc = pc
        self.instruction = instruction
        self.function = function
        self.line = line
        # Emulators keep 32-bit registers sign-extended; the program has no upper half.
        self.registers = {name: value & (1 << xlen) - 1 for name, value in zip(REGISTERS, registers)}
        where = f"pc {pc:#x}"
        where += f" in {function}" if function else ""
        where += f" ({line})" if line else ""
        where += (
            f", instruction {instruction:#0{10 if instruction & 3 == 3 else 6}x}" if instruction is not None else ""
        )
        named = [f"{name:>4} {value:#0{2 + xlen // 4}x}" for name, value in self.registers.items()]
        table = ["  ".join(named[i : i + 4]) for i in range(0, len(named), 4)]
        super().__init__("\n  ".join([f"RISC-V guest{f' on {machine}' if machine else ''}: {reason}", where, *table]))


class Machine(ABC):
    """A bare-metal machine with a program (an ELF file, or its bytes) in its memory.

    ``devices`` maps base addresses to devices; each machine puts them on a Bus (device.py).
    """

    name: ClassVar[str]
    """How open_machine knows it."""

    def __init__(
        self,
        program: bytes | Path,
        spec: MachineSpec | None = None,
        devices: Mapping[int, Device] = MappingProxyType({}),
    ) -> None:
        reason = self.absent_reason()
        if reason is not None:
            raise RuntimeError(f"machine '{self.name}' cannot run here: {reason}")
        self.spec = spec or MachineSpec()
        self.program = Program(program)
        if self.program.xlen != self.spec.xlen:
            raise ValueError(f"the program is for {self.program.xlen} bits, and the machine is {self.spec.isa}")
        low, high = self.spec.ram_base, self.spec.ram_base + self.spec.ram_bytes
        for segment in self.program.segments:
            if not low <= segment.address <= segment.address + segment.memory_bytes <= high:
                raise ValueError(
                    f"the program has {segment.memory_bytes:#x} bytes at {segment.address:#x}, outside of RAM "
                    f"({low:#x} to {high:#x}): give the machine more ram_bytes, or link it to another address"
                )

    @abstractmethod
    def run(self, *, instructions: int = 10**10, seconds: float = 60.0) -> Stop:
        """Runs until the program exits or waits; raises GuestError when it traps, or runs longer than the limits."""

    @abstractmethod
    def read(self, address: int, nbytes: int) -> bytes:
        """Bytes of RAM."""

    @abstractmethod
    def write(self, address: int, data: bytes) -> None:
        """Changes RAM; code may be among it."""

    @property
    @abstractmethod
    def counts(self) -> Counts:
        """What retired since the last reset."""

    @abstractmethod
    def reset_counts(self) -> None:
        """Counts from zero again."""

    @property
    @abstractmethod
    def console(self) -> bytes:
        """What the guest wrote to its UART."""

    def _place(self, address: int, nbytes: int) -> slice:
        """Where in RAM an address is; ValueError for what is not all within it."""
        at = address - self.spec.ram_base
        if nbytes < 0 or not 0 <= at <= self.spec.ram_bytes - nbytes:
            end = self.spec.ram_base + self.spec.ram_bytes
            raise ValueError(f"{nbytes} bytes at {address:#x} are not within RAM ({self.spec.ram_base:#x} to {end:#x})")
        return slice(at, at + nbytes)

    def name_range(self, name: str, start: int, end: int) -> None:
        """Names code that the host wrote into RAM, for counts and errors."""
        self.program.name_range(name, start, end)

    def guest_error(self, reason: str, pc: int, registers: Sequence[int], instruction: int | None = None) -> GuestError:
        """The error of this machine at a place of its program."""
        return GuestError(
            reason,
            pc=pc,
            instruction=instruction,
            function=self.program.function_at(pc),
            line=self.program.line_at(pc),
            registers=registers,
            machine=self.name,
            xlen=self.spec.xlen,
        )

    def close(self) -> None:  # noqa: B027 - most machines hold nothing that must be given back
        """Gives back what the machine holds; it cannot be used any more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @classmethod
    def absent_reason(cls) -> str | None:
        """None if it can run here, else what to install."""
        return None


_MACHINES = {
    "interpreter": ("interpreter", "Interpreter"),
    "qemu": ("qemu", "QemuMachine"),
}
MACHINES = tuple(_MACHINES)


def machine_class(name: str | None = None) -> type[Machine]:
    """The emulator of a name; the default is our interpreter.

    >>> machine_class("interpreter").name
    'interpreter'
    """
    if name is not None and name not in _MACHINES:
        raise ValueError(f"machine '{name}' is none of {', '.join(_MACHINES)}")
    module, attribute = _MACHINES[name or "interpreter"]
    found: type[Machine] = getattr(importlib.import_module(f".{module}", __package__), attribute)
    return found


def open_machine(
    name: str | None,
    program: bytes | Path,
    spec: MachineSpec | None = None,
    devices: Mapping[int, Device] = MappingProxyType({}),
) -> Machine:
    """A machine with a program in it; raises RuntimeError with what to install when the emulator is not here."""
    return machine_class(name)(program, spec, devices)
