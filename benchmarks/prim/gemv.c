/* GEMV: rows times a vector; with RELU a layer of MLP. */
#include <alloc.h>
#include <barrier.h>
#include <defs.h>
#include <mram.h>

#ifndef T
#define T int32_t
#endif
#define BLOCK 64
__host uint32_t rows, columns; /* rows: a multiple of 2 */
BARRIER_INIT(everybody, NR_TASKLETS)

static __noinline T dot(const T *a, const T *b) {
  T sum = 0;
  for (uint32_t i = 0; i < BLOCK; i++) sum += a[i] * b[i];
  return sum;
}

int main(void) {
  if (me() == 0) mem_reset();
  barrier_wait(&everybody);
  __mram_ptr T *matrix = DPU_MRAM_HEAP_POINTER, *vector = matrix + rows * columns, *out = vector + columns;
  T *a = mem_alloc(BLOCK * 4), *b = mem_alloc(BLOCK * 4), *two = mem_alloc(8);
  for (uint32_t row = 2 * me(); row < rows; row += 2 * NR_TASKLETS) {
    for (uint32_t k = 0; k < 2; k++) {
      T sum = 0;
      __mram_ptr T *of_row = matrix + (row + k) * columns;
      for (uint32_t i = 0; i < columns; i += BLOCK) {
        mram_read(of_row + i, a, BLOCK * 4);
        mram_read(vector + i, b, BLOCK * 4);
        sum += dot(a, b);
      }
#ifdef RELU
      if (sum < 0) sum = 0;
#endif
      two[k] = sum;
    }
    mram_write(two, out + row, 8);
  }
  return 0;
}
