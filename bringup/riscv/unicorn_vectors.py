"""Vector instructions for unicorn, which has none: our interpreter executes them on the same memory, one by one."""

from __future__ import annotations

from pathlib import Path

from bringup.riscv.device import Bytes
from bringup.riscv.hosted import Hart
from bringup.riscv.interpreter import Interpreter
from bringup.riscv.machine import MachineSpec
from bringup.riscv.system_instructions import csr_number

_ARITHMETIC, _LOAD, _STORE = 0x57, 0x07, 0x27
_VTYPE = 0xC21
_CSRS = frozenset({0x008, 0x009, 0x00A, 0x00F, 0xC20, 0xC21, 0xC22})


def vector_kind(word: int) -> str | None:
    """What a vector instruction is: arithmetic, load, store or csr (a read of vl, vlenb …); None for the others.

    >>> vector_kind(0x02056407), vector_kind(0x00452507)  # vle32.v, flw
    ('load', None)
    """
    opcode, width = word & 0x7F, word >> 12 & 7
    if opcode == _ARITHMETIC:
        return "arithmetic"
    if opcode in (_LOAD, _STORE) and width in (0, 5, 6, 7):
        return "load" if opcode == _LOAD else "store"
    is_read = width in (2, 3, 6, 7) and word >> 15 & 31 == 0
    return "csr" if is_read and csr_number(word) in _CSRS else None


class VectorUnit:
    """The vector registers of a guest in unicorn."""

    def __init__(self, program: bytes | Path, spec: MachineSpec, ram: Bytes) -> None:
        self._interpreter = Interpreter(program, spec, ram=ram)

    def execute(self, word: int, kind: str, hart: Hart) -> int:
        """Executes an instruction; gives its lane-beats. A fault is a GuestError of the interpreter's."""
        rd, rs1, rs2 = word >> 7 & 31, word >> 15 & 31, word >> 20 & 31
        if kind == "csr":
            hart.set_x(rd, self._interpreter.csr(word >> 20))
            return 0
        registers = self._interpreter.registers
        # unicorn does not always fill the upper bits of a narrow float with ones, as an element's scalar must have.
        element_bits = 8 << (self._interpreter.csr(_VTYPE) >> 3 & 3)
        filled = (1 << 64) - (1 << element_bits)
        # Which of these an instruction reads or writes depends on its form; it leaves the others alone.
        for number in {rd, rs1, rs2}:
            registers.x[number] = hart.x(number)
            registers.f[number] = hart.f(number) | filled
        before = registers.x[rd], registers.f[rd]
        registers.pc = hart.pc
        beats = self._interpreter.execute_vector(word)
        if rd and registers.x[rd] != before[0]:
            hart.set_x(rd, registers.x[rd])
        if registers.f[rd] != before[1]:
            hart.set_f(rd, registers.f[rd])
        return beats

    def close(self) -> None:
        """Gives its memory back."""
        self._interpreter.close()
