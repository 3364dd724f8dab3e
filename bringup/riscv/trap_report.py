"""Traps by name, and the line that crt0.S writes to the console for one that the program does not handle."""

from __future__ import annotations

import re

from bringup.riscv.machine import GuestError, Machine

_LINE = re.compile(rb"\nbringup trap:((?: [0-9a-f]+){34})\n$")
_CAUSES = {
    0: "jump to the misaligned address",
    1: "jump outside of memory, to",
    2: "illegal instruction",
    3: "breakpoint (ebreak)",
    4: "misaligned load at",
    5: "load outside of memory and devices, at",
    6: "misaligned store at",
    7: "store outside of memory and devices, at",
    8: "environment call (ecall)",
    11: "environment call (ecall)",
}


def trap_reason(cause: int, value: int) -> str:
    """Words for mcause and mtval.

    >>> trap_reason(5, 0x10)
    'load outside of memory and devices, at 0x10'
    """
    words = _CAUSES.get(cause, f"trap with cause {cause:#x}")
    return f"{words} {value:#x}" if words.endswith((" at", " to", "address")) else words


def reported_trap(machine: Machine) -> GuestError | None:
    """The error in the last line of the console; None if that is not a trap's."""
    line = _LINE.search(machine.console)
    if line is None:
        return None
    cause, pc, value, *registers = (int(word, 16) for word in line[1].split())
    return machine.guest_error(trap_reason(cause, value), pc, [0, *registers], instruction_at(machine, pc))


def instruction_at(machine: Machine, pc: int) -> int | None:
    """The instruction at an address, None where no memory is."""
    low, high = machine.spec.ram_base, machine.spec.ram_base + machine.spec.ram_bytes
    if not low <= pc <= high - 2:
        return None
    half = int.from_bytes(machine.read(pc, 2), "little")
    return half if half & 3 != 3 or pc > high - 4 else int.from_bytes(machine.read(pc, 4), "little")
