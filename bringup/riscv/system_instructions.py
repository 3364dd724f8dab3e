"""Finds the system instructions in code (wfi, CSR accesses): where an emulator must stop for us."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

WFI, MRET = 0x1050_0073, 0x3020_0073
MSTATUS, MIE = 0x300, 0x304


def system_instructions(address: int, data: bytes) -> Iterator[tuple[int, int]]:
    """(address, instruction) wherever the bytes look like one; constants may, too, but they are never run.

    >>> list(system_instructions(0x80000000, bytes.fromhex("01001300000073005010")))
    [(2147483654, 273678451)]
    """
    halves = np.frombuffer(data, "<u2", count=len(data) // 2)
    for at in np.flatnonzero(halves[:-1] & 0x7F == 0x73):
        yield address + 2 * int(at), int(halves[at]) | int(halves[at + 1]) << 16


def csr_number(word: int) -> int | None:
    """The CSR that an instruction accesses, None if it is not a CSR instruction."""
    return word >> 20 if word & 0x7F == 0x73 and word >> 12 & 3 else None


def lets_interrupts_in(word: int) -> bool:
    """Whether an interrupt that waits may be taken behind it: it returns from a handler, or writes mstatus or mie."""
    return word == MRET or csr_number(word) in (MSTATUS, MIE)
