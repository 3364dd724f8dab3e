"""Gemm: a matrix engine. It fetches A and B from guest memory, and C = A × B (+ C) lands there when it is done.

Float32 sums run over k in order, one fused multiply-add per step: bit for bit a `Contract` with one lane. Int8
products are summed in int32. The driver for the guest is `GEMM_DRIVER_C`; docs/riscv_devices.md has the registers.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bringup.ir.dtypes import float32
from bringup.ir.fused_multiply_add import fma
from bringup.riscv.device import Device, DeviceError
from bringup.riscv.register_names import read_only

BASE = 0x1032_0000
#: Offsets of the 32-bit words; A, B and C have two. Two neighbours can be accessed at once, with 64 bits.
REGISTERS = {
    0x00: "A",
    0x04: "A_HIGH",
    0x08: "B",
    0x0C: "B_HIGH",
    0x10: "C",
    0x14: "C_HIGH",
    0x18: "M",
    0x1C: "N",
    0x20: "K",
    0x24: "A_STRIDE",
    0x28: "B_STRIDE",
    0x2C: "C_STRIDE",
    0x30: "CONTROL",
    0x34: "STATUS",
    0x38: "ERROR",
    0x3C: "IDENTITY",
}
#: Bits of CONTROL; without INT8 the elements are float32.
START, INTERRUPT, ACCUMULATE, INT8, TRANSPOSE_A, TRANSPOSE_B = (1 << bit for bit in range(6))
#: Bits of STATUS. Who reads DONE has taken note: it lowers the interrupt.
BUSY, DONE, FAILED = 1, 2, 4
#: Values of ERROR.
STRIDE_TOO_SMALL, OUTSIDE_MEMORY, UNKNOWN_CONTROL = 1, 2, 3
Matrix: TypeAlias = NDArray[Any]
IDENTITY = int.from_bytes(b"GEMM", "little")

GEMM_DRIVER_C = f"""\
/* Driver of the matrix engine: C[m×n] = A[m×k] × B[k×n], strides of rows in elements. Returns 0, or GEMM_FAILED where
   the engine refused the sizes or addresses (its ERROR register says which). */
#ifndef BRINGUP_GEMM_H
#define BRINGUP_GEMM_H
#include <stdint.h>

enum {{
  GEMM_START = {START},
  GEMM_INTERRUPT = {INTERRUPT},
  GEMM_ACCUMULATE = {ACCUMULATE},
  GEMM_INT8 = {INT8},
  GEMM_TRANSPOSE_A = {TRANSPOSE_A},
  GEMM_TRANSPOSE_B = {TRANSPOSE_B}
}};
enum {{ GEMM_BUSY = {BUSY}, GEMM_DONE = {DONE}, GEMM_FAILED = {FAILED} }};

typedef struct {{
  struct {{
    volatile uintptr_t address;
#if UINTPTR_MAX == 0xffffffff
    uint32_t high;
#endif
  }} a, b, c;
  volatile uint32_t m, n, k, a_stride, b_stride, c_stride, control, status, error, identity;
}} bringup_gemm_engine;

static inline void bringup_gemm_start(uintptr_t engine, const void *a, const void *b, void *c, uint32_t m, uint32_t n,
                                      uint32_t k, uint32_t a_stride, uint32_t b_stride, uint32_t c_stride,
                                      uint32_t control) {{
  bringup_gemm_engine *gemm = (bringup_gemm_engine *)engine;
  gemm->a.address = (uintptr_t)a;
  gemm->b.address = (uintptr_t)b;
  gemm->c.address = (uintptr_t)c;
  gemm->m = m;
  gemm->n = n;
  gemm->k = k;
  gemm->a_stride = a_stride;
  gemm->b_stride = b_stride;
  gemm->c_stride = c_stride;
  __asm__ volatile("fence" ::: "memory"); /* A and B are in memory before the engine reads them */
  gemm->control = control | GEMM_START;
}}

/* Asks until it is done. */
static inline int bringup_gemm(uintptr_t engine, const void *a, const void *b, void *c, uint32_t m, uint32_t n,
                               uint32_t k, uint32_t a_stride, uint32_t b_stride, uint32_t c_stride, uint32_t control) {{
  int status;
  __asm__("" : "+r"(engine)); /* one register for it, from here to the end */
  bringup_gemm_start(engine, a, b, c, m, n, k, a_stride, b_stride, c_stride, control);
  do {{
    status = (int)((bringup_gemm_engine *)engine)->status;
  }} while (status & GEMM_BUSY);
  __asm__ volatile("" ::: "memory");
  return status & GEMM_FAILED;
}}

/* Once, before bringup_gemm_sleep: wfi wakes for a device's interrupt. No handler is called as long as interrupts are
   off (mstatus.MIE), which they are at the start. */
static inline void bringup_gemm_listen(void) {{
  uintptr_t external = 1 << 11;
  __asm__ volatile("csrs mie, %0" ::"r"(external) : "memory");
}}

/* Sleeps until it is done; for interrupts that are off. An engine that is done already leaves wfi no time to sleep. */
static inline int bringup_gemm_sleep(uintptr_t engine, const void *a, const void *b, void *c, uint32_t m, uint32_t n,
                                     uint32_t k, uint32_t a_stride, uint32_t b_stride, uint32_t c_stride,
                                     uint32_t control) {{
  int status;
  __asm__("" : "+r"(engine));
  bringup_gemm_start(engine, a, b, c, m, n, k, a_stride, b_stride, c_stride, control | GEMM_INTERRUPT);
  do {{
    __asm__ volatile("wfi" ::: "memory");
    status = (int)((bringup_gemm_engine *)engine)->status;
  }} while (status & GEMM_BUSY);
  __asm__ volatile("" ::: "memory");
  return status & GEMM_FAILED;
}}
#endif
"""


class Gemm(Device):
    """The matrix engine: ``setup`` + ceil(m·n·k / ``macs_per_instruction``) instructions from start to done.

    A and B are read at the start, C is read (to accumulate) then and written when it is done.
    """

    def __init__(self, setup: int = 16, macs_per_instruction: int = 16) -> None:
        if setup < 0 or macs_per_instruction < 1:
            raise ValueError(f"setup {setup} must be 0 or more, macs_per_instruction {macs_per_instruction} 1 or more")
        self.setup, self.macs_per_instruction = setup, macs_per_instruction
        self.words = dict.fromkeys(REGISTERS.values(), 0)
        self.words["IDENTITY"] = IDENTITY
        self.calls = 0

    def read(self, offset: int, size: int) -> int:
        """Any register, or two; STATUS lowers the interrupt."""
        names = self._names(offset, size)
        if "STATUS" in names and self.words["STATUS"] & DONE:
            self.irq(False)
        return sum(self.words[name] << 32 * at for at, name in enumerate(names))

    def write(self, offset: int, size: int, value: int) -> None:
        """Parameters; CONTROL starts."""
        for at, name in enumerate(self._names(offset, size)):
            word = value >> 32 * at & 0xFFFF_FFFF
            if name in ("STATUS", "ERROR", "IDENTITY"):
                raise read_only(self, name)
            if self.words["STATUS"] & BUSY:
                raise DeviceError(f"Gemm: {name} was written while busy; wait until STATUS is not busy")
            self.words[name] = word & ~START if name == "CONTROL" else word
            if name == "CONTROL" and word & START:
                self._start()

    def _names(self, offset: int, size: int) -> list[str]:
        if size not in (4, 8):
            raise DeviceError(
                f"Gemm has 32-bit words, one or two at once; access of {size} bytes at offset {offset:#x}"
            )
        if offset + size > 4 * len(REGISTERS):
            raise DeviceError(f"Gemm has registers up to {4 * len(REGISTERS) - 4:#x}; access at offset {offset:#x}")
        return [REGISTERS[offset + at] for at in range(0, size, 4)]

    def _start(self) -> None:
        self.calls += 1
        self.irq(False)
        self.words["STATUS"] = BUSY
        result = self._result()
        self.words["ERROR"] = result if isinstance(result, int) else 0
        macs = 0 if isinstance(result, int) else self.words["M"] * self.words["N"] * self.words["K"]
        self.after(self.setup - macs // -self.macs_per_instruction, lambda: self._finish(result))

    def _finish(self, result: Matrix | int) -> None:
        if not isinstance(result, int):
            self._matrix("C", result.dtype, *result.shape)[...] = result
        self.words["STATUS"] = DONE | (FAILED if self.words["ERROR"] else 0)
        if self.words["CONTROL"] & INTERRUPT:
            self.irq()

    def _result(self) -> Matrix | int:
        """The product, or a value of ERROR."""
        control, m, n, k = (self.words[name] for name in ("CONTROL", "M", "N", "K"))
        if control >> 6:
            return UNKNOWN_CONTROL
        shapes = {
            "A": (k, m) if control & TRANSPOSE_A else (m, k),
            "B": (n, k) if control & TRANSPOSE_B else (k, n),
            "C": (m, n),
        }
        # The last row ends before its stride does, so one row needs no stride at all.
        if any(rows > 1 and self.words[f"{name}_STRIDE"] < columns for name, (rows, columns) in shapes.items()):
            return STRIDE_TOO_SMALL
        element, total = ("i1", "i4") if control & INT8 else ("f4", "f4")
        try:
            a, b = (self._matrix(name, np.dtype(element), *shapes[name]) for name in ("A", "B"))
            c = self._matrix("C", np.dtype(total), m, n)
        except DeviceError:
            return OUTSIDE_MEMORY
        a, b = a.T if control & TRANSPOSE_A else a, b.T if control & TRANSPOSE_B else b
        start = c.copy() if control & ACCUMULATE else np.zeros((m, n), total)
        return _integer_product(a, b, start) if control & INT8 else _float_product(a, b, start)

    def _matrix(self, name: str, dtype: np.dtype[Any], rows: int, columns: int) -> Matrix:
        """A matrix where it lies in guest memory."""
        address = self.words[name] | self.words[f"{name}_HIGH"] << 32
        stride = self.words[f"{name}_STRIDE"] if rows > 1 else columns
        elements = (rows - 1) * stride + columns if rows and columns else 0
        flat = self.mem.array(address, elements, dtype) if elements else np.zeros(0, dtype)
        strides = (stride * dtype.itemsize, dtype.itemsize)
        return np.lib.stride_tricks.as_strided(flat, (rows, columns), strides)


def _float_product(a: Matrix, b: Matrix, start: Matrix) -> Matrix:
    """Sums in the order of k, each step rounded once.

    >>> a, b = np.float32([[1, 2]]), np.float32([[3], [4]])
    >>> _float_product(a, b, np.float32([[5]])).item()
    16.0
    """
    for step in range(a.shape[1]):
        start = np.asarray(fma(a[:, step, None], b[None, step, :], start, float32), np.float32)
    return start


def _integer_product(a: Matrix, b: Matrix, start: Matrix) -> Matrix:
    """Sums modulo 2³². In float64 they are exact: up to 2³² steps of at most 2¹⁴ stay below 2⁵³.

    >>> a, b = np.int8([[-128, 127]]), np.int8([[-128], [127]])
    >>> _integer_product(a, b, np.int32([[1]])).item()
    32514
    """
    sums = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
    total: Matrix = (sums + start).astype(np.int32)
    return total
