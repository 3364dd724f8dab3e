/* Joins two tables by a hash table on every DPU: what real programs of databases do to the SDK, unusual calls first. */
#include <dpu.h>
#include <dpu_log.h>
#include <dpu_probe.h>
#include <math.h>
#include <string.h>

#include "join.h"

DPU_INCBIN(join_program, DPU_BINARY);

struct tables {
  const struct row *rows;
  uint32_t per_dpu;
};

/* The rows of one DPU in two blocks, of which the second is shorter. */
static bool rows_of(struct sg_block_info *out, uint32_t dpu, uint32_t block, void *args) {
  const struct tables *tables = args;
  if (block > 1) return false;
  out->addr = (uint8_t *)(tables->rows + (size_t)dpu * tables->per_dpu + block * (ROWS / 2));
  out->length = (block ? tables->per_dpu - ROWS / 2 : ROWS / 2) * sizeof(struct row);
  return true;
}

static dpu_error_t note_rank(struct dpu_set_t rank, uint32_t id, void *args) {
  uint32_t nr;
  dpu_error_t status = dpu_get_nr_dpus(rank, &nr);
  __atomic_fetch_add((uint32_t *)args, nr + 1000 * id, __ATOMIC_RELAXED);
  return status;
}

static uint32_t errors;

int main(void) {
  struct dpu_set_t set, rank, dpu;
  struct dpu_program_t *program;
  struct dpu_symbol_t left, matches;
  struct dpu_probe_t probe;
  uint32_t nr_ranks, nr, i, seen = 0;
  const uint32_t per_dpu = ROWS - 16;
  DPU_ASSERT(dpu_probe_init("join", &probe));
  DPU_ASSERT(dpu_alloc_ranks(2, "backend=simulator", &set));
  DPU_ASSERT(dpu_load_from_incbin(set, &join_program, &program));
  DPU_ASSERT(dpu_get_nr_ranks(set, &nr_ranks));
  DPU_ASSERT(dpu_get_nr_dpus(set, &nr));
  DPU_ASSERT(dpu_get_symbol(program, "left", &left));
  DPU_ASSERT(dpu_get_symbol(program, "matches", &matches));

  struct row *rows = malloc(sizeof *rows * nr * per_dpu), *others = malloc(sizeof *others * nr * ROWS);
  uint64_t *expected = calloc(nr, sizeof *expected);
  for (uint32_t r = 0; r < nr * per_dpu; r++) rows[r] = (struct row){r * 7 % 301, r};
  for (uint32_t r = 0; r < nr * ROWS; r++) others[r] = (struct row){r * 11 % 301, r};
  for (uint32_t d = 0; d < nr; d++)
    for (uint32_t a = 0; a < per_dpu; a++)
      for (uint32_t b = 0; b < ROWS; b++) expected[d] += rows[d * per_dpu + a].key == others[d * ROWS + b].key;

  DPU_ASSERT(dpu_probe_start(&probe));
  struct tables tables = {rows, per_dpu};
  get_block_t blocks = {.f = &rows_of, .args = &tables, .args_size = sizeof tables};
  DPU_ASSERT(dpu_push_sg_xfer_symbol(set, DPU_XFER_TO_DPU, left, 0, ROWS * sizeof *rows, &blocks,
                                     DPU_SG_XFER_ASYNC | DPU_SG_XFER_DISABLE_LENGTH_CHECK));
  DPU_RANK_FOREACH(set, rank, i) {
    DPU_FOREACH(rank, dpu, seen) DPU_ASSERT(dpu_prepare_xfer(dpu, others + (i * 64 + seen) * ROWS));
  }
  DPU_ASSERT(dpu_push_xfer(set, DPU_XFER_TO_DPU, "right", 0, ROWS * sizeof *others, DPU_XFER_ASYNC));
  DPU_ASSERT(dpu_broadcast_to(set, "nr_left", 0, &per_dpu, sizeof per_dpu, DPU_XFER_ASYNC));
  DPU_ASSERT(dpu_launch(set, DPU_ASYNCHRONOUS));
  uint32_t called = 0;
  DPU_ASSERT(dpu_callback(set, note_rank, &called, DPU_CALLBACK_ASYNC | DPU_CALLBACK_NONBLOCKING));
  DPU_ASSERT(dpu_sync(set));
  DPU_ASSERT(dpu_probe_stop(&probe));
  printf("%u DPUs in %u ranks, callbacks %u\n", nr, nr_ranks, called);

  uint64_t *found = malloc(sizeof *found * nr);
  uint32_t wrong = 0;
  DPU_FOREACH(set, dpu, i) DPU_ASSERT(dpu_prepare_xfer(dpu, &found[i]));
  DPU_ASSERT(dpu_push_xfer_symbol(set, DPU_XFER_FROM_DPU, matches, 0, sizeof *found, DPU_XFER_DEFAULT));
  for (i = 0; i < nr; i++) wrong += found[i] != expected[i];
  printf("wrong counts: %u, the first is %llu\n", wrong, (unsigned long long)found[0]);
  DPU_FOREACH(set, dpu, i) {
    if (i == 5) DPU_ASSERT(dpulog_read_for_dpu(dpu.dpu, stdout));
  }
  double seconds = 0;
  DPU_ASSERT(dpu_probe_get(&probe, DPU_TIME, DPU_AVERAGE, &seconds));
  printf("seconds in the probe: %s\n", isnan(seconds) ? "not known here" : "known");

  dpu_error_t status = dpu_get_symbol(program, "nothing", &left);
  char *words = dpu_error_to_string(status);
  printf("%d: %s\n", status == DPU_ERR_UNKNOWN_SYMBOL, strstr(words, "'nothing'"));
  free(words);
  DPU_CHECK(dpu_callback(set, note_rank, &called, DPU_CALLBACK_NONBLOCKING), errors++);
  DPU_ASSERT(dpu_free(set));
  free(rows), free(others), free(expected), free(found);
  return errors != 1;
}
