/* SCAN-SSA (scan, scan on the host, add) and SCAN-RSS (reduce, scan on the host, scan): exclusive prefix sums. */
#include <alloc.h>
#include <barrier.h>
#include <defs.h>
#include <handshake.h>
#include <mram.h>

#define BLOCK 128
enum { SCAN, ADD, REDUCE };
__host uint32_t count, step;
__host int64_t base, total;
int64_t carried[NR_TASKLETS]; /* what a tasklet hands to the next */
BARRIER_INIT(everybody, NR_TASKLETS)

static __noinline int64_t scan(int64_t *to, const int64_t *from) {
  int64_t running = 0;
  for (uint32_t i = 0; i < BLOCK; i++) {
    to[i] = running;
    running += from[i];
  }
  return running;
}
static __noinline void add(int64_t *to, int64_t value) {
  for (uint32_t i = 0; i < BLOCK; i++) to[i] += value;
}
static __noinline int64_t reduce(const int64_t *from) {
  int64_t result = 0;
  for (uint32_t i = 0; i < BLOCK; i++) result += from[i];
  return result;
}

/* The sum of all tasklets before this one; the last one's goes round to the first. */
static int64_t pass_on(int64_t mine, int64_t *round) {
  int64_t before = *round;
  if (me() != 0) {
    handshake_wait_for(me() - 1);
    before = carried[me() - 1];
  }
  carried[me()] = before + mine;
  if (me() < NR_TASKLETS - 1) handshake_notify();
  barrier_wait(&everybody);
  *round = carried[NR_TASKLETS - 1];
  barrier_wait(&everybody);
  return before;
}

int main(void) {
  if (me() == 0) mem_reset();
  barrier_wait(&everybody);
  __mram_ptr int64_t *in = DPU_MRAM_HEAP_POINTER, *out = in + count;
  int64_t *x = mem_alloc(BLOCK * 8), *y = mem_alloc(BLOCK * 8), mine = 0, round = step == SCAN ? base : 0;
  for (uint32_t i = me() * BLOCK; i < count; i += NR_TASKLETS * BLOCK) {
    if (step == ADD) {
      mram_read(out + i, x, BLOCK * 8);
      add(x, base);
      mram_write(x, out + i, BLOCK * 8);
      continue;
    }
    mram_read(in + i, x, BLOCK * 8);
    if (step == REDUCE) {
      mine += reduce(x);
      continue;
    }
    int64_t sum = scan(y, x);
    add(y, pass_on(sum, &round));
    mram_write(y, out + i, BLOCK * 8);
  }
  if (step == REDUCE) {
    carried[me()] = mine;
    barrier_wait(&everybody);
    if (me() == 0)
      for (int t = 1; t < NR_TASKLETS; t++) carried[0] += carried[t];
    if (me() == 0) total = carried[0];
  } else if (step == SCAN && me() == 0) {
    total = round - base;
  }
  return 0;
}
