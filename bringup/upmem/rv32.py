"""DPU programs as RV32 code, for counting: compiled from the same sources, with a weight for each instruction.

The DPU's own instruction set has no public compiler back end. What stands in is rv32i, compiled so that arrays are
indexed as the DPU's compiler does (no induction variables), without a multiplier (the chip has products of bytes only).
Where the DPU does in one instruction what RV32 does in two (address of an array element, a load of 64 bits, an addition
with carry), the second weighs nothing.
"""

from __future__ import annotations

import functools
import json
import re
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bringup.riscv.toolchain import ToolchainMissing, find_toolchain

from .image import symbols
from .toolchain import DPU_HEADERS, RUNTIME, DpuCompileError, DpuToolchainMissing, run_compiler

CALIBRATION = Path(__file__).with_name("calibration.json")
IRAM_INSTRUCTIONS = 4096
_TEXT = 0x0C000000

#: One instruction of the chip each, which the call stands for.
_FREE = {"mutex_lock", "mutex_unlock", "mutex_trylock"}

_FLAGS = (
    "-O2",
    "-std=gnu11",
    "-ffreestanding",
    "-nostdinc",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-ffunction-sections",
    "-fdata-sections",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-g0",
)
_GCC = (
    "-march=rv32i",
    "-mabi=ilp32",
    "-msmall-data-limit=0",
    "-fno-ivopts",
    "-fno-tree-loop-ivcanon",
    "-fno-tree-loop-distribute-patterns",
    "-fno-toplevel-reorder",
)


@functools.cache
def calibration() -> dict[str, Any]:
    """The numbers that timing stands on, each with its provenance (``calibration.json``)."""
    data: dict[str, Any] = json.loads(CALIBRATION.read_text(encoding="utf-8"))
    return data


def compile_rv32(sources: Sequence[str], tasklets: int, stacks: int, flags: Sequence[str] = ()) -> bytes:
    """The RV32 ELF file of a DPU program; raises DpuToolchainMissing where there is no gcc for RISC-V."""
    words = _compiler(tasklets, flags)
    with tempfile.TemporaryDirectory(prefix="bringup-dpu-") as folder:
        output = Path(folder, "program.elf")
        link = [
            *("-nostdlib", "-static", "-Wl,--build-id=none,--gc-sections"),
            f"-Wl,-T,{RUNTIME / 'rv32.ld'},--defsym,__bringup_stacks={stacks}",
        ]
        run_compiler([*words, *link, "-o", str(output), *sources, str(RUNTIME / "runtime.c")])
        return output.read_bytes()


def compile_rv32_object(source: str, tasklets: int, flags: Sequence[str] = ()) -> bytes:
    """The RV32 object file of one C file."""
    words = _compiler(tasklets, flags)
    with tempfile.TemporaryDirectory(prefix="bringup-dpu-") as folder:
        output = Path(folder, "object.o")
        run_compiler([*words, "-c", "-o", str(output), source])
        return output.read_bytes()


def _compiler(tasklets: int, flags: Sequence[str]) -> list[str]:
    try:
        command = find_toolchain("gcc").command
    except ToolchainMissing as error:
        raise DpuToolchainMissing(f"instructions are counted on RV32: {error}") from None
    words = [*command, *_GCC, *_FLAGS, "-isystem", str(DPU_HEADERS), "-isystem", _own_headers(command)]
    return [*words, f"-DNR_TASKLETS={tasklets}", *flags]


@functools.cache
def _own_headers(command: tuple[str, ...]) -> str:
    own = subprocess.run([*command, "-print-file-name=include"], capture_output=True, text=True, check=True)
    return own.stdout.strip()


def text_of(program: bytes) -> list[int]:
    """The instructions of an RV32 program, in the order of their addresses."""
    offset = struct.unpack_from("<I", program, 28)[0]
    nbytes, count = struct.unpack_from("<HH", program, 42)
    for i in range(count):
        kind, start, address, _, size, *_ = struct.unpack_from("<8I", program, offset + i * nbytes)
        if kind == 1 and address == _TEXT:
            return list(struct.unpack_from(f"<{size // 4}I", program, start))
    raise DpuCompileError("the RV32 program has no text")


def check_iram(program: bytes) -> None:
    """Raises DpuCompileError if the program has more instructions than IRAM holds, counted on RV32."""
    instructions = int(sum(weights(text_of(program))))
    if instructions > IRAM_INSTRUCTIONS:
        raise DpuCompileError(
            f"the program has {instructions:,} instructions (counted as RV32, a proxy of the DPU's); "
            f"a DPU's IRAM holds {IRAM_INSTRUCTIONS:,}"
        )


def timing_blob(program: bytes) -> bytes:
    """What ``bringup_upmem_time`` takes: header, costs of the routines, weights of the instructions, the program."""
    routines = calibration()["routines"]
    costs = np.array([routines[name]["instructions"] for name in routine_names()], np.float64)
    scale = np.array(weights(text_of(program)), np.float64)
    table = symbols(program)
    for name in _FREE & table.keys():
        first = (table[name].address - _TEXT) // 4
        scale[first : first + table[name].size // 4] = 0.0
    header = struct.pack("<8sIIII", b"rv32time", len(costs), len(scale), len(program), 0)
    return header + costs.tobytes() + scale.tobytes() + program


@functools.cache
def routine_names() -> list[str]:
    """The routines of the chip's run-time, by number."""
    return re.findall(r"^BU_ROUTINE\((\w+), \d+\)", (RUNTIME / "routines.h").read_text(encoding="utf-8"), re.MULTILINE)


# ---- weights ----
def weights(text: Sequence[int]) -> list[float]:
    """How much of a DPU's instruction each RV32 instruction is.

    >>> weights([0x00249493, 0x00940433, 0x00042503])  # slli s1, s1, 2; add s0, s0, s1; lw a0, 0(s0)
    [0.0, 1.0, 1.0]
    """
    found = [1.0] * len(text)
    for i, word in enumerate(text):
        op, rd, funct3, rs1, rs2 = _fields(word)
        if op == 0x37 and rd == 5 and word >> 12 == 0x20000:  # a service's stub: the call is what the chip executes
            free = 3 if text[i + 2 : i + 3] == [0x8067] else 2
            found[i : i + free] = [0.0] * len(found[i : i + free])
        elif op == 0x13 and funct3 == 1 and 1 <= rs2 <= 5 and _used_by_add(text, i, rd):
            found[i] = 0.0  # lsl_add
        elif op in (0x37, 0x17) and i + 1 < len(text):
            next_op, _, next_funct3, next_rs1, _ = _fields(text[i + 1])
            if next_op in (0x13, 0x67) and next_funct3 == 0 and next_rs1 == rd:  # a constant of 32 bits, a far call
                found[i] = 0.0
        elif op == 0x33 and funct3 == 3 and _carry(text, i, rs1, rs2):
            found[i] = 0.0  # addc and subc take the carry that the chip keeps
            after = _taker(text, i, rd)
            if after is not None:
                found[after] = 0.0
                _join_halves(text, found, i)
    _join_moves(text, found)
    return found


def _fields(word: int) -> tuple[int, int, int, int, int]:
    return word & 0x7F, word >> 7 & 31, word >> 12 & 7, word >> 15 & 31, word >> 20 & 31


def _used_by_add(text: Sequence[int], at: int, register: int) -> bool:
    for word in text[at + 1 : at + 8]:
        op, rd, funct3, rs1, rs2 = _fields(word)
        if op == 0x33 and funct3 == 0 and word >> 25 == 0 and register in (rs1, rs2):
            return True
        if rd == register or op in (0x63, 0x6F, 0x67):
            return False
    return False


def _carry(text: Sequence[int], at: int, rs1: int, rs2: int) -> bool:
    """Whether the sltu at ``at`` compares a sum with its operand, or the operands of a difference."""
    for word in text[max(0, at - 4) : at + 4]:
        op, rd, funct3, a, b = _fields(word)
        if op == 0x33 and funct3 == 0:
            if word >> 25 == 0 and rd == rs1 and rs2 in (a, b, rd):
                return True
            if word >> 25 == 0x20 and ((a, b) == (rs1, rs2) or (a, rd) == (rs1, rs2)):
                return True
    return False


def _taker(text: Sequence[int], at: int, register: int) -> int | None:
    for i in range(at + 1, min(len(text), at + 6)):
        op, _, funct3, rs1, rs2 = _fields(text[i])
        if op == 0x33 and funct3 == 0 and register in (rs1, rs2):
            return i
    return None


def _join_halves(text: Sequence[int], found: list[float], at: int) -> None:
    """Loads and stores of both halves of a number, around an addition of 64 bits: the second weighs nothing."""
    first, last = max(0, at - 14), min(len(text), at + 14)
    halves: dict[tuple[int, int, int], int] = {}
    for i in range(first, last):
        op, rd, funct3, rs1, _ = _fields(text[i])
        if op not in (0x03, 0x23) or funct3 != 2:
            continue
        offset = text[i] >> 20 if op == 0x03 else (text[i] >> 25) << 5 | rd
        other = halves.pop((op, rs1, offset ^ 4), None)
        if other is not None and i - other <= 10:
            found[i] = 0.0
        else:
            halves[op, rs1, offset] = i


def _join_moves(text: Sequence[int], found: list[float]) -> None:
    """Two loads of neighbours whose registers are then stored to neighbours: a number of 64 bits that is moved."""
    loaded: dict[int, tuple[int, int, int]] = {}
    """Register → where it was loaded: index, base, offset."""
    stored: dict[tuple[int, int], tuple[int, int]] = {}
    """Base and offset → which register was stored there, and the index."""
    for i, word in enumerate(text):
        op, rd, funct3, rs1, rs2 = _fields(word)
        if op == 0x23 and funct3 == 2 and rs2 in loaded:
            offset = (word >> 25) << 5 | rd
            register, other = stored.get((rs1, offset ^ 4), (-1, -1))
            if i - other <= 8 and register in loaded:
                (first, base, from_offset), (second, base2, from_offset2) = loaded[register], loaded[rs2]
                if base == base2 and from_offset ^ 4 == from_offset2 and abs(first - second) <= 8:
                    found[max(first, second)] = found[i] = 0.0
            stored[rs1, offset] = rs2, i
        elif op in (0x6F, 0x67):
            loaded.clear()
            stored.clear()
        elif op != 0x23:
            loaded.pop(rd, None)
            if op == 0x03 and funct3 == 2:
                loaded[rd] = i, rs1, word >> 20
