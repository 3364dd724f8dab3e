/* Reads MRAM from one place onwards through a window of WRAM of two pages. */
#ifndef BRINGUP_DPU_SEQREAD_H
#define BRINGUP_DPU_SEQREAD_H

#include <mram.h>

#ifndef SEQREAD_CACHE_SIZE
#define SEQREAD_CACHE_SIZE 256
#endif

typedef uintptr_t seqreader_buffer_t;
typedef struct seqreader_t {
  seqreader_buffer_t window;
  uint32_t mram_addr; /* of the window's first byte */
} seqreader_t;

seqreader_buffer_t __bringup_seqread_alloc(uint32_t page);
void *__bringup_seqread_init(seqreader_buffer_t buffer, uint32_t from, seqreader_t *reader, uint32_t page);
void *__bringup_seqread_turn(void *at, seqreader_t *reader, uint32_t page);

/* A window; each reader needs one. */
#define seqread_alloc() __bringup_seqread_alloc(SEQREAD_CACHE_SIZE)

/* Where in WRAM the byte at `mram_addr` lies. */
static inline void *seqread_init(seqreader_buffer_t buffer, __mram_ptr void *mram_addr, seqreader_t *reader) {
  return __bringup_seqread_init(buffer, (uint32_t)mram_addr, reader, SEQREAD_CACHE_SIZE);
}
static inline void *seqread_seek(__mram_ptr void *mram_addr, seqreader_t *reader) {
  return __bringup_seqread_init(reader->window, (uint32_t)mram_addr, reader, SEQREAD_CACHE_SIZE);
}
/* The pointer `inc` bytes on; at most a page. What is read there may be as long as a page. */
static inline void *seqread_get(void *at, uint32_t inc, seqreader_t *reader) {
  void *next = (char *)at + inc;
  if ((uintptr_t)next < reader->window + SEQREAD_CACHE_SIZE) return next;
  return __bringup_seqread_turn(next, reader, SEQREAD_CACHE_SIZE);
}
static inline __mram_ptr void *seqread_tell(void *at, seqreader_t *reader) {
  return (__mram_ptr void *)(reader->mram_addr + ((uintptr_t)at - reader->window));
}

#endif
