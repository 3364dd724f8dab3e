/* What a tasklet asks for: DMA, to wait, to end, to print. The arguments are 32-bit addresses of the program. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "upmem.h"

/* In the call, not behind it: the line is that of the call. */
#define CALLER ((uintptr_t)__builtin_return_address(0) - 1)
enum { LOG_MAX = 1 << 20 };

static bool in_wram(const struct worker *w, uint64_t at, uint64_t bytes) {
  uint64_t offset = at - (uint64_t)(uintptr_t)w->copy->base;
  return offset < w->copy->bytes && bytes <= w->copy->bytes - offset;
}

/* The host's address of `bytes` of MRAM; the chip ignores the bit that tells MRAM from WRAM. */
static uint8_t *dma(uintptr_t caller, const char *name, uint32_t mram, uint32_t wram, uint32_t bytes) {
  struct worker *w = worker;
  uint32_t offset = mram >= MRAM_AT ? mram - MRAM_AT : mram;
  w->inside = false;
  if (!bytes || bytes % 8 || bytes > DMA_MAX)
    tasklet_fault(caller, "%s of %u bytes: a DMA moves 8 to %d bytes, a multiple of 8", name, bytes, DMA_MAX);
  if (offset % 8)
    tasklet_fault(caller, "%s at MRAM address %#x: a DMA needs a multiple of 8 (or mram_unaligned.h)", name, mram);
  if (wram % 8)
    tasklet_fault(caller, "%s with WRAM address %#x: a DMA needs a multiple of 8 (__dma_aligned)", name, wram);
  if (offset >= MRAM_BYTES || bytes > MRAM_BYTES - offset)
    tasklet_fault(caller, "%s of %u bytes at MRAM address %#x: MRAM has %d bytes", name, bytes, mram, MRAM_BYTES);
  if (!in_wram(w, wram, bytes)) tasklet_fault(caller, "%s with WRAM address %#x, which is not WRAM", name, wram);
  return w->dpu->mram + offset;
}

static void check_race(uintptr_t caller, const char *name, uint32_t offset, uint32_t bytes, bool writes) {
  int other = race_with(worker, offset, bytes, writes);
  if (other >= 0)
    tasklet_fault(caller, "%s of %u bytes at MRAM offset %#x: a race with tasklet %d, whose DMA nothing orders with it",
                  name, bytes, offset, other);
}

static void mram_read(uint32_t from, uint32_t to, uint32_t bytes) {
  uint8_t *mram = dma(CALLER, "mram_read", from, to, bytes);
  struct worker *w = worker;
  int64_t gap = w->counts[BU_UNCHECKED] ? -1 : written_gap(w->dpu, (uint32_t)(mram - w->dpu->mram), bytes);
  if (gap >= 0)
    tasklet_fault(CALLER, "mram_read of %u bytes at MRAM offset %#x: nobody has written offset %#llx", bytes,
                  (uint32_t)(mram - w->dpu->mram), (unsigned long long)gap);
  check_race(CALLER, "mram_read", (uint32_t)(mram - w->dpu->mram), bytes, false);
  w->dpu->counters[DMA_READS]++;
  w->dpu->counters[DMA_READ_BYTES] += bytes;
  memcpy((void *)(uintptr_t)to, mram, bytes);
  w->inside = true;
}

static void mram_write(uint32_t from, uint32_t to, uint32_t bytes) {
  uint8_t *mram = dma(CALLER, "mram_write", to, from, bytes);
  struct worker *w = worker;
  check_race(CALLER, "mram_write", (uint32_t)(mram - w->dpu->mram), bytes, true);
  w->dpu->counters[DMA_WRITES]++;
  w->dpu->counters[DMA_WRITE_BYTES] += bytes;
  memcpy(mram, (void *)(uintptr_t)from, bytes);
  written_mark(w->dpu, (uint32_t)(mram - w->dpu->mram), bytes);
  w->inside = true;
}

/* Nobody can help when as many waits in a row were in vain as there are tasklets. */
static void block(uint32_t what, int again) {
  struct worker *w = worker;
  w->inside = false;
  w->tasklets[w->running].waits_for = (const char *)(uintptr_t)what;
  w->tasklets[w->running].blocked_at = CALLER;
  w->dpu->counters[SWITCHES]++;
  w->stalled = again ? w->stalled + 1 : 0;
  if (w->stalled > w->alive) {
    char words[400];
    int used = 0;
    for (uint32_t i = 0; i < w->program->tasklets && used < (int)sizeof words - 80; i++)
      if (!w->tasklets[i].ended && w->tasklets[i].waits_for)
        used +=
            snprintf(words + used, sizeof words - used, "%s%u for %s", used ? ", " : "", i, w->tasklets[i].waits_for);
    tasklet_fault(CALLER, "deadlock: of %u tasklets that have not ended, tasklet %s", w->alive, words);
  }
  next_tasklet();
  worker->tasklets[worker->running].waits_for = NULL;
  worker->inside = true;
}

static void end(void) {
  struct worker *w = worker;
  w->inside = false;
  w->tasklets[w->running].ended = true;
  w->stalled = 0;
  void bringup_upmem_switch(void **, void *);
  if (--w->alive) next_tasklet();
  bringup_upmem_switch(&w->tasklets[w->running].stack_pointer, w->stack_pointer);
}

static void fault(uint32_t words, uint32_t caller) { tasklet_fault(caller - 1, "%s", (const char *)(uintptr_t)words); }

/* ---- printf ---- */
void log_append(struct dpu_t *dpu, const char *text, size_t bytes) {
  if (dpu->log_bytes + bytes > dpu->log_room) {
    size_t room = 2 * (dpu->log_bytes + bytes) + 256;
    char *grown = room > LOG_MAX ? NULL : realloc(dpu->log, room);
    if (!grown) return; /* the chip's log buffer is small, too: what does not fit is lost */
    dpu->log = grown;
    dpu->log_room = room;
  }
  memcpy(dpu->log + dpu->log_bytes, text, bytes);
  dpu->log_bytes += bytes;
}

/* A va_list of x32 has the same members with 32-bit pointers; the slots they point to have 8 bytes in both. */
struct narrow_list {
  uint32_t general, floating, overflow, saved;
};

static uint64_t next_word(struct narrow_list *list) {
  uint64_t value;
  uint32_t at = list->general < 48 ? list->saved + list->general : list->overflow;
  if (list->general < 48)
    list->general += 8;
  else
    list->overflow += 8;
  memcpy(&value, (void *)(uintptr_t)at, sizeof value);
  return value;
}
static double next_double(struct narrow_list *list) {
  double value;
  uint32_t at = list->floating < 176 ? list->saved + list->floating : list->overflow;
  if (list->floating < 176)
    list->floating += 16;
  else
    list->overflow += 8;
  memcpy(&value, (void *)(uintptr_t)at, sizeof value);
  return value;
}

/* Every conversion by its own snprintf: int and long have 32 bits here. */
static void print(uint32_t format, uint32_t arguments, uint32_t from) {
  uintptr_t caller = from - 1;
  struct worker *w = worker;
  struct narrow_list *list = (struct narrow_list *)(uintptr_t)arguments;
  w->inside = false;
  for (const char *at = (const char *)(uintptr_t)format; *at;) {
    const char *percent = strchrnul(at, '%');
    log_append(w->dpu, at, percent - at);
    if (!*percent) break;
    char spec[64], text[512];
    size_t used = 0;
    int longs = 0;
    spec[used++] = '%';
    for (at = percent + 1; *at && strchr("-+ #0123456789.*hlzjtL", *at); at++) {
      if (*at == 'l') longs++;
      if (*at == 'j') longs = 2;
      if (*at == '*')
        used += snprintf(spec + used, sizeof spec - used, "%d", (int)next_word(list));
      else if (!strchr("lzjtL", *at))
        spec[used++] = *at;
      if (used > 40) tasklet_fault(caller, "printf: a conversion of more than 40 characters");
    }
    char kind = *at ? *at++ : '%';
    int wrote = 0;
    if (strchr("di", kind)) {
      long long value = (long long)next_word(list);
      memcpy(spec + used, "lld", 4);
      bool half = memchr(spec, 'h', used);
      if (half) memcpy(spec + used, "d", 2);
      wrote = half ? snprintf(text, sizeof text, spec, (int)value)
                   : snprintf(text, sizeof text, spec, longs > 1 ? value : (long long)(int32_t)value);
    } else if (strchr("uxXo", kind)) {
      unsigned long long value = next_word(list);
      bool half = memchr(spec, 'h', used);
      snprintf(spec + used, sizeof spec - used, half ? "%c" : "ll%c", kind);
      wrote = half ? snprintf(text, sizeof text, spec, (unsigned)value)
                   : snprintf(text, sizeof text, spec, longs > 1 ? value : (unsigned long long)(uint32_t)value);
    } else if (strchr("fFeEgGaA", kind)) {
      spec[used] = kind, spec[used + 1] = 0;
      wrote = snprintf(text, sizeof text, spec, next_double(list));
    } else if (kind == 'c') {
      spec[used] = 'c', spec[used + 1] = 0;
      wrote = snprintf(text, sizeof text, spec, (int)next_word(list));
    } else if (kind == 'p') {
      wrote = snprintf(text, sizeof text, "0x%x", (uint32_t)next_word(list));
    } else if (kind == 's') {
      uint32_t text_at = (uint32_t)next_word(list);
      if (!in_wram(w, text_at, 1)) tasklet_fault(caller, "printf: %%s of address %#x, which is not WRAM", text_at);
      spec[used] = 's', spec[used + 1] = 0;
      wrote = snprintf(text, sizeof text, spec, (const char *)(uintptr_t)text_at);
    } else if (kind == '%') {
      wrote = snprintf(text, sizeof text, "%%");
    } else {
      tasklet_fault(caller, "printf: there is no conversion %%%c here", kind);
    }
    if (wrote > 0) log_append(w->dpu, text, wrote < (int)sizeof text ? (size_t)wrote : sizeof text - 1);
  }
  w->inside = true;
}

/* ---- the rest ---- */
static uint64_t dma_cycles(const struct worker *w) {
  const uint64_t *c = w->dpu->counters;
  return 77 * c[DMA_READS] + 61 * c[DMA_WRITES] + (c[DMA_READ_BYTES] + c[DMA_WRITE_BYTES]) / 2;
}
static uint64_t perf_get(void) { return dma_cycles(worker) - worker->dma_cycles; }
static uint64_t perf_config(uint32_t what, uint32_t reset) {
  (void)what;
  uint64_t old = perf_get();
  if (reset & 0xff) worker->dma_cycles = dma_cycles(worker);
  return old;
}

static uint32_t copy_bytes(uint32_t to, uint32_t from, uint32_t bytes) {
  memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
  return to;
}
static uint32_t move_bytes(uint32_t to, uint32_t from, uint32_t bytes) {
  memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
  return to;
}
static uint32_t set_bytes(uint32_t to, int value, uint32_t bytes) {
  memset((void *)(uintptr_t)to, value, bytes);
  return to;
}
static int compare_bytes(uint32_t a, uint32_t b, uint32_t bytes) {
  return memcmp((void *)(uintptr_t)a, (void *)(uintptr_t)b, bytes);
}

void *const services[BU_SERVICES] = {
    [BU_MRAM_READ] = mram_read,
    [BU_MRAM_WRITE] = mram_write,
    [BU_BLOCK] = block,
    [BU_EXIT] = end,
    [BU_PRINT] = print,
    [BU_FAULT] = fault,
    [BU_PERF_CONFIG] = perf_config,
    [BU_PERF_GET] = perf_get,
    [BU_MEMCPY] = copy_bytes,
    [BU_MEMMOVE] = move_bytes,
    [BU_MEMSET] = set_bytes,
    [BU_MEMCMP] = compare_bytes,
};
