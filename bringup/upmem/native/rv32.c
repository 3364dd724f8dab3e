/* Runs sampled DPUs on the RISC-V interpreter: tasklet after tasklet until it blocks, all in one machine.
 *
 * An address of MRAM is the machine's own, so the DPU's MRAM is copied where it lies; variables of WRAM are found by
 * name, as the two programs lay them out differently.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../../riscv/iss/iss.h"
#include "rv32.h"

enum {
  RAM_BYTES = MRAM_BYTES + (4 << 20),
  TEXT_AT = 0x0c000000,
  WRAM_AT = 0x0c100000,
  STACKS_AT = 0x0c200000,
  STACK_STEP = 64 << 10,
  SERVICES_AT = 0x20000000,
  SERVICES_BYTES = 4096,
  ROUTINES = 16,
  UNLOCKING = 7, /* RV32 instructions that leave mutex_lock and tell of it: the chip has none of them */
  MUTEXES = 64,  /* by address; what collides shares a row */
  PAGE = 4096,
};
static const uint64_t SLICE = 1000000, INSTRUCTIONS_MAX = 20000000000ull;

/* ---- the interpreter, of another library ---- */
static struct {
  __typeof__(&iss_create) create;
  __typeof__(&iss_destroy) destroy;
  __typeof__(&iss_register_file) registers;
  __typeof__(&iss_add_device) add_device;
  __typeof__(&iss_run) run;
  __typeof__(&iss_yield) yield;
  __typeof__(&iss_retired) retired;
  __typeof__(&iss_set_ranges) set_ranges;
  __typeof__(&iss_read_counts) read_counts;
} iss_calls;

static bool find_interpreter(void) {
  if (iss_calls.create) return true;
  Dl_info self;
  char path[4096];
  if (!dladdr((void *)find_interpreter, &self)) return false;
  const char *slash = strrchr(self.dli_fname, '/');
  snprintf(path, sizeof path, "%.*s/../riscv/_iss.so", (int)(slash ? slash - self.dli_fname : 1),
           slash ? self.dli_fname : ".");
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return false;
  iss_calls.destroy = dlsym(library, "iss_destroy");
  iss_calls.registers = dlsym(library, "iss_register_file");
  iss_calls.add_device = dlsym(library, "iss_add_device");
  iss_calls.run = dlsym(library, "iss_run");
  iss_calls.yield = dlsym(library, "iss_yield");
  iss_calls.retired = dlsym(library, "iss_retired");
  iss_calls.set_ranges = dlsym(library, "iss_set_ranges");
  iss_calls.read_counts = dlsym(library, "iss_read_counts");
  iss_calls.create = dlsym(library, "iss_create");
  return iss_calls.create != NULL;
}

/* ---- the blob ---- */
struct timing *timing_new(const uint8_t *blob, size_t bytes) {
  const struct timing_header *header = (const struct timing_header *)blob;
  if (bytes < sizeof *header || memcmp(header->magic, "rv32time", 8)) return NULL;
  uint64_t numbers = ((uint64_t)header->cost_count + header->weight_count) * sizeof(double);
  if (bytes < sizeof *header + numbers + header->elf_bytes || header->elf_bytes < sizeof(Elf32_Ehdr)) return NULL;
  struct timing *timing = calloc(1, sizeof *timing);
  if (!timing) return NULL;
  timing->blob = malloc(bytes);
  if (!timing->blob) {
    free(timing);
    return NULL;
  }
  memcpy(timing->blob, blob, bytes);
  timing->costs = (const double *)(timing->blob + sizeof *header);
  timing->weights = timing->costs + header->cost_count;
  timing->elf = (const uint8_t *)(timing->weights + header->weight_count);
  timing->cost_count = header->cost_count;
  timing->weight_count = header->weight_count;
  timing->elf_bytes = header->elf_bytes;
  return timing;
}

void timing_free(struct timing *timing) {
  if (!timing) return;
  free(timing->blob);
  free(timing);
}

/* ---- one machine ---- */
struct runner {
  iss *machine;
  iss_registers *registers;
  const struct timing *timing;
  uint8_t *ram;
  uint32_t tasklets, running, alive, stalled;
  bool ended[TASKLETS_MAX], switches, failed;
  iss_registers saved[TASKLETS_MAX];
  struct tasklet_work work[TASKLETS_MAX];
  double raw[TASKLETS_MAX];
  uint64_t locked_at[TASKLETS_MAX];
  double held[MUTEXES];
};

static uint8_t *at(struct runner *r, uint32_t address, uint32_t bytes) {
  uint32_t offset = address - MRAM_AT;
  if (offset >= RAM_BYTES || bytes > RAM_BYTES - offset) {
    r->failed = true;
    return r->ram;
  }
  return r->ram + offset;
}

static int on_read(void *user, uint64_t address, uint32_t size, uint64_t *value) {
  (void)user, (void)address, (void)size;
  *value = 0;
  return 0;
}

/* What is held is charged to its mutex: the instructions between, and two for taking and giving back. */
static void on_lock(struct runner *r, bool locked, uint32_t mutex) {
  uint64_t now = iss_calls.retired(r->machine);
  if (locked) {
    r->locked_at[r->running] = now;
    return;
  }
  uint64_t between = now - r->locked_at[r->running];
  r->held[mutex % MUTEXES] += (between > UNLOCKING ? (double)(between - UNLOCKING) : 0) + 2;
}

static int on_service(void *user, uint64_t address, uint32_t size, uint64_t unused) {
  struct runner *r = user;
  uint64_t *x = r->registers->x;
  struct tasklet_work *work = &r->work[r->running];
  uint32_t number = (uint32_t)(address - SERVICES_AT) / 4, a = (uint32_t)x[10], b = (uint32_t)x[11],
           c = (uint32_t)x[12];
  (void)size, (void)unused;
  if (number >= ROUTINES) {
    number -= ROUTINES;
    if (number >= r->timing->cost_count) return 1;
    work->instructions += timing_routine(number, x) + r->timing->costs[number];
    return 0;
  }
  switch (number) {
    case BU_MRAM_READ:
      work->reads++;
      work->read_bytes += c;
      memcpy(at(r, b, c), at(r, a < MRAM_AT ? a + MRAM_AT : a, c), c);
      break;
    case BU_MRAM_WRITE:
      work->writes++;
      work->write_bytes += c;
      memcpy(at(r, b < MRAM_AT ? b + MRAM_AT : b, c), at(r, a, c), c);
      break;
    case BU_BLOCK:
      r->stalled = b ? r->stalled + 1 : 0;
      r->failed |= r->stalled > r->alive;
      r->switches = true;
      break;
    case BU_EXIT:
      r->ended[r->running] = true;
      r->alive--;
      r->stalled = 0;
      r->switches = true;
      break;
    case BU_LOCKED:
    case BU_UNLOCKED:
      on_lock(r, number == BU_LOCKED, a);
      break;
    case BU_FAULT:
      r->failed = true;
      break;
    case BU_PERF_CONFIG:
    case BU_PERF_GET:
      x[10] = (uint32_t)iss_calls.retired(r->machine);
      x[11] = 0;
      break;
    default:
      break; /* what is printed, the native tier has printed */
  }
  if (r->switches || r->failed) iss_calls.yield(r->machine);
  return r->failed;
}

/* ---- the RV32 program ---- */
struct tables {
  const Elf32_Ehdr *header;
  const Elf32_Shdr *sections;
  const Elf32_Sym *symbols;
  const char *names;
  uint32_t count;
};

static bool open_tables(const struct timing *timing, struct tables *t) {
  t->header = (const Elf32_Ehdr *)timing->elf;
  t->sections = (const Elf32_Shdr *)(timing->elf + t->header->e_shoff);
  for (int i = 0; i < t->header->e_shnum; i++) {
    if (t->sections[i].sh_type != SHT_SYMTAB) continue;
    t->symbols = (const Elf32_Sym *)(timing->elf + t->sections[i].sh_offset);
    t->count = t->sections[i].sh_size / sizeof *t->symbols;
    t->names = (const char *)timing->elf + t->sections[t->sections[i].sh_link].sh_offset;
    return true;
  }
  return false;
}

static uint32_t address_in(const struct tables *t, const char *name) {
  for (uint32_t i = 0; i < t->count; i++)
    if (!strcmp(t->names + t->symbols[i].st_name, name)) return t->symbols[i].st_value;
  return 0;
}

/* Variables of WRAM, by name, as the DPU has them before the launch. Only words that are no longer as they were loaded:
 * the others may be addresses, which differ between the two programs. */
static bool copy_variables(const struct tables *t, const struct dpu_t *dpu, uint8_t *ram) {
  struct dpu_program_t *program = dpu->program;
  struct copy *copy;
  if (!dpu->wram_bytes) return true;
  if (program_copy(program, worker_of(dpu->index, dpu->of->dpu_count), &copy) != DPU_OK) return false;
  for (uint32_t i = 0; i < t->count; i++) {
    if (ELF32_ST_TYPE(t->symbols[i].st_info) != STT_OBJECT || !t->symbols[i].st_size) continue;
    uint32_t to = t->symbols[i].st_value - WRAM_AT;
    const char *name = t->names + t->symbols[i].st_name;
    if (to >= WRAM_BYTES || !strncmp(name, "__bringup", 9)) continue;
    const struct symbol *from = program_symbol(program, name);
    uint32_t offset = from ? from->address - program->wram_at : WRAM_BYTES;
    if (!from || from->size != t->symbols[i].st_size || offset + from->size > program->data_bytes ||
        program->data_bytes > dpu->wram_bytes)
      continue;
    for (uint32_t at = 0; at < from->size; at += 4) {
      uint32_t bytes = from->size - at < 4 ? from->size - at : 4;
      const uint8_t *now = dpu->wram + offset + at;
      if (memcmp(now, copy->fresh + offset + at, bytes)) memcpy(ram + (WRAM_AT - MRAM_AT) + to + at, now, bytes);
    }
  }
  return true;
}

static uint8_t *state_before(const struct timing *timing, const struct dpu_t *dpu) {
  uint8_t *ram = mmap(NULL, RAM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  unsigned char touched[MRAM_BYTES / PAGE];
  struct tables t;
  if (ram == MAP_FAILED) return NULL;
  if (!open_tables(timing, &t) || mincore(dpu->mram, MRAM_BYTES, touched)) {
    munmap(ram, RAM_BYTES);
    return NULL;
  }
  for (uint32_t page = 0; page < MRAM_BYTES / PAGE; page++)
    if (touched[page] & 1) memcpy(ram + (size_t)page * PAGE, dpu->mram + (size_t)page * PAGE, PAGE);
  const Elf32_Phdr *segments = (const Elf32_Phdr *)(timing->elf + t.header->e_phoff);
  for (int i = 0; i < t.header->e_phnum; i++) {
    const Elf32_Phdr *one = &segments[i];
    if (one->p_type != PT_LOAD || one->p_vaddr < TEXT_AT || one->p_vaddr - MRAM_AT > RAM_BYTES ||
        one->p_filesz > RAM_BYTES - (one->p_vaddr - MRAM_AT))
      continue;
    memcpy(ram + (one->p_vaddr - MRAM_AT), timing->elf + one->p_offset, one->p_filesz);
  }
  if (!copy_variables(&t, dpu, ram)) {
    munmap(ram, RAM_BYTES);
    return NULL;
  }
  return ram;
}

static bool run_sample(const struct timing *timing, uint32_t tasklets, uint8_t *ram, struct sample *out) {
  struct runner *r = calloc(1, sizeof *r);
  struct tables t;
  if (!r || !open_tables(timing, &t)) {
    free(r);
    return false;
  }
  iss_config config = {.ram_base = MRAM_AT,
                       .ram_bytes = RAM_BYTES,
                       .ram = ram,
                       .xlen = 32,
                       .vlen = 128,
                       .read = on_read,
                       .write = on_service,
                       .user = r};
  r->timing = timing;
  r->ram = ram;
  r->tasklets = r->alive = tasklets;
  r->machine = iss_calls.create(&config);
  iss_range *ranges = calloc(timing->weight_count + 1, sizeof *ranges);
  uint64_t *bounds = calloc(2 * (size_t)timing->weight_count + 2, sizeof *bounds);
  iss_counts *counts = calloc(timing->weight_count + 1, sizeof *counts), total;
  bool fine =
      r->machine && ranges && bounds && counts && !iss_calls.add_device(r->machine, SERVICES_AT, SERVICES_BYTES);
  for (uint32_t i = 0; fine && i < timing->weight_count; i++)
    bounds[2 * i] = TEXT_AT + 4 * i, bounds[2 * i + 1] = TEXT_AT + 4 * i + 4;
  fine = fine && !iss_calls.set_ranges(r->machine, bounds, timing->weight_count);
  if (fine) {
    r->registers = iss_calls.registers(r->machine);
    for (uint32_t i = 0; i < tasklets; i++) {
      r->saved[i].pc = t.header->e_entry;
      r->saved[i].x[2] = STACKS_AT + (uint64_t)(i + 1) * STACK_STEP - 16;
      r->saved[i].x[3] = address_in(&t, "__global_pointer$");
      r->saved[i].x[4] = i;
    }
    *r->registers = r->saved[0];
    uint64_t before = 0;
    while (r->alive && !r->failed) {
      iss_stop stop;
      iss_calls.run(r->machine, SLICE, &stop);
      uint64_t retired = iss_calls.retired(r->machine);
      r->raw[r->running] += (double)(retired - before);
      before = retired;
      r->failed |= stop.reason != ISS_BUDGET || retired > INSTRUCTIONS_MAX;
      if (!r->switches || !r->alive || r->failed) continue;
      r->switches = false;
      r->saved[r->running] = *r->registers;
      do r->running = (r->running + 1) % tasklets;
      while (r->ended[r->running]);
      *r->registers = r->saved[r->running];
    }
    iss_calls.read_counts(r->machine, &total, counts);
    double weighted = 0, raw = 0;
    for (uint32_t i = 0; i < timing->weight_count; i++) weighted += (double)counts[i].instructions * timing->weights[i];
    for (uint32_t i = 0; i < tasklets; i++) raw += r->raw[i];
    memset(out, 0, sizeof *out);
    out->tasklets = tasklets;
    for (uint32_t i = 0; i < tasklets; i++) {
      out->work[i] = r->work[i];
      out->work[i].instructions += r->raw[i] * (raw > 0 ? weighted / raw : 0);
    }
    for (int i = 0; i < MUTEXES; i++)
      if (r->held[i] > out->held) out->held = r->held[i];
    fine = !r->failed;
  }
  if (r->machine) iss_calls.destroy(r->machine);
  free(ranges), free(bounds), free(counts), free(r);
  return fine;
}

/* ---- which launches are equal, which DPUs are sampled ---- */
static uint64_t hash(uint64_t key, const uint8_t *bytes, size_t count) {
  for (size_t i = 0; i < count; i++) key = (key ^ bytes[i]) * 0x100000001b3ull;
  return key;
}

/* The program's arguments: what the host can set by name, of the first and the last DPU. */
static uint64_t key_of(struct dpu_t **dpus, uint32_t count) {
  uint64_t key = hash(0xcbf29ce484222325ull, (uint8_t *)&count, sizeof count);
  const struct dpu_program_t *program = dpus[0]->program;
  const struct symbol *start = program_symbol(program, "__bringup_wram_start");
  const struct symbol *end = program_symbol(program, "__bringup_host_end");
  uint32_t bytes = start && end ? end->address - start->address : 0;
  for (uint32_t i = 0; i < 2; i++) {
    struct dpu_t *dpu = dpus[i ? count - 1 : 0];
    if (dpu->wram_bytes >= bytes) key = hash(key, dpu->wram, bytes);
  }
  return key;
}

const struct kept_timing *timing_begin(struct dpu_t **dpus, uint32_t count, struct samples_before *before) {
  struct timing *timing = dpus[0]->program->timing;
  memset(before, 0, sizeof *before);
  before->key = key_of(dpus, count);
  for (uint32_t i = 0; i < timing->kept_count; i++)
    if (timing->kept[i].key == before->key) return &timing->kept[i];
  if (!find_interpreter()) return NULL;
  uint32_t samples = count < SAMPLES_MAX ? count : SAMPLES_MAX;
  for (uint32_t i = 0; i < samples; i++) {
    uint32_t index = samples == 1 ? 0 : (uint32_t)((uint64_t)i * (count - 1) / (samples - 1));
    uint8_t *ram = state_before(timing, dpus[index]);
    if (!ram) break;
    before->index[before->count] = index;
    before->ram[before->count++] = ram;
  }
  return NULL;
}

struct sample_work {
  const struct timing *timing;
  struct samples_before *before;
  uint32_t tasklets;
  struct sample samples[SAMPLES_MAX];
  bool fine[SAMPLES_MAX];
};

static void run_samples(void *argument, uint32_t index) {
  struct sample_work *work = argument;
  for (uint32_t i = index; i < work->before->count; i += pool_size()) {
    work->fine[i] = run_sample(work->timing, work->tasklets, work->before->ram[i], &work->samples[i]);
    work->samples[i].dpu = work->before->index[i];
    munmap(work->before->ram[i], RAM_BYTES);
  }
}

const struct kept_timing *timing_run(struct dpu_t **dpus, struct samples_before *before) {
  struct timing *timing = dpus[0]->program->timing;
  struct kept_timing *kept = &timing->kept[timing->next];
  struct sample_work work = {.timing = timing, .before = before, .tasklets = dpus[0]->program->tasklets};
  if (before->count) pool_run(run_samples, &work, NULL);
  memset(kept, 0, sizeof *kept);
  for (uint32_t i = 0; i < before->count; i++)
    if (work.fine[i]) kept->samples[kept->count++] = work.samples[i];
  if (!kept->count) return NULL;
  kept->key = before->key;
  timing->next = (timing->next + 1) % TIMINGS_KEPT;
  if (timing->kept_count < TIMINGS_KEPT) timing->kept_count++;
  return kept;
}
