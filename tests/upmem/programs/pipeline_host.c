/* A pipeline of tasklets in each DPU; the host feeds DPUs one by one and reads single variables. */
#include <dpu.h>
#include <dpu_log.h>
#include <dpu_probe.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef DPU_BINARY
#define DPU_BINARY "pipeline_dpu"
#endif

#define COUNT 500

int main(void) {
  struct dpu_set_t set, dpu;
  struct dpu_program_t *program;
  struct dpu_symbol_t items;
  uint32_t nr_dpus;
  DPU_PROBE probe;
  DPU_ASSERT(dpu_probe_init("pipeline", &probe));
  DPU_ASSERT(dpu_alloc_ranks(1, "backend=simulator", &set));
  DPU_ASSERT(dpu_get_nr_dpus(set, &nr_dpus));
  DPU_ASSERT(dpu_load(set, DPU_BINARY, &program));
  DPU_ASSERT(dpu_get_symbol(program, "items", &items));
  printf("%u DPUs, items has %u bytes\n", nr_dpus, items.size);

  int32_t values[COUNT];
  uint32_t index;
  DPU_ASSERT(dpu_probe_start(&probe));
  DPU_FOREACH(set, dpu, index) {
    for (int i = 0; i < COUNT; i++) values[i] = (int32_t)index * 1000 + i;
    DPU_ASSERT(dpu_copy_to_symbol(dpu, items, 0, values, sizeof values));
    uint32_t count = COUNT - index;
    DPU_ASSERT(dpu_copy_to(dpu, "count", 0, &count, sizeof count));
  }
  DPU_ASSERT(dpu_launch(set, DPU_SYNCHRONOUS));
  DPU_ASSERT(dpu_probe_stop(&probe));

  int wrong = 0;
  DPU_FOREACH(set, dpu, index) {
    int64_t sum, expected = 0;
    uint32_t updates, byte;
    for (uint32_t i = 0; i < COUNT - index; i++) expected += 3 * ((int64_t)index * 1000 + i) + 1;
    DPU_ASSERT(dpu_copy_from(dpu, "sum", 0, &sum, sizeof sum));
    DPU_ASSERT(dpu_copy_from(dpu, "updates", 0, &updates, sizeof updates));
    DPU_ASSERT(dpu_copy_from(dpu, "odd_byte", 0, &byte, sizeof byte));
    wrong += sum != expected || updates != NR_TASKLETS || byte != 0x5a;
  }
  printf("wrong sums: %d\n", wrong);
  index = 0;
  DPU_FOREACH(set, dpu) {
    if (index++ == 3) DPU_ASSERT(dpu_log_read(dpu, stdout));
  }
  DPU_ASSERT(dpu_probe_deinit(&probe));
  DPU_ASSERT(dpu_free(set));
  return wrong != 0;
}
