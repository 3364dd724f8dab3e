/* Which pieces of an address range are taken: a sorted list, best fit, neighbours joined on return.
 *
 * Linear in the number of pieces. bringup's caching allocator sits above and asks for few, large segments; an index
 * would be slower up to some hundred of them. The caller holds the lock.
 */
#include <stdlib.h>

#include "sim.h"

int sim_ranges_init(sim_ranges *ranges, uint64_t start, uint64_t size) {
  sim_block *whole = calloc(1, sizeof *whole);
  if (!whole) return 0;
  whole->start = start;
  whole->size = size;
  *ranges = (sim_ranges){.first = whole};
  return 1;
}

void sim_ranges_clear(sim_ranges *ranges) {
  for (sim_block *block = ranges->first, *next; block; block = next) {
    next = block->next;
    free(block);
  }
  *ranges = (sim_ranges){0};
}

/* `size` is a multiple of the page. NULL: no piece is large enough, or the host has no memory for the list. */
sim_block *sim_ranges_take(sim_ranges *ranges, uint64_t size) {
  sim_block *best = NULL;
  for (sim_block *block = ranges->first; block; block = block->next)
    if (!block->used && block->size >= size && (!best || block->size < best->size)) best = block;
  if (!best) return NULL;
  if (best->size > size) {
    sim_block *rest = calloc(1, sizeof *rest);
    if (!rest) return NULL;
    *rest = (sim_block){.start = best->start + size, .size = best->size - size, .previous = best, .next = best->next};
    if (rest->next) rest->next->previous = rest;
    best->next = rest;
    best->size = size;
  }
  best->used = 1;
  ranges->used_bytes += size;
  return best;
}

sim_block *sim_ranges_find(const sim_ranges *ranges, uint64_t address) {
  for (sim_block *block = ranges->first; block && block->start <= address; block = block->next)
    if (address - block->start < block->size) return block->used ? block : NULL;
  return NULL;
}

static void join_with_next(sim_block *block) {
  sim_block *next = block->next;
  block->size += next->size;
  block->next = next->next;
  if (block->next) block->next->previous = block;
  free(next);
}

void sim_ranges_give(sim_ranges *ranges, sim_block *block) {
  block->used = 0;
  ranges->used_bytes -= block->size;
  if (block->next && !block->next->used) join_with_next(block);
  if (block->previous && !block->previous->used) join_with_next(block->previous);
}

uint64_t sim_ranges_largest(const sim_ranges *ranges) {
  uint64_t largest = 0;
  for (sim_block *block = ranges->first; block; block = block->next)
    if (!block->used && block->size > largest) largest = block->size;
  return largest;
}
