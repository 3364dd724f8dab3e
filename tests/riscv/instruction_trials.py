"""Random instructions as one program: each runs on random registers, and what it leaves is written down.

A trial is a row of a table: up to four instruction words, a vector setting, and which set of registers to start with.
The program (below) patches the words into itself, loads all registers, runs them, and dumps the registers, the vector
state and the trap, if any. Two machines that agree on all dumps agree on the instructions; most words are random bits
in the fields, so that what is illegal must be illegal on both.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bringup.riscv.toolchain import build

OUTPUT = 0x8100_0000
SCRATCH = 0x8780_0000
SCRATCH_BYTES = 1 << 17
RAM_BYTES = 128 << 20
POOLS = 96
POOL_BYTES = 512 + 32 * 128
NOP = 0x13
CONVERT_ZERO = 0xD000_7053  # fcvt.s.w f0, x0
DUMP_SCALARS = 576

PROGRAM = """
#if __riscv_xlen == 64
#define LOAD ld
#define STORE sd
#define FLOAT_LOAD fld
#define FLOAT_STORE fsd
#else
#define LOAD lw
#define STORE sw
#define FLOAT_LOAD flw
#define FLOAT_STORE fsw
#endif
  .section .start, "ax"
  .globl _start
_start:
  la t0, trap
  csrw mtvec, t0
  li t0, 0x6600
  csrs mstatus, t0
next:
  la t0, cursor
  LOAD t1, 0(t0)
  la t2, table_end
  bgeu t1, t2, finished
  la t3, slot
  lw t4, 0(t1)
  sw t4, 0(t3)
  lw t4, 4(t1)
  sw t4, 4(t3)
  lw t4, 8(t1)
  sw t4, 8(t3)
  lw t4, 12(t1)
  sw t4, 12(t3)
  fence.i
  LOAD t4, 56(t1)
  li t5, @pool_bytes@
  mul t4, t4, t5
  la t5, pool
  add t4, t4, t5
#ifdef VECTORS
  csrr t5, vlenb
  slli t5, t5, 3
  addi t6, t4, 512
  vl8re8.v v0, (t6)
  add t6, t6, t5
  vl8re8.v v8, (t6)
  add t6, t6, t5
  vl8re8.v v16, (t6)
  add t6, t6, t5
  vl8re8.v v24, (t6)
  LOAD t5, 16(t1)
  LOAD t6, 24(t1)
  vsetvl x0, t5, t6
  LOAD t5, 32(t1)
  csrw vcsr, t5
#endif
  LOAD t5, 40(t1)
  csrw frm, t5
  csrw mcause, zero
  li t5, 0x1800
  csrs mstatus, t5
  la t5, slot
  csrw mepc, t5
  @load_floats@
#ifdef VECTORS
  LOAD t5, 48(t1)
  csrw vstart, t5
#endif
  @load_integers@
  LOAD t4, 232(t4)
  mret

  .balign 4
slot:
  .word 0x13, 0x13, 0x13, 0x13
  csrw mscratch, t0
  la t0, output
  LOAD t0, 0(t0)
  @store_integers@
  csrr t1, mscratch
  STORE t1, 40(t0)
  @store_floats@
  csrr t1, mcause
  STORE t1, 512(t0)
  csrr t1, frm
  STORE t1, 520(t0)
  addi t3, t0, @dump_scalars@
#ifdef VECTORS
  csrr t1, vl
  STORE t1, 528(t0)
  csrr t1, vtype
  STORE t1, 536(t0)
  csrr t1, vstart
  STORE t1, 544(t0)
  csrr t1, vcsr
  STORE t1, 552(t0)
  csrw vstart, zero
  csrr t2, vlenb
  slli t2, t2, 3
  vs8r.v v0, (t3)
  add t3, t3, t2
  vs8r.v v8, (t3)
  add t3, t3, t2
  vs8r.v v16, (t3)
  add t3, t3, t2
  vs8r.v v24, (t3)
  add t3, t3, t2
#endif
  la t1, output
  STORE t3, 0(t1)
  la t0, cursor
  LOAD t1, 0(t0)
  addi t1, t1, 64
  STORE t1, 0(t0)
  j next
finished:
  li t0, 0x5555
  li t1, 0x100000
  sw t0, 0(t1)
  j finished

  .balign 4
trap:
  csrw mscratch, t0
  csrr t0, mepc
  addi t0, t0, 4
  csrw mepc, t0
  csrr t0, mscratch
  mret

  .data
  .balign 8
cursor: .word table, 0
output: .word @output@, 0
  .section .rodata
  .balign 8
pool: .incbin "pool.bin"
  .balign 8
table: .incbin "table.bin"
table_end:
"""

LINK = """
ENTRY(_start)
SECTIONS { . = 0x80000000; .text : { *(.start) *(.text*) } .data : { *(.data*) } .rodata : { *(.rodata*) } }
"""


@dataclass
class Trial:
    words: list[int]
    avl: int = 0
    vtype: int = 0
    vcsr: int = 0
    frm: int = 0
    vstart: int = 0
    pool: int = 0

    def row(self) -> bytes:
        words = [*self.words, *[NOP] * (4 - len(self.words))]
        fields = (self.avl, self.vtype, self.vcsr, self.frm, self.vstart, self.pool)
        return struct.pack("<4I6Q", *words, *fields)


def program(trials: list[Trial], seed: int, isa: str) -> bytes:
    """The ELF file; it writes its dumps to OUTPUT."""
    floats = "\n".join(f"  @op@ f{i}, {256 + 8 * i}(@base@)" for i in range(32))
    integers = "\n".join(f"  @op@ x{i}, {8 * i}(@base@)" for i in range(1, 32) if i != 29)
    stored = "\n".join(f"  STORE x{i}, {8 * i}(t0)" for i in range(1, 32) if i != 5)
    parts = {
        "pool_bytes": str(POOL_BYTES),
        "dump_scalars": str(DUMP_SCALARS),
        "output": hex(OUTPUT),
        "load_floats": floats.replace("@op@", "FLOAT_LOAD").replace("@base@", "t4"),
        "store_floats": floats.replace("@op@", "FLOAT_STORE").replace("@base@", "t0"),
        "load_integers": integers.replace("@op@", "LOAD").replace("@base@", "t4"),
        "store_integers": stored,
    }
    text = ("#define VECTORS\n" if isa == "rv64gcv" else "") + PROGRAM
    for name, value in parts.items():
        text = text.replace(f"@{name}@", value)
    table = b"".join(trial.row() for trial in trials)
    files = {"trials.S": text, "link.ld": LINK, "pool.bin": pools(random.Random(seed)), "table.bin": table}
    return build(files, isa, ["-Wl,-T,link.ld"])


def dump_bytes(vlen: int) -> int:
    return DUMP_SCALARS + 4 * vlen


def pools(rng: random.Random) -> bytes:
    return b"".join(_pool(rng) for _ in range(POOLS))


def _pool(rng: random.Random) -> bytes:
    integers = [_integer(rng) for _ in range(32)]
    integers[10] = SCRATCH + SCRATCH_BYTES // 2 + rng.randrange(64)
    integers[12] = SCRATCH + 8 * rng.randrange(4)
    integers[11] = rng.randrange(-40, 40) & (1 << 64) - 1
    floats = [_scalar_float(rng) for _ in range(32)]
    registers = b"".join(_vector(rng) for _ in range(32))
    return struct.pack("<64Q", *integers, *floats) + registers


def _integer(rng: random.Random) -> int:
    special = [
        0,
        1,
        2,
        3,
        7,
        31,
        63,
        -1,
        -2,
        1 << 63,
        (1 << 63) - 1,
        1 << 31,
        (1 << 31) - 1,
        0x8000_0000_FFFF_FFFF,
        0x80,
    ]
    value = rng.choice(special) if rng.random() < 0.5 else rng.getrandbits(64) >> rng.randrange(64)
    return (value if rng.random() < 0.7 else -value) & (1 << 64) - 1


def float_bits(rng: random.Random, exponent_bits: int, fraction_bits: int) -> int:
    """A float of a format: mostly numbers that meet each other, with all the special ones among them."""
    top, fraction = (1 << exponent_bits) - 1, rng.getrandbits(fraction_bits)
    bias = top >> 1
    sign = rng.getrandbits(1) << (exponent_bits + fraction_bits)
    kind = rng.random()
    if kind < 0.5:
        exponent = min(top - 1, max(1, bias + rng.randrange(-8, 9)))
    elif kind < 0.7:
        exponent = rng.randrange(top + 1)
    elif kind < 0.8:
        exponent = 0
    elif kind < 0.9:
        exponent, fraction = rng.choice([(0, 0), (top, 0), (bias, 0), (top - 1, (1 << fraction_bits) - 1), (0, 1)])
    else:
        exponent = top
    if rng.random() < 0.3:
        fraction &= -1 << (fraction_bits - 5)
    return sign | exponent << fraction_bits | fraction


def _scalar_float(rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.4:
        return float_bits(rng, 8, 23) | 0xFFFF_FFFF_0000_0000
    if kind < 0.6:
        return float_bits(rng, 5, 10) | 0xFFFF_FFFF_FFFF_0000
    return float_bits(rng, 11, 52) if kind < 0.95 else rng.getrandbits(64)


def _vector(rng: random.Random) -> bytes:
    style, width = rng.randrange(5), rng.choice([1, 2, 4, 8])
    count = 128 // width
    mask = (1 << 8 * width) - 1
    if style == 0:
        return rng.randbytes(128)
    if style == 1:
        values = [rng.randrange(48) for _ in range(count)]
    elif style == 2:
        special = [0, 1, -1, mask >> 1, (mask >> 1) + 1, mask - 1, 2]
        values = [rng.choice(special) & mask for _ in range(count)]
    else:
        width, exponent, fraction = rng.choice([(2, 5, 10), (4, 8, 23), (4, 8, 23), (8, 11, 52)])
        values = [float_bits(rng, exponent, fraction) for _ in range(128 // width)]
    return b"".join(value.to_bytes(width, "little") for value in values)


# ---- vector instructions ----
@dataclass(frozen=True)
class Operation:
    """funct3, funct6, and the field vs1 where it tells operations apart."""

    kind: int
    function: int
    code: int | None = None

    @property
    def floats(self) -> bool:
        return self.kind in (1, 5)

    @property
    def widens(self) -> bool:
        if self.kind == 1 and self.function == 0x12:
            return self.code is not None and 8 <= self.code < 16
        return self.function >= 0x30 and self.kind != 3 and self.kind != 4

    @property
    def narrows(self) -> bool:
        if self.kind == 1 and self.function == 0x12:
            return self.code is not None and self.code >= 16
        return 0x2C <= self.function <= 0x2F and self.kind in (0, 3, 4)

    @property
    def masked(self) -> bool | None:
        """None where both exist."""
        if self.kind in (0, 3, 4) and self.function in (0x10, 0x12):
            return True
        # QEMU takes vcompress and mask logic with a mask, too, which is reserved
        only = {2: range(0x17, 0x20), 3: (0x27,)}.get(self.kind, ())
        moves = self.function == 0x10 and self.kind in (1, 2, 5, 6) and (self.code or 0) < 16
        return False if self.function in only or moves else None


def _operations() -> list[Operation]:
    vxi = [0, 9, 10, 11, 12, 16, 17, 23, 24, 25, 28, 29, 32, 33, 37, 40, 41, 42, 43, 44, 45, 46, 47]
    vx = [2, 4, 5, 6, 7, 18, 19, 26, 27, 34, 35, 39]
    xi = [3, 14, 15, 30, 31]
    both = [8, 9, 10, 11, *range(32, 40), 41, 43, 45, 47, *range(48, 57), 58, 59, 60, 61, 63]
    common = [0, 2, 4, 6, 8, 9, 10, 24, 25, 27, 28, 32, 36, *range(40, 48), 48, 50, 52, 54, 56, *range(60, 64)]
    plain = {
        0: [*vxi, *vx, 14, 48, 49],
        1: [*common, 1, 3, 5, 7, 49, 51],
        2: [*range(8), *both, *range(23, 32)],
        3: [*vxi, *xi],
        4: [*vxi, *vx, *xi],
        5: [*common, 14, 15, 16, 23, 29, 31, 33, 39],
        6: [*both, 14, 15, 16, 62],
    }
    coded = {
        (1, 0x10): [0],
        (1, 0x12): [0, 1, 2, 3, 6, 7, *range(8, 13), 14, 15, *range(16, 24)],
        (1, 0x13): [0, 4, 5, 16],
        (2, 0x10): [0, 16, 17],
        (2, 0x12): [2, 3, 4, 5, 6, 7],
        (2, 0x14): [1, 2, 3, 16, 17],
        (3, 0x27): [0, 1, 3, 7],
    }
    found = [Operation(kind, function) for kind, functions in plain.items() for function in functions]
    return found + [Operation(*key, code) for key, codes in coded.items() for code in codes]


OPERATIONS = _operations()


def operation_of(word: int) -> Operation:
    """What a word of a trial is."""
    kind, function, code = word >> 12 & 7, word >> 26, word >> 15 & 31
    exact = Operation(kind, function, code)
    return exact if exact in OPERATIONS else Operation(kind, function)


def _most(vlen: int, sew: int, lmul: int) -> int:
    """VLMAX."""
    elements = vlen // 8 >> sew
    return elements << lmul if lmul >= 0 else elements >> -lmul


def _setting(rng: random.Random, vlen: int, operation: Operation | None = None) -> tuple[int, int, int, int]:
    """log2 of SEW in bytes, log2 of LMUL, vtype and a length; mostly one that the operation has."""
    sews, lmuls = [0, 1, 2, 3], [-3, -2, -1, 0, 1, 2, 3]
    if operation and rng.random() < 0.9:
        wide = operation.widens or operation.narrows
        conversion = operation.kind == 1 and operation.function == 0x12
        bytes_too = conversion and operation.code in (10, 11, 16, 17, 22, 23)  # to and from half floats
        lowest = 1 if operation.floats and not bytes_too else 0
        if operation.kind == 2 and operation.function == 0x12:  # extensions by 8, 4 and 2
            lowest = {2: 3, 3: 3, 4: 2, 5: 2}.get(operation.code or 0, 1)
        sews = [sew for sew in sews if lowest <= sew <= (2 if wide else 3)]
        lmuls = lmuls[:-1] if wide else lmuls
    sew, lmul = rng.choice([(sew, lmul) for sew in sews for lmul in lmuls if sew - lmul <= 3])
    most = _most(vlen, sew, lmul)
    avl = rng.choice([0, 1, most, most, most, 2 * most, rng.randrange(most + 1), rng.randrange(most + 1)])
    return sew, lmul, rng.randrange(4) << 6 | sew << 3 | (lmul & 7), avl


def _register(rng: random.Random, lmul: int) -> int:
    """Mostly the first of a group."""
    number = rng.randrange(32)
    return number if rng.random() < 0.05 else number & -(1 << max(0, lmul))


def _start(rng: random.Random, length: int) -> int:
    """A vstart within the length (QEMU forgets to reset one that is not), mostly 0."""
    return rng.randrange(min(4, length)) if length and rng.random() < 0.05 else 0


def _arithmetic(rng: random.Random, operation: Operation, lmul: int) -> int:
    kind, function = operation.kind, operation.function
    if kind == 3 and function == 0x27 and operation.code is not None:
        lmul = (operation.code + 1).bit_length() - 1
    wide_a = operation.narrows or (operation.widens and 0x34 <= function <= 0x37)
    vd = _register(rng, lmul + operation.widens)
    vs2 = _register(rng, lmul + wide_a)
    vs1 = _register(rng, lmul) if kind < 3 else rng.randrange(32)
    if operation.code is not None:
        vs1 = operation.code
    masked = rng.getrandbits(1) if operation.masked is None else operation.masked
    if masked and not vd and rng.random() < 0.9:
        vd = 8
    if operation in (Operation(5, 0x10), Operation(6, 0x10)) or (function == 0x17 and not masked and kind != 2):
        vs2 = 0 if rng.random() < 0.9 else vs2
    if operation == Operation(2, 0x14, 17):
        vs2 = 0
    return function << 26 | (not masked) << 25 | vs2 << 20 | vs1 << 15 | kind << 12 | vd << 7 | 0x57


def vector_arithmetic(rng: random.Random, vlen: int, halves: bool) -> Trial:
    operation = rng.choice(OPERATIONS)
    sew, lmul, vtype, avl = _setting(rng, vlen, operation)
    words = [_arithmetic(rng, operation, lmul)]
    if rng.random() < 0.2:
        words.append(_arithmetic(rng, rng.choice(OPERATIONS), lmul))
    if rng.random() < 0.05:
        words = [rng.getrandbits(25) << 7 & ~0x7000 | rng.randrange(7) << 12 | 0x57]
        words[0] |= 1 << 25 if operation_of(words[0]).masked is False else 0
    # QEMU 7.2 dies of a conversion with a rounding of its own, unless floats were rounded by frm just before it.
    converts = [word >> 26 == 0x12 and word >> 12 & 7 == 1 for word in words]
    words = [each for word, does in zip(words, converts) for each in ([CONVERT_ZERO, word] if does else [word])]
    # QEMU keeps vstart in slides and moves, and looks at an old one in the second of two instructions.
    alone = len(words) == 1 and words[0] >> 26 not in (0x0E, 0x0F, 0x10)
    vstart = _start(rng, min(avl, _most(vlen, sew, lmul))) if alone else 0
    frm = rng.choice([0, 0, 0, 1, 2, 3])
    return Trial(words, avl, vtype, rng.randrange(4) << 1, frm, vstart, rng.randrange(POOLS))


def vector_memory(rng: random.Random, vlen: int, halves: bool) -> Trial:
    _, lmul, vtype, avl = _setting(rng, vlen)
    mode = rng.randrange(4)
    fields = rng.choice([0, 0, 0, 1, 2, 3, 4, 7])
    kind = {0: rng.choice([0, 0, 0, 8, 11, 16]), 2: 11}.get(mode, _register(rng, lmul))
    if mode in (1, 3) and rng.random() < 0.8:
        vtype = vtype & 0xC0 | rng.randrange(4) << 3 | rng.randrange(4)
    width = rng.choice([0, 5, 6, 7]) if mode in (0, 2) else rng.choice([0, 5])  # wider indices would be wild
    unmasked = rng.getrandbits(1) if kind not in (8, 11) or mode == 2 else 1
    opcode = rng.choice([0x07, 0x27])
    word = fields << 29 | mode << 26 | unmasked << 25 | kind << 20 | 10 << 15 | width << 12
    vstart = _start(rng, min(avl, _most(vlen, vtype >> 3 & 7, (vtype & 7 ^ 4) - 4)))
    return Trial([word | _register(rng, lmul) << 7 | opcode], avl, vtype, vstart=vstart, pool=rng.randrange(POOLS))


# ---- scalar instructions ----
def scalar_integer(rng: random.Random, vlen: int, halves: bool) -> Trial:
    rd, rs1, rs2, kind = rng.randrange(32), rng.randrange(32), rng.randrange(32), rng.randrange(8)
    opcode = rng.choice([0x13, 0x1B, 0x33, 0x33, 0x3B, 0x3B, 0x37, 0x17])
    top = rng.choice([0, 0, 1, 1, 32, rng.randrange(128)])
    if opcode in (0x37, 0x17):
        return Trial([rng.getrandbits(20) << 12 | rd << 7 | opcode], pool=rng.randrange(POOLS))
    word = top << 25 | rs2 << 20 | rs1 << 15 | kind << 12 | rd << 7 | opcode
    if opcode == 0x13 and kind not in (1, 5):
        word = rng.getrandbits(12) << 20 | (word & 0xFFFFF)
    return Trial([word], pool=rng.randrange(POOLS))


def scalar_float(rng: random.Random, vlen: int, halves: bool) -> Trial:
    rd, rs1, rs2, rs3 = (rng.randrange(32) for _ in range(4))
    form = rng.choice([0, 1, 2] if halves else [0, 1])
    mode = rng.choice([0, 1, 2, 3, 7, 7, 7, 7])
    frm = rng.choice([0, 0, 1, 2, 3])
    if rng.random() < 0.25:
        word = (
            rs3 << 27 | form << 25 | rs2 << 20 | rs1 << 15 | mode << 12 | rd << 7 | rng.choice([0x43, 0x47, 0x4B, 0x4F])
        )
        return Trial([word], frm=frm, pool=rng.randrange(POOLS))
    top = rng.choice([0, 1, 2, 3, 0x0B, 4, 5, 8, 0x14, 0x18, 0x18, 0x1A, 0x1C, 0x1E])
    if top in (4, 5, 0x14, 0x1C, 0x1E):
        mode = rng.randrange(3)
    if top == 0x18 and rng.random() < 0.3:
        mode = 4
    if top in (0x0B, 0x1C, 0x1E):
        rs2 = 0
    if top in (8, 0x18, 0x1A):
        rs2 = rng.randrange(4)
    word = top << 27 | form << 25 | rs2 << 20 | rs1 << 15 | mode << 12 | rd << 7 | 0x53
    return Trial([word], frm=frm, pool=rng.randrange(POOLS))


def compressed(rng: random.Random, vlen: int, halves: bool) -> Trial:
    """Arithmetic only: a jump would leave the slot."""
    while True:
        half = rng.getrandbits(16)
        quadrant, kind = half & 3, half >> 13
        if (quadrant == 0 and kind == 0) or (quadrant == 1 and kind < 5):
            break
        if quadrant == 2 and (kind == 0 or (kind == 4 and half >> 2 & 31)):
            break
    return Trial([half | 0x0001 << 16], pool=rng.randrange(POOLS))


def compressed_32(rng: random.Random, vlen: int, halves: bool) -> Trial:
    """Without c.jal, which is c.addiw where registers have 64 bits."""
    while True:
        trial = compressed(rng, vlen, halves)
        if trial.words[0] & 3 != 1 or trial.words[0] >> 13 & 7 != 1:
            return trial


def atomic(rng: random.Random, vlen: int, halves: bool) -> Trial:
    kind = rng.choice([0, 1, 4, 8, 12, 16, 20, 24, 28, 2, 3])
    width, rs2 = rng.choice([2, 3]), 0 if kind == 2 else rng.randrange(32)
    word = kind << 27 | rs2 << 20 | 12 << 15 | width << 12 | rng.randrange(32) << 7 | 0x2F
    # a reservation is only kept where nothing is written between lr and sc: the dump of another trial would break it
    reserve = 2 << 27 | 12 << 15 | width << 12 | 6 << 7 | 0x2F
    return Trial([reserve, word] if kind == 3 else [word], pool=rng.randrange(POOLS))


Maker = Callable[[random.Random, int, bool], Trial]
SCALAR: tuple[Maker, ...] = (scalar_integer, scalar_float, compressed, atomic)
SCALAR_32: tuple[Maker, ...] = (scalar_integer, scalar_float, compressed_32)
VECTOR: tuple[Maker, ...] = (vector_arithmetic, vector_arithmetic, vector_arithmetic, vector_memory)


def trials(seed: int, count: int, makers: tuple[Maker, ...], vlen: int = 0, halves: bool = False) -> list[Trial]:
    rng = random.Random(seed)
    return [rng.choice(makers)(rng, vlen, halves) for _ in range(count)]


def differences(trial_list: list[Trial], vlen: int, ours: bytes, theirs: bytes, names: tuple[str, str]) -> list[str]:
    """In words, what two dumps do not agree on; one line per trial."""
    size = dump_bytes(vlen)
    found = []
    for i, trial in enumerate(trial_list):
        a, b = (np.frombuffer(dump, np.uint8)[i * size : (i + 1) * size] for dump in (ours, theirs))
        if np.array_equal(a, b):
            continue
        found.append(f"trial {i} {[f'{word:08x}' for word in trial.words]} {trial}: " + _where(a, b, vlen, names))
    return found


def _where(a: np.ndarray, b: np.ndarray, vlen: int, names: tuple[str, str]) -> str:
    at = int(np.nonzero(a != b)[0][0])
    if at < DUMP_SCALARS:
        labels = [f"x{i}" for i in range(32)] + [f"f{i}" for i in range(32)]
        labels += ["mcause", "frm", "vl", "vtype", "vstart", "vcsr", "", ""]
        start, size, label = at // 8 * 8, 8, labels[at // 8]
    else:
        register = (at - DUMP_SCALARS) // (vlen // 8)
        start, size, label = DUMP_SCALARS + register * vlen // 8, vlen // 8, f"v{register}"
    shown = [f"{name} {values[start : start + size].tobytes()[::-1].hex()}" for name, values in zip(names, (a, b))]
    return f"{label}: {', '.join(shown)}"
