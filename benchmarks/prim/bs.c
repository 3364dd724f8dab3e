/* BS: the places of queries in a sorted array. */
#include <alloc.h>
#include <barrier.h>
#include <defs.h>
#include <mram.h>

#define BLOCK 8
__host uint32_t count, queries;
BARRIER_INIT(everybody, NR_TASKLETS)

int main(void) {
  if (me() == 0) mem_reset();
  barrier_wait(&everybody);
  __mram_ptr int64_t *sorted = DPU_MRAM_HEAP_POINTER, *asked = sorted + count, *found = asked + queries;
  int64_t *block = mem_alloc(BLOCK * 8), *results = mem_alloc(BLOCK * 8), *word = mem_alloc(8),
          *last = mem_alloc(BLOCK * 8);
  for (uint32_t q = me() * BLOCK; q < queries; q += NR_TASKLETS * BLOCK) {
    mram_read(asked + q, block, BLOCK * 8);
    for (uint32_t k = 0; k < BLOCK; k++) {
      uint32_t low = 0, high = count;
      while (high - low > BLOCK) {
        uint32_t middle = (low + high) / 2;
        mram_read(sorted + middle, word, 8);
        if (*word <= block[k])
          low = middle;
        else
          high = middle;
      }
      results[k] = low;
      mram_read(sorted + low, last, BLOCK * 8);
      for (uint32_t i = 1; i < high - low && last[i] <= block[k]; i++) results[k] = low + i;
    }
    mram_write(results, found + q, BLOCK * 8);
  }
  return 0;
}
