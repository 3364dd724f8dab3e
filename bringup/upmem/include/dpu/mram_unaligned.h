/* DMA at any address and of any size, by whole words of 8 bytes around it. */
#ifndef BRINGUP_DPU_MRAM_UNALIGNED_H
#define BRINGUP_DPU_MRAM_UNALIGNED_H

#include <mram.h>

/* Reads into a buffer of nb_of_bytes + 16 bytes; returns where in it the first byte lies. */
void *mram_read_unaligned(const __mram_ptr void *from, void *buffer, unsigned int nb_of_bytes);
/* Writes exactly these bytes; the words at both ends are read, changed and written under a lock. */
void mram_write_unaligned(const void *from, __mram_ptr void *to, unsigned int nb_of_bytes);

/* One int or byte of MRAM under a lock. `update(int *value, args)` changes it in place. */
#define mram_update_int_atomic(to, update, args) BRINGUP_UPDATE(int, to, update, args)
#define mram_update_byte_atomic(to, update, args) BRINGUP_UPDATE(uint8_t, to, update, args)
#define mram_write_int_atomic(to, value) __bringup_write_atomic((uint32_t)(to), (uint32_t)(value), 4)
#define mram_write_byte_atomic(to, value) __bringup_write_atomic((uint32_t)(to), (uint32_t)(value), 1)

#define BRINGUP_UPDATE(type, to, update, args)                   \
  do {                                                           \
    __dma_aligned uint8_t bringup_word[8];                       \
    const uint32_t bringup_at = (uint32_t)(to);                  \
    __bringup_take_word(bringup_at, bringup_word);               \
    (update)((type *)(bringup_word + (bringup_at & 7)), (args)); \
    __bringup_give_word(bringup_at, bringup_word);               \
  } while (0)
void __bringup_write_atomic(uint32_t address, uint32_t value, unsigned bytes);
void __bringup_take_word(uint32_t address, uint8_t *word);
void __bringup_give_word(uint32_t address, const uint8_t *word);

#endif
