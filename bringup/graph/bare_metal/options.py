"""What a bare-metal program is made for: the core, its memory, and what is attached to it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import Any

from bringup.riscv.gemm import BASE as GEMM_BASE
from bringup.riscv.machine import MACHINES, MachineSpec
from bringup.riscv.toolchain import ISAS

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
#: The smallest memory that emulators get; a larger model gets more.
_RAM = 64 << 20


@dataclass(frozen=True)
class BareMetal:
    """Choices for the target "riscv"."""

    vector: int = 0
    """Bits of a vector register for emulators (128 … 1024); 0: scalar code. Vector code runs on every length."""
    isa: str = ""
    """rv64gc, rv64gc_zfh, rv64gcv, rv32imc or rv32imfc; by default rv64gc, with vectors rv64gcv."""
    name: str = "model"
    """What files and functions are called."""
    machine: str = ""
    """The emulator: interpreter (default) or qemu."""
    ram: str | int = 0
    """Bytes of RAM, such as "512K": a program that needs more is an error. By default as much as it needs."""
    flash: str | int = 0
    """Bytes of flash for code and weights, likewise."""
    stack: str | int = 64 << 10
    """Bytes of RAM for the stack; reports say how much of it a run used."""
    accelerator: str = ""
    """gemm@0x10320000: matrix products go to the matrix engine at that address."""
    toolchain: str = ""
    """zig, clang or gcc; by default the first there is. With vectors, C for gcc is written without them."""
    seconds: float = 60.0
    """How long a run may take."""
    fold_batch_norm: bool = True
    """Batch norms in evaluation become part of the weights before them."""

    def __post_init__(self) -> None:
        if self.vector not in (0, 128, 256, 512, 1024):
            raise ValueError(f"vector={self.vector} is none of 0, 128, 256, 512 and 1024 bits")
        if self.chosen_isa not in ISAS:
            raise ValueError(f"isa '{self.isa}' is none of {', '.join(ISAS)}")
        if self.vector and not self.chosen_isa.endswith("v"):
            raise ValueError(f"vector={self.vector} needs an isa with v, not {self.isa}")
        if self.machine and self.machine not in MACHINES:
            raise ValueError(f"machine '{self.machine}' is none of {', '.join(MACHINES)}")
        if self.toolchain not in ("", "zig", "clang", "gcc"):
            raise ValueError(f"toolchain '{self.toolchain}' is none of zig, clang and gcc")
        parse_bytes(self.ram)
        parse_bytes(self.flash)
        if self.stack_bytes < 1024:
            raise ValueError(f"a stack of {self.stack_bytes} bytes is too small for any program: 1K at least")
        number = isinstance(self.seconds, (int, float)) and not isinstance(self.seconds, bool)
        if not number or not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds={self.seconds} is not a time for a run: a number above 0")
        if self.accelerator:
            self.gemm_base  # noqa: B018 - says what is wrong with it

    @property
    def chosen_isa(self) -> str:
        """The instruction set."""
        return self.isa or ("rv64gcv" if self.vector else "rv64gc")

    @property
    def gemm_base(self) -> int:
        """The address of the matrix engine."""
        match = re.fullmatch(r"gemm(?:@(0x[0-9a-fA-F]+|\d+))?", self.accelerator)
        if match is None:
            raise ValueError(f"accelerator '{self.accelerator}' reads unlike gemm@0x10320000")
        return int(match[1], 0) if match[1] else GEMM_BASE

    @property
    def stack_bytes(self) -> int:
        """Bytes of the stack, in whole 16."""
        return -(-parse_bytes(self.stack) // 16) * 16

    def spec(self, needed: int) -> MachineSpec:
        """A machine with enough memory for a program of some bytes: what stands for flash lies in RAM, too."""
        ram = _RAM
        while ram < needed:
            ram *= 2
        vlen = (self.vector or 128) if self.chosen_isa.endswith("v") else 0
        return MachineSpec(self.chosen_isa, vlen=vlen, ram_bytes=ram)


def bare_metal(options: dict[str, Any]) -> BareMetal:
    """The choices of a dictionary; an unknown one is an error that lists all.

    >>> bare_metal({"vector": 256}).chosen_isa
    'rv64gcv'
    """
    known = [field.name for field in fields(BareMetal)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r} for target riscv: there are {', '.join(known)}")
    return BareMetal(**options)


def parse_bytes(text: str | int) -> int:
    """A number of bytes.

    >>> parse_bytes("512K"), parse_bytes(100)
    (524288, 100)
    """
    if isinstance(text, int):
        number = text
    else:
        match = re.fullmatch(r"\s*(\d+)\s*([KMG]?)(?:i?B)?\s*", text)
        if match is None:
            raise ValueError(f"'{text}' is not a number of bytes: write 65536, 64K, 2M or 1G")
        number = int(match[1]) * _UNITS[match[2]]
    if number < 0:
        raise ValueError(f"{number} bytes are less than none")
    return number
