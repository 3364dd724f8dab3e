/* Counts bytes: every DPU gets a part, all tasklets share one table under a pool of mutexes. */
#include <assert.h>
#include <dpu.h>
#include <dpu_log.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DPU_BINARY
#define DPU_BINARY "./histogram_dpu"
#endif
#define PER_DPU 4096

struct arguments {
  uint32_t bytes;
  uint32_t shift;
};

static dpu_error_t done(struct dpu_set_t set, uint32_t rank, void *args) {
  uint32_t count;
  DPU_ASSERT(dpu_get_nr_dpus(set, &count));
  ((uint32_t *)args)[rank] = count;
  return DPU_OK;
}

static bool halves(struct sg_block_info *out, uint32_t dpu, uint32_t block, void *args) {
  if (block > 1) return false;
  out->addr = *(uint8_t **)args + dpu * 2048 + block * 1024;
  out->length = 1024;
  return true;
}

int main(int argc, char **argv) {
  uint32_t nr = argc > 1 ? (uint32_t)atoi(argv[1]) : 70, ranks;
  struct dpu_set_t set, dpu;
  DPU_ASSERT(dpu_alloc(nr, NULL, &set));
  DPU_ASSERT(dpu_load(set, DPU_BINARY, NULL));
  DPU_ASSERT(dpu_get_nr_ranks(set, &ranks));

  uint8_t *input = malloc((size_t)nr * PER_DPU);
  uint64_t expected[64] = {0}, found[64] = {0};
  for (size_t i = 0; i < (size_t)nr * PER_DPU; i++) {
    input[i] = (uint8_t)(i * 7 + i / 251);
    expected[input[i] >> 2]++;
  }
  struct arguments arguments = {PER_DPU, 2};
  DPU_ASSERT(dpu_broadcast_to(set, "arguments", 0, &arguments, sizeof arguments, DPU_XFER_DEFAULT));
  uint32_t i;
  DPU_FOREACH(set, dpu, i) { DPU_ASSERT(dpu_prepare_xfer(dpu, input + (size_t)i * PER_DPU)); }
  DPU_ASSERT(dpu_push_xfer(set, DPU_XFER_TO_DPU, DPU_MRAM_HEAP_POINTER_NAME, 0, PER_DPU, DPU_XFER_DEFAULT));

  uint32_t *of_rank = calloc(ranks, sizeof *of_rank);
  DPU_ASSERT(dpu_launch(set, DPU_ASYNCHRONOUS));
  DPU_ASSERT(dpu_callback(set, done, of_rank, DPU_CALLBACK_ASYNC));
  DPU_ASSERT(dpu_sync(set));

  uint32_t(*tables)[64] = malloc((size_t)nr * sizeof *tables);
  DPU_FOREACH(set, dpu, i) { DPU_ASSERT(dpu_prepare_xfer(dpu, tables[i])); }
  DPU_ASSERT(dpu_push_xfer(set, DPU_XFER_FROM_DPU, "table", 0, sizeof *tables, DPU_XFER_DEFAULT));
  for (i = 0; i < nr; i++)
    for (int bin = 0; bin < 64; bin++) found[bin] += tables[i][bin];

  uint32_t total = 0;
  for (uint32_t r = 0; r < ranks; r++) total += of_rank[r];
  bool finished, fault;
  DPU_ASSERT(dpu_status(set, &finished, &fault));
  printf("%u DPUs in %u ranks (callbacks saw %u), done %d, fault %d\n", nr, ranks, total, finished, fault);
  printf("histogram %s\n", memcmp(found, expected, sizeof found) ? "differs" : "equals the host's");

  uint8_t *sent = malloc((size_t)nr * 2048), back[2048];
  for (size_t b = 0; b < (size_t)nr * 2048; b++) sent[b] = (uint8_t)(b * 13 + b / 2048);
  get_block_t blocks = {halves, &sent, sizeof sent};
  DPU_ASSERT(
      dpu_push_sg_xfer(set, DPU_XFER_TO_DPU, DPU_MRAM_HEAP_POINTER_NAME, PER_DPU, 2048, &blocks, DPU_SG_XFER_DEFAULT));
  bool same = true;
  DPU_FOREACH(set, dpu, i) {
    DPU_ASSERT(dpu_copy_from(dpu, DPU_MRAM_HEAP_POINTER_NAME, PER_DPU, back, sizeof back));
    same &= !memcmp(back, sent + (size_t)i * 2048, sizeof back);
  }
  printf("scattered blocks %s\n", same ? "arrived" : "differ");

  struct dpu_set_t rank;
  DPU_RANK_FOREACH(set, rank, i) {
    if (i) continue;
    DPU_FOREACH(rank, dpu) {
      DPU_ASSERT(dpu_log_read(dpu, stdout));
      break;
    }
  }
  DPU_ASSERT(dpu_free(set));
  struct dpu_set_t none;
  dpu_error_t refused = dpu_alloc(3000, NULL, &none);
  char *words = dpu_error_to_string(refused);
  printf("3000 DPUs: %s\n", words);
  free(words), free(input), free(of_rank), free(tables), free(sent);
  return 0;
}
