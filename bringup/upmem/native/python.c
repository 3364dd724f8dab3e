/* What bringup's own binding asks for besides libdpu's calls; host.py mirrors these. */
#include <string.h>

#include "rv32.h"

/* One transfer with the DPUs first … first+count-1 of a set: the part of the i-th of them is at host + i·stride. A
 * stride of 0 is a broadcast. */
UPMEM_API dpu_error_t bringup_upmem_transfer(struct dpu_set_t *set, uint32_t direction, uint32_t address, uint32_t room,
                                             uint32_t offset, uint32_t first, uint32_t count, uint8_t *host,
                                             uint64_t stride, uint64_t length) {
  struct dpu_symbol_t symbol = {address, room};
  struct upmem *all = set->list.ranks[0]->of;
  if (first > all->dpu_count || count > all->dpu_count - first)
    return failed(DPU_ERR_INVALID_DPU_SET, "DPUs %u to %u of %u", first, first + count, all->dpu_count);
  for (uint32_t i = 0; i < count; i++) all->dpus[first + i].buffer = host + i * stride;
  return dpu_push_xfer_symbol(*set, direction, symbol, offset, length, DPU_XFER_DEFAULT);
}

/* The counters of the last launch, COUNTERS for each DPU. */
UPMEM_API void bringup_upmem_counters(struct dpu_set_t *set, uint64_t *out) {
  struct dpu_set_t one;
  DPU_FOREACH(*set, one) {
    memcpy(out, one.dpu->counters, sizeof one.dpu->counters);
    out += COUNTERS;
  }
}

UPMEM_API uint32_t bringup_upmem_counter_count(void) { return COUNTERS; }

UPMEM_API void bringup_upmem_limit(struct dpu_set_t *set, double seconds) {
  set->list.ranks[0]->of->seconds_limit = seconds;
}

UPMEM_API dpu_error_t bringup_upmem_check(struct dpu_set_t *set) { return written_start(set->list.ranks[0]->of); }

/* Where each DPU's MRAM lies in this process: base, and the distance from one to the next. */
UPMEM_API uint8_t *bringup_upmem_mram(struct dpu_set_t *set, uint64_t *stride) {
  *stride = MRAM_BYTES;
  return set->list.ranks[0]->of->mram;
}

/* What one DPU has printed since the log was read; the text lives until the next launch. */
UPMEM_API const char *bringup_upmem_log(struct dpu_set_t *set, uint32_t index, uint64_t *bytes) {
  struct dpu_t *dpu = &set->list.ranks[0]->of->dpus[index];
  *bytes = dpu->log_bytes;
  dpu->log_bytes = 0;
  return dpu->log;
}

UPMEM_API const char *bringup_upmem_failure(void) { return failure_words(); }

/* ---- timing ---- */
/* The samples of the last launch, as rows of doubles (rv32.h); how many there are. */
UPMEM_API uint32_t bringup_upmem_samples(struct dpu_set_t *set, double *out, uint64_t room) {
  const struct kept_timing *timed = set->list.ranks[0]->of->timed;
  if (!timed) return 0;
  uint64_t bytes = timed->count * sizeof *timed->samples;
  memcpy(out, timed->samples, bytes < room ? bytes : room);
  return timed->count;
}
