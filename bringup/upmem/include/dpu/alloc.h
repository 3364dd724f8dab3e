/* The heap of WRAM behind variables and stacks: it grows until mem_reset gives all of it back. */
#ifndef BRINGUP_DPU_ALLOC_H
#define BRINGUP_DPU_ALLOC_H

#include <stddef.h>

/* A piece of WRAM at a multiple of 8; a heap that is used up is a fault. */
void *mem_alloc(size_t size);
void *mem_reset(void);
#define mem_alloc_dma(size) mem_alloc(size)

/* Blocks of one size out of one piece of the heap. */
typedef struct fsb_allocator {
  void *free;
} *fsb_allocator_t;
fsb_allocator_t fsb_alloc(unsigned int block_size, unsigned int nb_of_blocks);
void *fsb_get(fsb_allocator_t allocator);
void fsb_free(fsb_allocator_t allocator, void *block);

/* Blocks of any size out of one piece of the heap, a power of 2 from 64 on; the smallest block has 32 bytes. They give
 * NULL where no block is free. */
void buddy_init(size_t size_of_heap);
void *buddy_alloc(size_t size);
void *buddy_realloc(void *block, size_t size);
void buddy_free(void *block);

#endif
