/* HST-S: a histogram per tasklet, added at the end. HST-L: one for all, under a mutex. */
#include <alloc.h>
#include <barrier.h>
#include <defs.h>
#include <mram.h>
#include <mutex.h>
#include <string.h>

#define BLOCK 256
#define BINS 256
#define DEPTH 12
__host uint32_t count, bins_used; /* the number of bins is an argument, so it is multiplied with */
__host uint32_t histogram[BINS];
BARRIER_INIT(everybody, NR_TASKLETS)
MUTEX_INIT(lock)

static __noinline void fill(uint32_t *bins, const uint32_t *from) {
  for (uint32_t i = 0; i < BLOCK; i++) {
    uint32_t bin = (from[i] * bins_used) >> DEPTH;
#ifdef SHARED
    mutex_lock(lock);
    bins[bin] += 1;
    mutex_unlock(lock);
#else
    bins[bin] += 1;
#endif
  }
}

#ifndef SHARED
uint32_t *parts[NR_TASKLETS];
#endif

int main(void) {
  if (me() == 0) {
    mem_reset();
    memset(histogram, 0, sizeof histogram);
  }
  barrier_wait(&everybody);
  __mram_ptr uint32_t *in = DPU_MRAM_HEAP_POINTER;
  uint32_t *x = mem_alloc(BLOCK * 4);
#ifdef SHARED
  uint32_t *bins = histogram;
#else
  uint32_t *bins = parts[me()] = mem_alloc(BINS * 4);
  memset(bins, 0, BINS * 4);
#endif
  for (uint32_t i = me() * BLOCK; i < count; i += NR_TASKLETS * BLOCK) {
    mram_read(in + i, x, BLOCK * 4);
    fill(bins, x);
  }
#ifndef SHARED
  barrier_wait(&everybody);
  for (uint32_t bin = me(); bin < BINS; bin += NR_TASKLETS) {
    uint32_t sum = 0;
    for (int t = 0; t < NR_TASKLETS; t++) sum += parts[t][bin];
    histogram[bin] = sum;
  }
#endif
  return 0;
}
