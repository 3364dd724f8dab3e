/* DMA at any address and of any size, by whole words of 8 bytes around it. */
#ifndef BRINGUP_DPU_MRAM_UNALIGNED_H
#define BRINGUP_DPU_MRAM_UNALIGNED_H

#include <mram.h>

/* Reads into a buffer of nb_of_bytes + 8 bytes, rounded up to 8; returns where in it the first byte lies. */
void *mram_read_unaligned(const __mram_ptr void *from, void *buffer, unsigned int nb_of_bytes);
/* Writes exactly these bytes; the words at both ends are read, changed and written under a lock. */
void mram_write_unaligned(const void *from, __mram_ptr void *to, unsigned int nb_of_bytes);
void mram_update_int_atomic(__mram_ptr void *address, int (*update)(int value, int argument), int argument);
void mram_write_byte_atomic(__mram_ptr void *address, uint8_t value);
void mram_write_int_atomic(__mram_ptr void *address, int value);

#endif
