/* The RISC-V interpreter in one picture.
 *
 * An `iss` is one hart in machine mode with one block of RAM. Every halfword of RAM has a decoded instruction (16
 * bytes) in a second, lazily filled mapping; op 0 means "decode me", so a fresh or dropped page decodes itself. An
 * instruction counts itself in its own record, so that functions, loads, stores and vector work are sums over
 * addresses, taken only when they are read (counts.c). What RAM does not hold goes to bus.c: UART, finisher, devices
 * (callbacks).
 *
 * Read in this order: this file, ops.inc (all instructions), decode.c with compressed.c, hart.inc (what they do;
 * compiled for 32 and 64 bits), csr.c, trap.c, float.c, then vector.h. No globals: any number of machines, in any
 * threads.
 *
 * Not kept: fflags stay 0 (nothing we compile reads them). Rounding to nearest, ties away (rmm) exists for conversions
 * to integers only; arithmetic that asks for it is an illegal instruction.
 */
#ifndef BRINGUP_ISS_H
#define BRINGUP_ISS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ISS_API __attribute__((visibility("default")))
#define ISS_LIKELY(x) __builtin_expect(!!(x), 1)
#define ISS_UNLIKELY(x) __builtin_expect(!!(x), 0)

enum { ISS_VLEN_MAX = 1024, ISS_CONSOLE_MAX = 64 << 20, ISS_DEVICES_MAX = 64 };

/* ---- what the outside sees: interpreter.py mirrors these ---- */
enum iss_extension {
  ISS_M = 1,
  ISS_A = 2,
  ISS_F = 4,
  ISS_D = 8,
  ISS_C = 16,
  ISS_V = 32,
  ISS_ZFHMIN = 64,
  ISS_ZFH = 128,
  ISS_ZVFH = 256,
};

enum iss_reason {
  ISS_BUDGET,  /* the instructions it was given are used up */
  ISS_EXIT,    /* wrote to the finisher; code is the exit code */
  ISS_IDLE,    /* wfi with nothing pending */
  ISS_TRAPPED, /* a trap without a handler; code is mcause, value is mtval */
  ISS_REFUSED, /* a device's callback failed */
};

typedef struct iss_stop {
  uint64_t reason, code, value;
} iss_stop;

/* A device access; nonzero stops the guest. */
typedef int (*iss_device_read)(void *user, uint64_t address, uint32_t size, uint64_t *value);
typedef int (*iss_device_write)(void *user, uint64_t address, uint32_t size, uint64_t value);

typedef struct iss_config {
  uint64_t ram_base, ram_bytes;
  void *ram; /* the caller's, or NULL for our own */
  uint32_t xlen, vlen, extensions;
  uint32_t portable; /* 1: vector kernels for any processor, although this one is newer */
  iss_device_read read;
  iss_device_write write;
  void *user;
} iss_config;

typedef struct iss_registers {
  uint64_t x[33]; /* x[32] is where writes to x0 go */
  uint64_t pc;
  uint64_t f[32];
} iss_registers;

typedef struct iss_counts {
  uint64_t instructions, loads, stores, vector, lane_beats;
} iss_counts;

typedef struct iss_range {
  uint64_t start, end;
  iss_counts counts;
} iss_range;

typedef struct iss iss;

ISS_API iss *iss_create(const iss_config *config); /* NULL: no memory */
ISS_API void iss_destroy(iss *m);
ISS_API uint8_t *iss_ram(iss *m);
ISS_API iss_registers *iss_register_file(iss *m);
ISS_API uint8_t *iss_vector_file(iss *m);
ISS_API int iss_add_device(iss *m, uint64_t base, uint64_t size); /* 0, or -1 if there are too many */
ISS_API void iss_run(iss *m, uint64_t instructions, iss_stop *stop);
ISS_API void iss_code_changed(iss *m, uint64_t address, uint64_t size);
ISS_API void iss_set_interrupt(iss *m, int pending); /* the machine external interrupt */
ISS_API int iss_interrupt_enabled(iss *m);           /* whether wfi would wake up for it */
ISS_API void iss_yield(iss *m);                      /* the run ends after this instruction, with ISS_BUDGET */
ISS_API uint64_t iss_retired(iss *m);                /* since the start; exact in callbacks, too */
ISS_API uint64_t iss_console(iss *m, const uint8_t **text);
ISS_API int iss_set_ranges(iss *m, const uint64_t *bounds, uint64_t count); /* sorted (start, end) pairs */
ISS_API void iss_read_counts(iss *m, iss_counts *total, iss_counts *by_range);
ISS_API void iss_reset_counts(iss *m);
ISS_API uint64_t iss_csr(iss *m, uint32_t number);        /* for debuggers; 0 if there is none */
ISS_API uint32_t iss_expand(uint32_t xlen, uint16_t raw); /* what a compressed instruction stands for; 0: illegal */

/* ---- inside ---- */
typedef struct iss_insn {
  uint16_t op; /* enum iss_op; 0: not decoded yet */
  uint8_t rd, rs1, rs2, rs3;
  uint8_t length; /* in halfwords */
  uint8_t kind;   /* a field that some operations keep apart: which csr or amo operation */
  int32_t imm;    /* the immediate; of float and vector operations, the instruction itself */
  uint32_t count; /* how often it retired since counts.c last collected */
} iss_insn;

/* Why an instruction did not finish: exception codes of the privileged specification, and two of ours. */
enum iss_fault {
  ISS_OK = -1,
  ISS_FETCH_FAULT = 1,
  ISS_ILLEGAL = 2,
  ISS_BREAK = 3,
  ISS_LOAD_FAULT = 5,
  ISS_STORE_MISALIGNED = 6,
  ISS_STORE_FAULT = 7,
  ISS_ECALL = 11,
  ISS_DEVICE_REFUSED = 64,
};

typedef struct iss_place {
  uint64_t base, size;
} iss_place;

struct iss {
  iss_registers r;
  uint8_t *ram;
  uint64_t ram_base, ram_bytes;
  iss_insn *decoded;    /* one per halfword of RAM, and a few behind its end */
  uint64_t *beats;      /* lane-beats of the vector instruction there */
  uint8_t *pages;       /* which pages of RAM have decoded instructions */
  uint64_t retired;     /* at the start of this run, less the instructions that trapped in it */
  uint64_t given, left; /* of this run; left is current in slow paths only */
  uint32_t uncollected; /* instructions of runs since the last collection, in units of 2^20 */
  bool watch;           /* look at stop and interrupts before the next instruction */
  bool stopped, yields, owns_ram;
  iss_stop stop;
  uint64_t fault_value; /* mtval of the fault being reported */

  uint32_t xlen, extensions;
  uint64_t mstatus, mtvec, mepc, mcause, mtval, mie, mip, mscratch, retired_offset;
  uint64_t reserved_at; /* lr/sc: the address, or all ones */
  uint32_t frm;
  bool float_slow; /* floats are off, or frm is not to nearest even */

  const struct iss_kernels *kernels; /* vector.h */
  uint32_t vlenb;
  uint32_t vl, vstart, vxrm, vxsat;
  uint64_t vtype;
  _Alignas(64) uint8_t v[32 * ISS_VLEN_MAX / 8];

  iss_place devices[ISS_DEVICES_MAX];
  uint32_t device_count;
  iss_device_read read;
  iss_device_write write;
  void *user;
  uint8_t *console;
  uint64_t console_bytes, console_room;

  iss_range *ranges;
  uint64_t range_count;
  iss_counts total;
};

#define MSTATUS_MIE (1u << 3)
#define MSTATUS_MPIE (1u << 7)
#define MSTATUS_VS (3u << 9)
#define MSTATUS_MPP (3u << 11)
#define MSTATUS_FS (3u << 13)
#define MIP_MEIP (1u << 11)

static inline uint64_t iss_retired_now(const iss *m) { return m->retired + (m->given - m->left); }
static inline bool iss_has(const iss *m, uint32_t extension) { return m->extensions & extension; }
static inline bool iss_in_ram(const iss *m, uint64_t address, uint64_t size) {
  uint64_t offset = address - m->ram_base;
  return offset < m->ram_bytes && size <= m->ram_bytes - offset;
}

/* decode.c, compressed.c */
void iss_decode(iss *m, uint32_t raw, iss_insn *out);
int iss_decode_at(iss *m, uint64_t pc); /* ISS_OK, or a fault of the fetch */
/* hart32.c, hart64.c */
void iss_run_32(iss *m);
void iss_run_64(iss *m);
/* bus.c: what is not plainly in RAM */
int iss_load(iss *m, uint64_t address, uint32_t size, uint64_t *value);
int iss_store(iss *m, uint64_t address, uint32_t size, uint64_t value);
int iss_atomic(iss *m, const iss_insn *insn);
/* trap.c */
bool iss_take_trap(iss *m, uint64_t cause, uint64_t value); /* at r.pc; false: there is no handler */
bool iss_take_interrupt(iss *m);                            /* whether one was taken */
void iss_return_from_trap(iss *m);
/* csr.c */
bool iss_csr_read(iss *m, uint32_t number, uint64_t *value);
bool iss_csr_write(iss *m, uint32_t number, uint64_t value);
void iss_float_changed(iss *m);
/* float.c */
bool iss_float(iss *m, uint32_t raw);
/* counts.c */
void iss_collect(iss *m);
void iss_drop_decoded(iss *m);
/* vector.c */
int iss_vector(iss *m, uint32_t raw, uint64_t *beats);

#endif
