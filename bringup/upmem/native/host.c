/* libdpu's calls: sets of DPUs, programs, launches. */
#define _GNU_SOURCE
#include <dpu_log.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "rv32.h"

static double default_seconds_limit(void) {
  const char *asked = getenv("BRINGUP_UPMEM_SECONDS");
  return asked ? atof(asked) : 600;
}

/* DPUs of this process that are allocated: a machine has DPUS_MAX. */
static uint32_t taken;

/* ---- sets ---- */
static bool is_ranks(struct dpu_set_t set) { return set.kind == DPU_SET_RANKS; }

uint32_t set_size(struct dpu_set_t set) {
  if (!is_ranks(set)) return 1;
  uint32_t count = 0;
  for (uint32_t i = 0; i < set.list.nr_ranks; i++) count += set.list.ranks[i]->count;
  return count;
}

void set_dpus(struct dpu_set_t set, struct dpu_t **out) {
  if (!is_ranks(set)) {
    out[0] = set.dpu;
    return;
  }
  for (uint32_t i = 0; i < set.list.nr_ranks; i++)
    for (uint32_t d = 0; d < set.list.ranks[i]->count; d++) *out++ = &set.list.ranks[i]->dpus[d];
}

static struct upmem *allocation_of(struct dpu_set_t set) {
  return is_ranks(set) ? set.list.nr_ranks ? set.list.ranks[0]->of : NULL : set.dpu->of;
}

static void release(struct upmem *all) {
  for (uint32_t i = 0; all->dpus && i < all->dpu_count; i++) {
    program_drop(all->dpus[i].program);
    free(all->dpus[i].log);
  }
  if (all->mram) munmap(all->mram, (size_t)all->dpu_count * MRAM_BYTES);
  if (all->written) munmap(all->written, (size_t)all->dpu_count * WRITTEN_BYTES);
  if (all->touched) munmap(all->touched, (size_t)all->dpu_count * MRAM_BYTES);
  if (all->wram) munmap(all->wram, (size_t)all->dpu_count * WRAM_BYTES);
  free(all->dpus);
  free(all->ranks);
  free(all->rank_list);
  free(all);
}

static void *reserve(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

UPMEM_API dpu_error_t dpu_alloc(uint32_t nr_dpus, const char *profile, struct dpu_set_t *set) {
  if (profile && strstr(profile, "backend=hw"))
    return failed(DPU_ERR_ALLOCATION,
                  "the profile '%s' demands hardware, and this is bringup's simulator: install "
                  "UPMEM's SDK and put its libdpu.so before ours",
                  profile);
  if (nr_dpus == DPU_ALLOCATE_ALL) nr_dpus = DPUS_MAX - __atomic_load_n(&taken, __ATOMIC_RELAXED);
  if (!nr_dpus) return failed(DPU_ERR_ALLOCATION, "a set of 0 DPUs");
  if (__atomic_add_fetch(&taken, nr_dpus, __ATOMIC_RELAXED) > DPUS_MAX || nr_dpus > DPUS_MAX) {
    uint32_t others = __atomic_sub_fetch(&taken, nr_dpus, __ATOMIC_RELAXED);
    return failed(DPU_ERR_ALLOCATION, "%u DPUs: a machine has %d, and %u of them are taken", nr_dpus, DPUS_MAX, others);
  }
  struct upmem *all = calloc(1, sizeof *all);
  if (all) {
    all->dpu_count = nr_dpus;
    all->rank_count = (nr_dpus + DPUS_PER_RANK - 1) / DPUS_PER_RANK;
    all->seconds_limit = default_seconds_limit();
    all->dpus = calloc(nr_dpus, sizeof *all->dpus);
    all->ranks = calloc(all->rank_count, sizeof *all->ranks);
    all->rank_list = calloc(all->rank_count, sizeof *all->rank_list);
    all->mram = reserve((size_t)nr_dpus * MRAM_BYTES);
    all->wram = reserve((size_t)nr_dpus * WRAM_BYTES);
  }
  if (!all || !all->dpus || !all->ranks || !all->rank_list || !all->mram || !all->wram) {
    __atomic_sub_fetch(&taken, nr_dpus, __ATOMIC_RELAXED);
    if (all) release(all);
    return failed(DPU_ERR_SYSTEM, "no address space for %u DPUs with %d MB each (ulimit -v?)", nr_dpus,
                  MRAM_BYTES >> 20);
  }
  for (uint32_t i = 0; i < nr_dpus; i++) {
    struct dpu_t *dpu = &all->dpus[i];
    dpu->of = all;
    dpu->index = i;
    dpu->mram = all->mram + (size_t)i * MRAM_BYTES;
    dpu->wram = all->wram + (size_t)i * WRAM_BYTES;
  }
  for (uint32_t r = 0; r < all->rank_count; r++) {
    uint32_t first = r * DPUS_PER_RANK, left = nr_dpus - first;
    all->ranks[r] = (struct dpu_rank_t){all, all->dpus + first, left < DPUS_PER_RANK ? left : DPUS_PER_RANK};
    all->rank_list[r] = &all->ranks[r];
  }
  const char *checks = getenv("BRINGUP_UPMEM_CHECKS");
  if (checks && atoi(checks) && written_start(all) != DPU_OK) {
    __atomic_sub_fetch(&taken, nr_dpus, __ATOMIC_RELAXED);
    release(all);
    return DPU_ERR_SYSTEM;
  }
  memset(set, 0, sizeof *set);
  set->kind = DPU_SET_RANKS;
  set->list.nr_ranks = all->rank_count;
  set->list.ranks = all->rank_list;
  return DPU_OK;
}

UPMEM_API dpu_error_t dpu_alloc_ranks(uint32_t nr_ranks, const char *profile, struct dpu_set_t *set) {
  if (nr_ranks == DPU_ALLOCATE_ALL) return dpu_alloc(DPU_ALLOCATE_ALL, profile, set);
  if (nr_ranks > DPUS_MAX / DPUS_PER_RANK)
    return failed(DPU_ERR_ALLOCATION, "%u ranks: a machine has %d whole ones", nr_ranks, DPUS_MAX / DPUS_PER_RANK);
  return dpu_alloc(nr_ranks * DPUS_PER_RANK, profile, set);
}

UPMEM_API dpu_error_t dpu_free(struct dpu_set_t set) {
  struct upmem *all = is_ranks(set) ? allocation_of(set) : NULL;
  if (!all || set.list.ranks != all->rank_list || set.list.nr_ranks != all->rank_count)
    return failed(DPU_ERR_INVALID_DPU_SET, "dpu_free takes a whole set, as dpu_alloc gave it");
  __atomic_sub_fetch(&taken, all->dpu_count, __ATOMIC_RELAXED);
  release(all);
  return DPU_OK;
}

UPMEM_API dpu_error_t dpu_get_nr_ranks(struct dpu_set_t set, uint32_t *nr_ranks) {
  *nr_ranks = is_ranks(set) ? set.list.nr_ranks : 1;
  return DPU_OK;
}
UPMEM_API dpu_error_t dpu_get_nr_dpus(struct dpu_set_t set, uint32_t *nr_dpus) {
  *nr_dpus = set_size(set);
  return DPU_OK;
}

/* ---- walking ---- */
UPMEM_API struct dpu_set_rank_iterator_t dpu_set_rank_iterator_from(struct dpu_set_t *set) {
  struct dpu_set_rank_iterator_t it = {.set = set, .count = UINT32_MAX, .has_next = true};
  dpu_set_rank_iterator_next(&it);
  return it;
}
UPMEM_API void dpu_set_rank_iterator_next(struct dpu_set_rank_iterator_t *it) {
  it->has_next = is_ranks(*it->set) && it->next_idx < it->set->list.nr_ranks;
  if (!it->has_next) return;
  it->count++;
  it->next.kind = DPU_SET_RANKS;
  it->next.list.nr_ranks = 1;
  it->next.list.ranks = &it->set->list.ranks[it->next_idx++];
}
UPMEM_API struct dpu_set_dpu_iterator_t dpu_set_dpu_iterator_from(struct dpu_set_t *set) {
  struct dpu_set_dpu_iterator_t it = {.count = UINT32_MAX, .has_next = true};
  it.rank_iterator.set = set;
  dpu_set_dpu_iterator_next(&it);
  return it;
}
UPMEM_API void dpu_set_dpu_iterator_next(struct dpu_set_dpu_iterator_t *it) {
  struct dpu_set_t *set = it->rank_iterator.set;
  if (!is_ranks(*set)) {
    it->has_next = it->count == UINT32_MAX;
    it->next = *set;
    it->count++;
    return;
  }
  uint32_t *rank = &it->rank_iterator.next_idx;
  while (*rank < set->list.nr_ranks && it->next_idx >= set->list.ranks[*rank]->count) ++*rank, it->next_idx = 0;
  it->has_next = *rank < set->list.nr_ranks;
  if (!it->has_next) return;
  it->count++;
  it->next.kind = DPU_SET_DPU;
  it->next.dpu = &set->list.ranks[*rank]->dpus[it->next_idx++];
}

/* ---- programs ---- */
static dpu_error_t load(struct dpu_set_t set, struct dpu_program_t *program, struct dpu_program_t **out) {
  uint32_t count = set_size(set);
  for (uint32_t i = 0; i < count; i++) {
    struct dpu_t *dpu = is_ranks(set) ? NULL : set.dpu;
    for (uint32_t r = 0, left = i; !dpu; left -= set.list.ranks[r++]->count)
      if (left < set.list.ranks[r]->count) dpu = &set.list.ranks[r]->dpus[left];
    program_keep(program);
    program_drop(dpu->program);
    dpu->program = program;
    dpu->wram_bytes = 0;
    dpu->faulted = false;
    dpu->log_bytes = 0;
    program_init_mram(program, dpu);
  }
  if (out) *out = program;
  allocation_of(set)->timed = NULL; /* it may have been the earlier program's */
  program_drop(program);            /* the DPUs hold it now */
  return DPU_OK;
}

UPMEM_API dpu_error_t dpu_load_from_memory(struct dpu_set_t set, uint8_t *buffer, size_t size,
                                           struct dpu_program_t **out) {
  struct dpu_program_t *program;
  dpu_error_t status = program_new(buffer, size, "a program in memory", &program);
  return status == DPU_OK ? load(set, program, out) : status;
}

UPMEM_API dpu_error_t dpu_load_from_incbin(struct dpu_set_t set, struct dpu_incbin_t *incbin,
                                           struct dpu_program_t **out) {
  struct dpu_program_t *program;
  dpu_error_t status = program_new(incbin->buffer, incbin->size, incbin->path ? incbin->path : "a program", &program);
  return status == DPU_OK ? load(set, program, out) : status;
}

UPMEM_API dpu_error_t dpu_load(struct dpu_set_t set, const char *path, struct dpu_program_t **out) {
  FILE *file = fopen(path, "rb");
  const char *instead = getenv("BRINGUP_UPMEM_PROGRAM"); /* what `bringup upmem run` built */
  if (!file && instead) file = fopen(path = instead, "rb");
  struct stat facts;
  if (!file || fstat(fileno(file), &facts) || !S_ISREG(facts.st_mode)) {
    if (file) fclose(file);
    return failed(DPU_ERR_ELF_NO_SUCH_FILE, "%s", path);
  }
  uint8_t *bytes = malloc(facts.st_size + 1);
  size_t got = bytes ? fread(bytes, 1, facts.st_size, file) : 0;
  fclose(file);
  struct dpu_program_t *program;
  dpu_error_t status = program_new(bytes, got, path, &program);
  free(bytes);
  return status == DPU_OK ? load(set, program, out) : status;
}

UPMEM_API dpu_error_t dpu_get_symbol(struct dpu_program_t *program, const char *name, struct dpu_symbol_t *out) {
  const struct symbol *symbol = program ? program_symbol(program, name) : NULL;
  if (!symbol)
    return failed(DPU_ERR_UNKNOWN_SYMBOL, "%s has no symbol '%s'", program ? program->path : "no program", name);
  bool in_mram = symbol->address >= MRAM_AT && symbol->address <= MRAM_AT + MRAM_BYTES;
  uint32_t wram = symbol->address - program->wram_at;
  if (!in_mram && wram >= WRAM_BYTES)
    return failed(DPU_ERR_INVALID_SYMBOL_ACCESS, "'%s' of %s is neither in WRAM nor in MRAM", name, program->path);
  bool heap = !strcmp(name, DPU_MRAM_HEAP_POINTER_NAME);
  out->address = in_mram ? symbol->address : wram;
  out->size = heap ? MRAM_AT + MRAM_BYTES - symbol->address : symbol->size;
  return DPU_OK;
}

/* ---- launches ---- */
/* For the report: the counters of the DPU that moved most, and the samples as numbers. */
static void note_launch(const struct upmem *all, struct dpu_t **dpus, uint32_t count) {
  const uint64_t *most = dpus[0]->counters;
  for (uint32_t i = 1; i < count; i++)
    if (dpus[i]->counters[DMA_READ_BYTES] + dpus[i]->counters[DMA_WRITE_BYTES] >
        most[DMA_READ_BYTES] + most[DMA_WRITE_BYTES])
      most = dpus[i]->counters;
  event("{\"event\": \"launch\", \"dpus\": %u, \"counters\": [", count);
  for (int i = 0; i < COUNTERS; i++) event("%s%llu", i ? ", " : "", (unsigned long long)most[i]);
  event("], \"samples\": [");
  for (uint32_t s = 0; all->timed && s < all->timed->count; s++) {
    const double *numbers = (const double *)&all->timed->samples[s];
    for (size_t i = 0; i < sizeof *all->timed->samples / sizeof(double); i++)
      event("%s%.17g", i ? ", " : s ? ", [" : "[", numbers[i]);
    event("]");
  }
  event("]}\n");
}

UPMEM_API dpu_error_t dpu_launch(struct dpu_set_t set, dpu_launch_policy_t policy) {
  if (policy != DPU_SYNCHRONOUS && policy != DPU_ASYNCHRONOUS)
    return failed(DPU_ERR_INVALID_LAUNCH_POLICY, "policy %d", policy);
  uint32_t count = set_size(set);
  struct dpu_t **dpus = malloc(count * sizeof *dpus);
  if (!dpus) return failed(DPU_ERR_SYSTEM, "no memory for a launch");
  set_dpus(set, dpus);
  struct upmem *all = allocation_of(set);
  dpu_error_t status = launch(dpus, count, all->seconds_limit);
  if (events_wanted()) note_launch(all, dpus, count);
  free(dpus);
  /* An asynchronous launch runs at once, too: nothing can tell, but for its errors, which come with dpu_sync. */
  if (policy == DPU_ASYNCHRONOUS && status == DPU_ERR_DPU_FAULT && all->pending == DPU_OK) {
    all->pending = status;
    snprintf(all->pending_words, sizeof all->pending_words, "%s", failure_words());
    return DPU_OK;
  }
  return status;
}

UPMEM_API dpu_error_t dpu_sync(struct dpu_set_t set) {
  struct upmem *all = allocation_of(set);
  dpu_error_t status = all->pending;
  all->pending = DPU_OK;
  return status == DPU_OK ? status : failed(status, "%s", all->pending_words);
}

UPMEM_API dpu_error_t dpu_status(struct dpu_set_t set, bool *done, bool *fault) {
  uint32_t count = set_size(set);
  struct dpu_t **dpus = malloc(count * sizeof *dpus);
  if (!dpus) return failed(DPU_ERR_SYSTEM, "no memory");
  set_dpus(set, dpus);
  *done = true;
  *fault = false;
  for (uint32_t i = 0; i < count; i++) *fault |= dpus[i]->faulted;
  free(dpus);
  return DPU_OK;
}

UPMEM_API dpu_error_t dpu_callback(struct dpu_set_t set, dpu_error_t (*callback)(struct dpu_set_t, uint32_t, void *),
                                   void *args, dpu_callback_flags_t flags) {
  if (flags & DPU_CALLBACK_NONBLOCKING && !(flags & DPU_CALLBACK_ASYNC))
    return failed(DPU_ERR_NONBLOCKING_SYNC_CALLBACK, "add DPU_CALLBACK_ASYNC to DPU_CALLBACK_NONBLOCKING");
  if (!is_ranks(set) || flags & DPU_CALLBACK_SINGLE_CALL) return callback(set, 0, args);
  struct dpu_set_t rank;
  uint32_t index;
  DPU_RANK_FOREACH(set, rank, index) {
    dpu_error_t status = callback(rank, index, args);
    if (status == DPU_OK) continue;
    if (!(flags & DPU_CALLBACK_ASYNC)) return status;
    struct upmem *all = allocation_of(set);
    if (all->pending == DPU_OK) {
      all->pending = DPU_ERR_ASYNC_JOBS;
      snprintf(all->pending_words, sizeof all->pending_words, "a callback answered %d", status);
    }
  }
  return DPU_OK;
}

/* ---- text ---- */
UPMEM_API dpu_error_t dpu_log_read(struct dpu_set_t set, FILE *stream) {
  struct dpu_set_t one;
  DPU_FOREACH(set, one) dpulog_read_for_dpu(one.dpu, stream);
  return DPU_OK;
}
UPMEM_API dpu_error_t dpulog_read_for_dpu(struct dpu_t *dpu, FILE *stream) {
  fwrite(dpu->log, 1, dpu->log_bytes, stream);
  dpu->log_bytes = 0;
  return DPU_OK;
}
