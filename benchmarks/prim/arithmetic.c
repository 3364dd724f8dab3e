/* Arithmetic throughput: one operation on every element of a block of WRAM, again and again. */
#include <alloc.h>
#include <defs.h>
#include <stdint.h>

#define ELEMENTS 128
__host uint32_t rounds;
__host T operand;
__host T value;

int main(void) {
  if (me() == 0) mem_reset();
  T *mine = mem_alloc(ELEMENTS * sizeof(T));
  for (uint32_t i = 0; i < ELEMENTS; i++) mine[i] = value;
  T other = operand;
  for (uint32_t round = 0; round < rounds; round++)
    for (uint32_t i = 0; i < ELEMENTS; i++) mine[i] = mine[i] OP other;
  return 0;
}
