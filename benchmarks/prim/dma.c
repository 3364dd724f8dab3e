/* MRAM bandwidth: every tasklet moves blocks of one size, one after the other or far apart. */
#include <alloc.h>
#include <defs.h>
#include <mram.h>

__host uint32_t blocks;

int main(void) {
  if (me() == 0) mem_reset();
  char *block = mem_alloc(BYTES);
  uint32_t at = me() << 20, mask = (1 << 20) - 1;
  for (uint32_t i = 0; i < blocks; i++) {
    __mram_ptr char *place = (__mram_ptr char *)DPU_MRAM_HEAP_POINTER + at + ((i * STRIDE) & mask);
#if READS
    mram_read(place, block, BYTES);
#endif
#if WRITES
    mram_write(block, place + (32 << 20), BYTES);
#endif
  }
  return 0;
}
