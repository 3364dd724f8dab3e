/* Optional: which words of MRAM were written, by the host or by DMA, since the DPUs were allocated; and by which
 * tasklet.
 *
 * The chip's MRAM holds what was there before; here it is 0, so a program that forgets to write would not be noticed.
 * Tasklets run one after the other here, so a race does no harm: it is found by when both last synchronised. Of two
 * that touch the same word, one of them to write it, each has to have done so since the first.
 */
#include <sys/mman.h>

#include "upmem.h"

dpu_error_t written_start(struct upmem *all) {
  if (all->written) return DPU_OK;
  void *bits = mmap(NULL, (size_t)all->dpu_count * WRITTEN_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (bits == MAP_FAILED) return failed(DPU_ERR_SYSTEM, "no address space to check MRAM of %u DPUs", all->dpu_count);
  void *stamps = mmap(NULL, (size_t)all->dpu_count * MRAM_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stamps == MAP_FAILED) {
    munmap(bits, (size_t)all->dpu_count * WRITTEN_BYTES);
    return failed(DPU_ERR_SYSTEM, "no address space to check MRAM of %u DPUs", all->dpu_count);
  }
  all->written = bits;
  all->touched = stamps;
  return DPU_OK;
}

void written_mark(const struct dpu_t *dpu, uint32_t offset, uint64_t bytes) {
  if (!dpu->of->written || !bytes) return;
  uint8_t *bits = dpu->of->written + (size_t)dpu->index * WRITTEN_BYTES;
  for (uint64_t word = offset / 8; word <= (offset + bytes - 1) / 8; word++) bits[word / 8] |= 1 << word % 8;
}

int64_t written_gap(const struct dpu_t *dpu, uint32_t offset, uint32_t bytes) {
  if (!dpu->of->written) return -1;
  const uint8_t *bits = dpu->of->written + (size_t)dpu->index * WRITTEN_BYTES;
  for (uint32_t word = offset / 8; word < (offset + bytes) / 8; word++)
    if (!(bits[word / 8] >> word % 8 & 1)) return (int64_t)word * 8;
  return -1;
}

/* A stamp is the clock and, in its last 5 bits, the tasklet; the later half of a word's is of who wrote it. */
static bool unordered(const struct worker *w, uint32_t stamp) {
  uint64_t when = stamp >> 5;
  uint32_t who = stamp & 31;
  const uint64_t *synced = w->counts + BU_SYNCED_AT;
  return when > w->dpu->clock && who != w->running && (synced[who] < when || synced[w->running] < when);
}

int race_with(const struct worker *w, uint32_t offset, uint32_t bytes, bool writes) {
  if (!w->dpu->of->touched || w->counts[BU_UNCHECKED] || w->counts[BU_CLOCK] >> 27)
    return -1; /* a clock that has run over says nothing */
  uint64_t *words = w->dpu->of->touched + (size_t)w->dpu->index * (MRAM_BYTES / 8);
  uint32_t stamp = (uint32_t)(++w->counts[BU_CLOCK] << 5 | w->running);
  for (uint32_t word = offset / 8; word < (offset + bytes) / 8; word++) {
    uint32_t reader = (uint32_t)words[word], writer = (uint32_t)(words[word] >> 32);
    if (unordered(w, writer)) return writer & 31;
    if (writes && unordered(w, reader)) return reader & 31;
    words[word] = writes ? (uint64_t)stamp << 32 : (uint64_t)writer << 32 | stamp;
  }
  return -1;
}
