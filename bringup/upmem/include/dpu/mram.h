/* DMA between MRAM and WRAM: 8 to 2,048 bytes, a multiple of 8, both addresses multiples of 8. */
#ifndef BRINGUP_DPU_MRAM_H
#define BRINGUP_DPU_MRAM_H

#include <attributes.h>
#include <stdint.h>

extern __mram_ptr uint8_t __sys_used_mram_end[];
/* The first byte of MRAM behind the program's own variables. */
#define DPU_MRAM_HEAP_POINTER ((__mram_ptr void *)(__sys_used_mram_end))

void mram_read(const __mram_ptr void *from, void *to, unsigned int nb_of_bytes);
void mram_write(const void *from, __mram_ptr void *to, unsigned int nb_of_bytes);

#endif
