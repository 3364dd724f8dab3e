/* The timing tier: how many instructions a launch takes, by running sampled DPUs again as RV32 code. */
#ifndef BRINGUP_UPMEM_RV32_TIER_H
#define BRINGUP_UPMEM_RV32_TIER_H

#include "upmem.h"

enum { SAMPLES_MAX = 4, TIMINGS_KEPT = 256 };

/* What one tasklet of a sampled DPU did. Python reads these as doubles, in this order. */
struct tasklet_work {
  double instructions, reads, read_bytes, writes, write_bytes;
};
struct sample {
  double dpu, tasklets;
  double held; /* instructions under a mutex, of the mutex that was held longest */
  struct tasklet_work work[TASKLETS_MAX];
};

/* Behind the program's own code: how to count it. host.py packs it. */
struct timing_header {
  char magic[8];
  uint32_t cost_count, weight_count, elf_bytes, pad;
  /* then: double costs[cost_count], double weights[weight_count] (one per instruction of .text), the ELF file */
};

struct kept_timing {
  uint64_t key;
  uint32_t count;
  struct sample samples[SAMPLES_MAX];
};

struct timing {
  uint8_t *blob;
  const double *costs, *weights;
  const uint8_t *elf;
  uint32_t cost_count, weight_count, elf_bytes;
  struct kept_timing kept[TIMINGS_KEPT];
  uint32_t kept_count, next;
};

/* The state of sampled DPUs before a launch. */
struct samples_before {
  uint32_t count, index[SAMPLES_MAX];
  uint8_t *ram[SAMPLES_MAX];
  uint64_t key;
};

/* Computes a routine of runtime/routines.h on the registers `x`; returns what is added to its cost in the table for
 * these operands. */
double timing_routine(uint32_t number, uint64_t *x);
struct timing *timing_new(const uint8_t *blob, size_t bytes);
void timing_free(struct timing *timing);
/* The timing of an equal launch, or NULL; then `before` holds what timing_run needs. */
const struct kept_timing *timing_begin(struct dpu_t **dpus, uint32_t count, struct samples_before *before);
const struct kept_timing *timing_run(struct dpu_t **dpus, struct samples_before *before);

#endif
