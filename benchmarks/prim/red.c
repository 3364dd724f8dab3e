/* RED: the sum of a vector of 64-bit numbers. */
#include <alloc.h>
#include <barrier.h>
#include <defs.h>
#include <mram.h>

#define BLOCK 128
__host uint32_t count;
__host int64_t total;
int64_t part[NR_TASKLETS];
BARRIER_INIT(everybody, NR_TASKLETS)

static __noinline int64_t sum(const int64_t *from) {
  int64_t result = 0;
  for (uint32_t i = 0; i < BLOCK; i++) result += from[i];
  return result;
}

int main(void) {
  if (me() == 0) mem_reset();
  barrier_wait(&everybody);
  __mram_ptr int64_t *in = DPU_MRAM_HEAP_POINTER;
  int64_t *x = mem_alloc(BLOCK * 8), mine = 0;
  for (uint32_t i = me() * BLOCK; i < count; i += NR_TASKLETS * BLOCK) {
    mram_read(in + i, x, BLOCK * 8);
    mine += sum(x);
  }
  part[me()] = mine;
  barrier_wait(&everybody);
  if (me() == 0) {
    total = 0;
    for (int t = 0; t < NR_TASKLETS; t++) total += part[t];
  }
  return 0;
}
