/* STREAM in WRAM: blocks of 64-bit numbers, the loop written out as the published benchmark's. */
#include <alloc.h>
#include <defs.h>
#include <stdint.h>

#define ELEMENTS 128
__host uint32_t rounds;
__host int64_t scale;

int main(void) {
  if (me() == 0) mem_reset();
  int64_t *a = mem_alloc(ELEMENTS * 8), *b = mem_alloc(ELEMENTS * 8), *c = mem_alloc(ELEMENTS * 8);
  for (uint32_t i = 0; i < ELEMENTS; i++) a[i] = i, b[i] = 2 * i;
  for (uint32_t round = 0; round < rounds; round++) {
    __asm__ volatile("" ::: "memory");
    int64_t *x = a, *y = b, *z = c;
#pragma GCC unroll 128
    for (int k = 0; k < ELEMENTS; k++) {
      STEP;
    }
    (void)x, (void)y, (void)z;
  }
  return 0;
}
