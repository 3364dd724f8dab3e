/* TRNS: transposes a matrix in place, tile by tile of TILE×TILE 64-bit numbers; tasklets take pairs of tiles in turn.
 */
#include <alloc.h>
#include <barrier.h>
#include <defs.h>
#include <mram.h>
#include <mutex.h>

#define TILE 8
__host uint32_t side; /* a multiple of TILE */
static uint32_t next;
BARRIER_INIT(everybody, NR_TASKLETS)
MUTEX_INIT(lock)

static void turn(int64_t *to, const int64_t *from) {
  for (uint32_t row = 0; row < TILE; row++)
    for (uint32_t column = 0; column < TILE; column++) to[column * TILE + row] = from[row * TILE + column];
}
static void load(int64_t *to, __mram_ptr int64_t *from) {
  for (uint32_t row = 0; row < TILE; row++) mram_read(from + row * side, to + row * TILE, TILE * 8);
}
static void store(const int64_t *from, __mram_ptr int64_t *to) {
  for (uint32_t row = 0; row < TILE; row++) mram_write(from + row * TILE, to + row * side, TILE * 8);
}

int main(void) {
  if (me() == 0) {
    mem_reset();
    next = 0;
  }
  barrier_wait(&everybody);
  __mram_ptr int64_t *matrix = DPU_MRAM_HEAP_POINTER;
  int64_t *a = mem_alloc(TILE * TILE * 8), *b = mem_alloc(TILE * TILE * 8), *c = mem_alloc(TILE * TILE * 8);
  uint32_t tiles = side / TILE;
  for (;;) {
    mutex_lock(lock);
    uint32_t row = next++;
    mutex_unlock(lock);
    if (row >= tiles) break;
    for (uint32_t column = 0; column <= row; column++) {
      __mram_ptr int64_t *here = matrix + (row * side + column) * TILE, *there = matrix + (column * side + row) * TILE;
      load(a, here);
      load(b, there);
      turn(c, a);
      store(c, there);
      if (row == column) continue;
      turn(c, b);
      store(c, here);
    }
  }
  return 0;
}
