/* TS: where a query is most like a piece of a time series (the least squared distance of all positions). */
#include <alloc.h>
#include <barrier.h>
#include <defs.h>
#include <mram.h>

#define QUERY 64
#define BLOCK 64
__host uint32_t count; /* positions of this DPU */
__host int32_t best, place;
__host int32_t query[QUERY];
int32_t bests[NR_TASKLETS], places[NR_TASKLETS];
BARRIER_INIT(everybody, NR_TASKLETS)

static __noinline int32_t dot(const int32_t *a, const int32_t *b) {
  int32_t sum = 0;
  for (uint32_t i = 0; i < QUERY; i++) sum += a[i] * b[i];
  return sum;
}

int main(void) {
  if (me() == 0) mem_reset();
  barrier_wait(&everybody);
  /* A series, and for each position the sum of the squares of its piece. */
  __mram_ptr int32_t *series = DPU_MRAM_HEAP_POINTER, *squares = series + count + QUERY;
  int32_t *window = mem_alloc((BLOCK + QUERY) * 4), *norms = mem_alloc(BLOCK * 4);
  int32_t mine = INT32_MAX, at = -1;
  for (uint32_t i = me() * BLOCK; i < count; i += NR_TASKLETS * BLOCK) {
    mram_read(series + i, window, (BLOCK + QUERY) * 4);
    mram_read(squares + i, norms, BLOCK * 4);
    for (uint32_t k = 0; k < BLOCK; k++) {
      int32_t distance = norms[k] - 2 * dot(window + k, query);
      if (distance < mine) mine = distance, at = i + k;
    }
  }
  bests[me()] = mine;
  places[me()] = at;
  barrier_wait(&everybody);
  if (me() == 0) {
    best = INT32_MAX;
    for (int t = 0; t < NR_TASKLETS; t++)
      if (bests[t] < best || (bests[t] == best && places[t] < place)) best = bests[t], place = places[t];
  }
  return 0;
}
