#include <alloc.h>
#include <barrier.h>
#include <defs.h>
#include <mram.h>
#include <mutex.h>
#include <mutex_pool.h>
#include <perfcounter.h>
#include <seqread.h>
#include <stdint.h>
#include <stdio.h>

#define BINS 64

__host struct {
  uint32_t bytes;
  uint32_t shift;
} arguments;
__host uint32_t table[BINS];

MUTEX_INIT(log_lock);
MUTEX_POOL_INIT(bins, 16);
BARRIER_INIT(begin, NR_TASKLETS);
BARRIER_INIT(end, NR_TASKLETS);
uint32_t seen;

int main() {
  if (me() == 0) {
    mem_reset();
    perfcounter_config(COUNT_CYCLES, true);
    for (int i = 0; i < BINS; i++) table[i] = 0;
    seen = 0;
  }
  barrier_wait(&begin);
  uint32_t part = arguments.bytes / NR_TASKLETS, first = me() * part;
  if (me() == NR_TASKLETS - 1) part = arguments.bytes - first;
  seqreader_t reader;
  uint8_t *byte = seqread_init(seqread_alloc(), (__mram_ptr uint8_t *)DPU_MRAM_HEAP_POINTER + first, &reader);
  for (uint32_t i = 0; i < part; i++) {
    uint32_t bin = *byte >> arguments.shift;
    mutex_pool_lock(&bins, bin);
    table[bin]++;
    mutex_pool_unlock(&bins, bin);
    byte = seqread_get(byte, sizeof *byte, &reader);
  }
  if (seqread_tell(byte, &reader) != (__mram_ptr uint8_t *)DPU_MRAM_HEAP_POINTER + first + part) halt();
  mutex_lock(log_lock);
  seen += part;
  mutex_unlock(log_lock);
  barrier_wait(&end);
  if (me() == 0)
    printf("tasklet %u of %u saw all %u bytes; counter %s\n", me(), NR_TASKLETS, seen,
           perfcounter_get() ? "runs" : "stands");
  return 0;
}
