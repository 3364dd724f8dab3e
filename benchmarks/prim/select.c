/* SEL keeps odd numbers, UNI the first of equal neighbours: both close the gaps. */
#include <alloc.h>
#include <barrier.h>
#include <defs.h>
#include <handshake.h>
#include <mram.h>

#define BLOCK 128
__host uint32_t count;
__host uint32_t kept;
uint32_t counts[NR_TASKLETS];
int64_t lasts[NR_TASKLETS];
BARRIER_INIT(everybody, NR_TASKLETS)

static __noinline uint32_t choose(int64_t *to, const int64_t *from, int64_t before, uint32_t first) {
  uint32_t n = 0;
#ifdef UNIQUE
  if (first) before = ~from[0];
  for (uint32_t i = 0; i < BLOCK; i++) {
    int64_t one = from[i];
    if (one != before) to[n++] = one;
    before = one;
  }
#else
  (void)before, (void)first;
  for (uint32_t i = 0; i < BLOCK; i++)
    if (from[i] & 1) to[n++] = from[i];
#endif
  return n;
}

int main(void) {
  if (me() == 0) {
    mem_reset();
    kept = 0;
  }
  barrier_wait(&everybody);
  __mram_ptr int64_t *in = DPU_MRAM_HEAP_POINTER, *out = in + count;
  int64_t *x = mem_alloc(BLOCK * 8), *y = mem_alloc(BLOCK * 8);
  for (uint32_t i = me() * BLOCK; i < count; i += NR_TASKLETS * BLOCK) {
    mram_read(in + i, x, BLOCK * 8);
    int64_t before = 0;
#ifdef UNIQUE
    lasts[me()] = x[BLOCK - 1];
    __dma_aligned int64_t word[1];
    if (i) {
      mram_read(in + i - 1, word, 8);
      before = word[0];
    }
#endif
    uint32_t n = choose(y, x, before, i == 0);
    /* The places of a round: one tasklet after the other. */
    uint32_t at = kept;
    if (me() != 0) {
      handshake_wait_for(me() - 1);
      at = counts[me() - 1];
    }
    counts[me()] = at + n;
    if (me() < NR_TASKLETS - 1) handshake_notify();
    barrier_wait(&everybody);
    if (me() == 0) kept = counts[NR_TASKLETS - 1];
    if (n) mram_write(y, out + at, n * 8);
    barrier_wait(&everybody);
  }
  return 0;
}
