"""Reads the symbols of a DPU program's ELF file."""

from __future__ import annotations

import struct
from typing import NamedTuple

_SYMTAB = 2


class ElfSymbol(NamedTuple):
    """An address where it was linked, and how many bytes."""

    address: int
    size: int


def symbols(program: bytes) -> dict[str, ElfSymbol]:
    """Every defined name of a 32-bit ELF file."""
    if program[:5] != b"\x7fELF\x01":
        raise ValueError("not a 32-bit ELF file")
    offset, entry_bytes, count = (
        struct.unpack_from("<I", program, 32)[0],
        *struct.unpack_from("<HH", program, 46),
    )
    sections = [struct.unpack_from("<10I", program, offset + i * entry_bytes) for i in range(count)]
    found: dict[str, ElfSymbol] = {}
    for _, kind, _, _, start, nbytes, link, *_ in sections:
        if kind != _SYMTAB:
            continue
        names = sections[link][4]
        for name_at, value, size, _, _, section in struct.iter_unpack("<IIIBBH", program[start : start + nbytes]):
            if name_at and section:
                first = names + name_at
                found[program[first : program.index(0, first)].decode()] = ElfSymbol(value, size)
    return found
