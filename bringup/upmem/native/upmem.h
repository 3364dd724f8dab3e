/* The simulator of UPMEM DPUs in one picture.
 *
 * A DPU program is compiled for the host's processor with 32-bit pointers (x32), so that every size is the chip's, and
 * linked so that WRAM's 64 KiB are one block (runtime/native.ld). image.c loads it below 4 GiB, once per worker thread.
 * A launch (launch.c) goes through the DPUs: a worker copies the DPU's WRAM into that block, points the segment GS at
 * the DPU's MRAM, and runs the tasklets as coroutines until all have ended. services.c is what tasklets ask for.
 * host.c, transfer.c and log.c are libdpu's interface; python.c adds what bringup's own binding asks for.
 *
 * Read in this order: this file, image.c, launch.c, services.c, host.c.
 */
#ifndef BRINGUP_UPMEM_H
#define BRINGUP_UPMEM_H

#include <dpu.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../runtime/services.h"

#define UPMEM_API __attribute__((visibility("default")))

enum {
  TASKLETS_MAX = 24,
  DPUS_MAX = 2556,
  DPUS_PER_RANK = 64,
  WRAM_BYTES = 64 << 10,
  MRAM_BYTES = 64 << 20,
  MRAM_AT = 0x08000000, /* what the linker calls MRAM's first byte */
  DMA_MAX = 2048,
  STACK_BYTES = 64 << 10, /* of a tasklet natively; what WRAM is charged is the program's own choice */
  GUARD_BYTES = 4096,
  WORKERS_MAX = 64,
};

/* What a launch did on one DPU; python.c hands rows of these out, so host.py mirrors their order. */
enum counter {
  DMA_READS,
  DMA_READ_BYTES,
  DMA_WRITES,
  DMA_WRITE_BYTES,
  BARRIERS,
  LOCKS,
  HANDSHAKES,
  SEMAPHORES,
  SWITCHES,
  COUNTERS
};
_Static_assert(BARRIERS + BU_COUNTS == SWITCHES, "synchronisation is counted in the order of services.h");

/* A program where one worker can run it. */
struct copy {
  uint8_t *base;  /* of everything mapped */
  uint64_t bytes; /* how much */
  uint8_t *wram;  /* the block that DPUs take turns in */
  uint8_t *fresh; /* what it holds after loading; data_bytes of it */
  uint32_t dirty; /* how much of the block the last DPU used */
  int64_t moved;  /* from where it was linked */
};

struct symbol {
  const char *name;
  uint32_t address, size;
};

struct dpu_program_t {
  int references;
  char *path; /* for messages */
  uint8_t *file;
  size_t file_bytes;
  uint32_t link_base, image_bytes; /* of the part that is not WRAM, and WRAM */
  uint32_t wram_at, data_bytes;    /* link address of WRAM; how much of it variables take */
  uint32_t entry, services_at, me_at, counts_at, heap_high_at;
  uint32_t tasklets;
  uint32_t mram_bytes; /* variables in MRAM */
  struct symbol *symbols;
  uint32_t symbol_count;
  struct copy copies[WORKERS_MAX];
  struct timing *timing; /* rv32.h; NULL: launches are not timed */
};

struct dpu_t {
  struct upmem *of;
  struct dpu_program_t *program;
  uint8_t *mram, *wram;
  void *buffer; /* of dpu_prepare_xfer */
  char *log;
  size_t log_bytes, log_room;
  uint32_t index;
  uint32_t wram_bytes; /* how much of wram is kept; 0: as loaded */
  bool faulted;
  uint64_t clock; /* of synchronisation, at the end of the last launch */
  uint64_t counters[COUNTERS];
};

struct dpu_rank_t {
  struct upmem *of;
  struct dpu_t *dpus;
  uint32_t count;
};

/* One allocation. */
struct upmem {
  struct dpu_t *dpus;
  struct dpu_rank_t *ranks;
  struct dpu_rank_t **rank_list;
  uint8_t *mram, *wram;
  uint8_t *written;  /* with checks: a bit for each 8 bytes of MRAM, DPU after DPU; else NULL */
  uint64_t *touched; /* with checks: of each 8 bytes of MRAM, which tasklet wrote and read them last, and when */
  uint32_t dpu_count, rank_count;
  dpu_error_t pending; /* of an asynchronous launch; dpu_sync reports it */
  char pending_words[1024];
  double seconds_limit;
  const struct kept_timing *timed; /* of the last launch; NULL: not timed */
};

/* error.c: the words of this thread's last failure */
dpu_error_t failed(dpu_error_t error, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *failure_words(void);

/* image.c */
dpu_error_t program_new(const uint8_t *file, size_t bytes, const char *path, struct dpu_program_t **out);
void program_keep(struct dpu_program_t *program);
void program_drop(struct dpu_program_t *program);
dpu_error_t program_copy(struct dpu_program_t *program, uint32_t worker, struct copy **out);
const struct symbol *program_symbol(const struct dpu_program_t *program, const char *name);
const struct symbol *program_function(const struct dpu_program_t *program, uint32_t address);
/* "file.c:12", or "" where the program has no lines. */
void program_line(const struct dpu_program_t *program, uint32_t address, char *out, size_t room);
void program_init_mram(const struct dpu_program_t *program, const struct dpu_t *dpu);

/* pool.c: the worker threads */
uint32_t pool_size(void);
/* Runs work(argument, worker) on every worker; tick() is called by the caller's thread about every 50 ms. */
void pool_run(void (*work)(void *argument, uint32_t worker), void *argument, void (*tick)(void *argument));
uint32_t worker_of(uint32_t index, uint32_t count); /* which worker has a DPU, always the same one */
void pool_interrupt(uint32_t worker, int signal);

/* launch.c */
dpu_error_t launch(struct dpu_t **dpus, uint32_t count, double seconds);

/* services.c */
extern void *const services[BU_SERVICES];
void log_append(struct dpu_t *dpu, const char *text, size_t bytes);

/* What services.c sees of the worker that calls it. */
struct tasklet {
  void *stack_pointer;
  const char *waits_for; /* NULL: runs or can run */
  bool ended;
  uint64_t blocked_at;
};
struct worker {
  struct dpu_t *dpu;
  struct dpu_program_t *program;
  struct copy *copy;
  uint64_t *counts; /* the program's, of BU_NUMBERS */
  struct tasklet tasklets[TASKLETS_MAX];
  void *stack_pointer; /* of the worker itself while tasklets run */
  uint32_t running, alive, stalled;
  volatile bool inside; /* a tasklet runs */
  uint64_t dma_cycles;  /* for perfcounter_get */
  char words[2048];     /* of the fault */
  void *escape[5 * 8];  /* jmp_buf */
};
extern __thread struct worker *worker;
void next_tasklet(void);
/* Ends the DPU's run; `caller` is an address in the program. */
void tasklet_fault(uintptr_t caller, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));

/* written.c: reads of MRAM that nobody wrote, and races of tasklets */
enum { WRITTEN_BYTES = MRAM_BYTES / 64 };
dpu_error_t written_start(struct upmem *all);
void written_mark(const struct dpu_t *dpu, uint32_t offset, uint64_t bytes);
/* The first offset of a range that was never written, or -1. */
int64_t written_gap(const struct dpu_t *dpu, uint32_t offset, uint32_t bytes);
/* Notes a DMA; the tasklet whose own DMA of the same bytes nothing orders with it, or -1. */
int race_with(const struct worker *w, uint32_t offset, uint32_t bytes, bool writes);

/* events.c */
bool events_wanted(void);
void event(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* host.c */
uint32_t set_size(struct dpu_set_t set);
/* The DPUs of a set into an array of that many. */
void set_dpus(struct dpu_set_t set, struct dpu_t **out);

#endif
