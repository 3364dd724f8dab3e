/* VA: the sum of two vectors, block by block. */
#include <alloc.h>
#include <barrier.h>
#include <defs.h>
#include <mram.h>

#ifndef T
#define T int32_t
#endif
#define BLOCK 256
__host uint32_t count; /* elements of this DPU: a multiple of BLOCK */
BARRIER_INIT(everybody, NR_TASKLETS)

static __noinline void add(T *to, const T *from) {
  for (uint32_t i = 0; i < BLOCK; i++) to[i] += from[i];
}

int main(void) {
  if (me() == 0) mem_reset();
  barrier_wait(&everybody);
  __mram_ptr T *a = DPU_MRAM_HEAP_POINTER, *b = a + count;
  T *x = mem_alloc(BLOCK * 4), *y = mem_alloc(BLOCK * 4);
  for (uint32_t i = me() * BLOCK; i < count; i += NR_TASKLETS * BLOCK) {
    mram_read(a + i, x, BLOCK * 4);
    mram_read(b + i, y, BLOCK * 4);
    add(y, x);
    mram_write(y, b + i, BLOCK * 4);
  }
  return 0;
}
