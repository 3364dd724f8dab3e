/* Optional: which words of MRAM were written, by the host or by DMA, since the DPUs were allocated.
 *
 * The chip's MRAM holds what was there before; here it is 0, so a program that forgets to write would not be noticed.
 */
#include <sys/mman.h>

#include "upmem.h"

dpu_error_t written_start(struct upmem *all) {
  if (all->written) return DPU_OK;
  void *bits = mmap(NULL, (size_t)all->dpu_count * WRITTEN_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (bits == MAP_FAILED) return failed(DPU_ERR_SYSTEM, "no address space to check MRAM of %u DPUs", all->dpu_count);
  all->written = bits;
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
