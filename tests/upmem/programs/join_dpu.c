/* A hash table in WRAM that all tasklets fill, then probe. */
#include <alloc.h>
#include <barrier.h>
#include <buddy_alloc.h>
#include <built_ins.h>
#include <defs.h>
#include <inttypes.h>
#include <mram.h>
#include <mram_unaligned.h>
#include <perfcounter.h>
#include <profiling.h>
#include <stdio.h>
#include <string.h>
#include <vmutex.h>

#include "join.h"
#include "join_table.h"

__host uint32_t nr_left;
__mram_noinit struct row left[ROWS];
__mram_noinit struct row right[ROWS];
__mram uint64_t matches;
__mram_noinit int tasklets_done[2];

BARRIER_INIT(ready, NR_TASKLETS);
VMUTEX_INIT(buckets_locks, BUCKETS, 8);
PROFILING_INIT(probing);

static void add(int *to, void *amount) { *to += (int)(uintptr_t)amount; }
static void set_flag(uint8_t *byte, uint8_t bits) { *byte |= bits; }
static void sum_float(float *to, float *amount) { *to += *amount; }
__mram_noinit float total;
__mram_noinit uint8_t flags[8];

int main(void) {
  if (me() == 0) {
    mem_reset();
    buddy_init(8192);
    perfcounter_config(COUNT_ENABLE_BOTH, true);
    memset(table, 0, sizeof table);
    matches = 0;
    mram_write_int_atomic(&tasklets_done[0], 0);
    mram_write_int_atomic(&tasklets_done[1], 0);
    total = 0;
    for (int i = 0; i < 8; i++) mram_write_byte_atomic(&flags[i], 0);
  }
  barrier_wait(&ready);
  struct row *rows = buddy_alloc(16 * sizeof *rows);
  for (uint32_t i = me() * 16; i < nr_left; i += NR_TASKLETS * 16) {
    mram_read(&left[i], rows, 16 * sizeof *rows);
    for (uint32_t k = 0; k < 16 && i + k < nr_left; k++) {
      uint16_t bucket = bucket_of(rows[k].key);
      vmutex_lock(&buckets_locks, bucket);
      insert(bucket, i + k, rows[k].key);
      vmutex_unlock(&buckets_locks, bucket);
    }
  }
  rows = buddy_realloc(rows, 32 * sizeof *rows);
  barrier_wait(&ready);
  profiling_start(&probing);
  int found = 0;
  for (uint32_t i = me() * 16; i < ROWS; i += NR_TASKLETS * 16) {
    mram_read(&right[i], rows, 16 * sizeof *rows);
    for (uint32_t k = 0; k < 16; k++) found += count(rows[k].key);
  }
  profiling_stop(&probing);
  buddy_free(rows);
  float one = 0.5f;
  mram_update_int_atomic(&tasklets_done[me() & 1], add, (void *)1);
  mram_update_int_atomic((int *)&matches, add, (void *)(uintptr_t)found);
  mram_update_int_atomic((int *)&total, (void (*)(void *, void *))sum_float, (void *)&one);
  mram_update_byte_atomic(&flags[me() & 7], set_flag, 1 << (me() >> 3));
  barrier_wait(&ready);
  if (me() == 0) {
    uint32_t same, a = 0x11223344, b = 0x11aa33bb;
    __builtin_cmpb4_rrr(same, a, b);
    perfcounter_pair_t counters = perfcounter_get_both(false);
    printf("%d + %d tasklets, %.1f, %" PRIu64 " matches, same bytes %" PRIx32 ", flags %x, counter %s\n",
           tasklets_done[0], tasklets_done[1], total, matches, same, flags[0], counters.cycles ? "runs" : "stands");
  }
  return 0;
}
