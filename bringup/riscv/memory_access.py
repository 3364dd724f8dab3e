"""Loads and stores, decoded: for emulators that stop at an access to a device and leave it to us."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from bringup.riscv.interpreter import expanded


@dataclass(frozen=True)
class Access:
    """What a scalar load or store does; an atomic one is both."""

    load: bool
    store: bool
    size: int
    base: int
    """The register with the address, to which ``offset`` is added."""
    offset: int
    register: int
    """Where a load goes to, or a store comes from."""
    signed: bool = True
    floating: bool = False

    @property
    def atomic(self) -> bool:
        """Whether it is a read-modify-write."""
        return self.load and self.store


def instruction_bytes(word: int) -> int:
    """2 for a compressed instruction, else 4."""
    return 4 if word & 3 == 3 else 2


def _bits(word: int, high: int, low: int) -> int:
    return word >> low & ((1 << high - low + 1) - 1)


def _signed12(value: int) -> int:
    return value - 0x1000 if value & 0x800 else value


@functools.lru_cache(maxsize=4096)
def decode_access(word: int, xlen: int) -> Access | None:
    """The access of an instruction; None if it is not a scalar load or store.

    >>> decode_access(0x00452583, 64)  # lw a1, 4(a0)
    Access(load=True, store=False, size=4, base=10, offset=4, register=11, signed=True, floating=False)
    """
    if instruction_bytes(word) == 2:
        word = expanded(word, xlen)
    opcode, width, rd, rs1, rs2 = (_bits(word, *place) for place in ((6, 0), (14, 12), (11, 7), (19, 15), (24, 20)))
    near = _signed12(_bits(word, 31, 20))
    far = _signed12(_bits(word, 31, 25) << 5 | rd)
    if opcode == 0x03 and width != 7:
        return Access(True, False, 1 << (width & 3), rs1, near, rd, signed=width < 4)
    if opcode == 0x23 and width < 4:
        return Access(False, True, 1 << width, rs1, far, rs2)
    if opcode == 0x07 and width in (1, 2, 3):
        return Access(True, False, 1 << width, rs1, near, rd, floating=True)
    if opcode == 0x27 and width in (1, 2, 3):
        return Access(False, True, 1 << width, rs1, far, rs2, floating=True)
    if opcode == 0x2F and width in (2, 3):
        kind = _bits(word, 31, 27)  # lr only loads, sc only stores
        return Access(kind != 3, kind != 2, 1 << width, rs1, 0, rd)
    return None
