#include <alloc.h>
#include <assert.h>
#include <atomic_bit.h>
#include <built_ins.h>
#include <defs.h>
#include <handshake.h>
#include <mram.h>
#include <mram_unaligned.h>
#include <sem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__mram_noinit int32_t items[512];
__mram uint64_t text = 0x11;
__mram int32_t shared[2] = {0, 0};
__host uint32_t count;
__host int64_t sum;
__host uint32_t updates;
__host uint32_t odd_byte;

#define SLOTS 4
SEMAPHORE_INIT(empty, SLOTS);
SEMAPHORE_INIT(full, 0);
ATOMIC_BIT_INIT(guard);
int32_t slots[SLOTS];
fsb_allocator_t blocks;

static void add(int *value, int argument) { *value += argument; }

static void produce(void) {
  char *window = fsb_get(blocks);
  for (uint32_t i = 0; i < count; i++) {
    int32_t *item = mram_read_unaligned(&items[i], window, sizeof *item);
    sem_take(&empty);
    slots[i % SLOTS] = *item * 3;
    sem_give(&full);
  }
  fsb_free(blocks, window);
}

static void consume(void) {
  int32_t one;
  __builtin_mul_sl_sl_rrr(one, 1, 1);
  for (uint32_t i = 0; i < count; i++) {
    sem_take(&full);
    sum += slots[i % SLOTS] + one;
    sem_give(&empty);
  }
}

int main() {
  if (me() == 0) {
    mem_reset();
    blocks = fsb_alloc(32, 2);
    sum = 0;
    updates = 0;
    for (int t = 1; t < NR_TASKLETS; t++) handshake_wait_for(t);
  } else {
    handshake_notify();
  }
  if (me() == 0) produce();
  if (me() == 1) consume();
  mram_update_int_atomic(&shared[1], add, 1);
  ATOMIC_BIT_ACQUIRE(guard);
  updates++;
  ATOMIC_BIT_RELEASE(guard);
  if (me() == 2) {
    char word[8] = "ab";
    assert(strlen(word) == 2 && !strcmp(word, "ab") && abs(-4) == 4);
    memset(word, 0x5a, sizeof word);
    mram_write_unaligned(word, (__mram_ptr char *)&text + 3, 2);
    odd_byte = (uint8_t)(text >> 24);
    printf("tasklet %d of %d: %s %c 0x%x %llu\n", me(), NR_TASKLETS, "text", 'c', odd_byte, (unsigned long long)text);
    exit(0);
  }
  return 0;
}
