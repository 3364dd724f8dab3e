/* Runs DPUs: workers take theirs one after the other; a DPU's tasklets are coroutines on their own stacks. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "rv32.h"

enum { ARCH_SET_GS_BASE = 0x1001, INTERRUPT = SIGURG, WRAM_STEP = 64 };

__thread struct worker *worker;

/* Saves what a call preserves and the stack pointer, and goes on where `to` was saved. */
void bringup_upmem_switch(void **from, void *to);
__asm__(
    ".text\n.hidden bringup_upmem_switch\n.globl bringup_upmem_switch\n.type bringup_upmem_switch,@function\n"
    "bringup_upmem_switch:\n"
    "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
    "  mov %rsp, (%rdi)\n  mov %rsi, %rsp\n"
    "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n  ret\n");

static void point_mram(uint8_t *mram) {
  uint64_t base = (uint64_t)(uintptr_t)mram - MRAM_AT;
  syscall(SYS_arch_prctl, ARCH_SET_GS_BASE, base);
}

static uint32_t *word_at(const struct worker *w, uint32_t link_address) {
  return (uint32_t *)(w->copy->base + (link_address - w->program->link_base));
}

static uint8_t *stack_of(const struct worker *w, uint32_t tasklet) {
  return w->copy->base + w->program->image_bytes + GUARD_BYTES + (size_t)tasklet * (STACK_BYTES + GUARD_BYTES);
}

static void go_to(uint32_t tasklet, void **from) {
  worker->running = tasklet;
  *word_at(worker, worker->program->me_at) = tasklet;
  bringup_upmem_switch(from, worker->tasklets[tasklet].stack_pointer);
}

void next_tasklet(void) {
  struct worker *w = worker;
  uint32_t from = w->running, next = from;
  do next = next + 1 == w->program->tasklets ? 0 : next + 1;
  while (w->tasklets[next].ended && next != from);
  if (next != from) go_to(next, &w->tasklets[from].stack_pointer);
}

/* ---- faults ---- */
void tasklet_fault(uintptr_t caller, const char *format, ...) {
  struct worker *w = worker;
  char line[512], reason[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  uint32_t address = (uint32_t)(caller - (uint64_t)w->copy->moved);
  const struct symbol *function = program_function(w->program, address);
  w->inside = false;
  program_line(w->program, address, line, sizeof line);
  snprintf(w->words, sizeof w->words, "DPU %u, tasklet %u: %s%s%s%s%s%s", w->dpu->index, w->running, reason,
           function ? " in " : "", function ? function->name : "", line[0] ? " (" : "", line, line[0] ? ")" : "");
  _longjmp((struct __jmp_buf_tag *)w->escape, 1);
}

static struct sigaction before[NSIG];
static volatile double limit_shown;

static bool in_program(const struct worker *w, uintptr_t address) {
  return address - (uintptr_t)w->copy->base < w->program->wram_at - w->program->link_base;
}

static void on_signal(int signal, siginfo_t *info, void *context) {
  struct worker *w = worker;
  const greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  uintptr_t pc = (uintptr_t)registers[REG_RIP];
  if (signal == INTERRUPT) {
    if (w && w->inside && in_program(w, pc)) tasklet_fault(pc, "ran longer than %g s without ending", limit_shown);
    return;
  }
  if (w && w->inside) {
    uintptr_t address = (uintptr_t)info->si_addr;
    uint8_t *stack = stack_of(w, w->running);
    char words[700];
    const char *what = signal == SIGFPE   ? "division by zero, or of the smallest number by -1"
                       : signal == SIGILL ? "an illegal instruction, or code that cannot be reached"
                                          : "an access outside of WRAM and MRAM";
    if (signal == SIGSEGV && (uint8_t *)address < stack && (uint8_t *)address >= stack - GUARD_BYTES)
      what = "its stack overflowed";
    int used = snprintf(words, sizeof words, "%s", what);
    if (signal == SIGSEGV || signal == SIGBUS)
      used += snprintf(words + used, sizeof words - used, " at %#llx", (unsigned long long)address);
    static const struct {
      const char *name;
      int index;
    } shown[] = {{"eax", REG_RAX}, {"ebx", REG_RBX}, {"ecx", REG_RCX}, {"edx", REG_RDX},
                 {"esi", REG_RSI}, {"edi", REG_RDI}, {"esp", REG_RSP}, {"ebp", REG_RBP}};
    used += snprintf(words + used, sizeof words - used, "; registers (of the native code)");
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
      used += snprintf(words + used, sizeof words - used, " %s=%x", shown[i].name, (uint32_t)registers[shown[i].index]);
    /* A jump to nowhere: the caller is on the stack. */
    if (!in_program(w, pc) && in_program(w, *(uintptr_t *)registers[REG_RSP])) pc = *(uintptr_t *)registers[REG_RSP];
    tasklet_fault(pc, "%s", words);
  }
  struct sigaction *old = &before[signal];
  if (old->sa_flags & SA_SIGINFO) {
    old->sa_sigaction(signal, info, context);
  } else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN) {
    old->sa_handler(signal);
  } else {
    sigaction(signal, old, NULL); /* what it would have done without us, when the instruction faults again */
  }
}

static void catch_faults(void) {
  static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, INTERRUPT};
  for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
    struct sigaction now, ours = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigaction(caught[i], NULL, &now);
    if (now.sa_sigaction == on_signal) continue;
    if (caught[i] == INTERRUPT) ours.sa_flags |= SA_RESTART;
    before[caught[i]] = now;
    sigaction(caught[i], &ours, NULL);
  }
}

/* ---- one DPU ---- */
static void run_tasklet(void) {
  void (*entry)(void) = (void (*)(void))(void *)word_at(worker, worker->program->entry);
  worker->inside = true;
  entry();
}

static void prepare_tasklets(struct worker *w) {
  w->alive = w->program->tasklets;
  w->stalled = 0;
  for (uint32_t i = 0; i < w->program->tasklets; i++) {
    uint64_t *top = (uint64_t *)(stack_of(w, i) + STACK_BYTES);
    *--top = 0; /* the caller of run_tasklet, for alignment */
    *--top = (uint64_t)(uintptr_t)run_tasklet;
    for (int saved = 0; saved < 6; saved++) *--top = 0;
    w->tasklets[i] = (struct tasklet){.stack_pointer = top};
  }
}

static void enter_wram(struct worker *w) {
  struct dpu_t *dpu = w->dpu;
  struct copy *copy = w->copy;
  uint32_t kept = dpu->wram_bytes ? dpu->wram_bytes : w->program->data_bytes;
  memcpy(copy->wram, dpu->wram_bytes ? dpu->wram : copy->fresh, kept);
  if (copy->dirty > kept) memset(copy->wram + kept, 0, copy->dirty - kept);
  copy->dirty = kept;
}

static void leave_wram(struct worker *w) {
  uint32_t high = *word_at(w, w->program->heap_high_at) - (uint32_t)(uintptr_t)w->copy->wram;
  uint32_t used = high > WRAM_BYTES ? WRAM_BYTES : high < w->program->data_bytes ? w->program->data_bytes : high;
  w->copy->dirty = used > w->copy->dirty ? used : w->copy->dirty;
  memcpy(w->dpu->wram, w->copy->wram, used);
  w->dpu->wram_bytes = used;
}

static bool run_dpu(struct worker *w) {
  if (program_copy(w->program, worker_of(w->dpu->index, w->dpu->of->dpu_count), &w->copy) != DPU_OK) {
    snprintf(w->words, sizeof w->words, "%s", failure_words());
    return false;
  }
  uint64_t *counts = w->counts = (uint64_t *)word_at(w, w->program->counts_at);
  memset(counts, 0, BU_NUMBERS * sizeof *counts);
  counts[BU_CLOCK] = w->dpu->clock;
  memset(w->dpu->counters, 0, sizeof w->dpu->counters);
  enter_wram(w);
  prepare_tasklets(w);
  point_mram(w->dpu->mram);
  w->dma_cycles = 0;
  bool fine = true;
  if (_setjmp((struct __jmp_buf_tag *)w->escape)) {
    fine = false;
  } else {
    go_to(0, &w->stack_pointer);
  }
  w->inside = false;
  for (int i = 0; i < BU_COUNTS; i++) w->dpu->counters[BARRIERS + i] = counts[i];
  w->dpu->clock = counts[BU_CLOCK];
  leave_wram(w);
  w->dpu->faulted = !fine;
  return fine;
}

/* ---- all of them ---- */
struct work {
  struct dpu_t **dpus;
  uint32_t count;
  double seconds, started;
  struct worker workers[WORKERS_MAX];
  volatile uint32_t faults;
  uint32_t first_fault; /* index of the DPU */
  char words[2048];
};

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void run_share(void *argument, uint32_t index) {
  struct work *work = argument;
  struct worker *w = &work->workers[index];
  _Static_assert(sizeof w->escape >= sizeof(jmp_buf), "room for a jump");
  worker = w;
  for (uint32_t i = 0; i < work->count; i++) {
    struct dpu_t *dpu = work->dpus[i];
    if (worker_of(dpu->index, dpu->of->dpu_count) != index) continue;
    if (work->faults && now() - work->started > work->seconds) break;
    w->dpu = dpu;
    w->program = dpu->program;
    if (run_dpu(w)) continue;
    uint32_t earlier = __atomic_fetch_add(&work->faults, 1, __ATOMIC_ACQ_REL);
    static volatile char lock;
    while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE)) {
    }
    if (!earlier || dpu->index < work->first_fault) {
      work->first_fault = dpu->index;
      memcpy(work->words, w->words, sizeof work->words);
    }
    __atomic_clear(&lock, __ATOMIC_RELEASE);
  }
  worker = NULL;
}

static void look_at_clock(void *argument) {
  struct work *work = argument;
  if (work->seconds <= 0 || now() - work->started < work->seconds) return;
  limit_shown = work->seconds;
  for (uint32_t i = 0; i < pool_size(); i++)
    if (work->workers[i].inside) pool_interrupt(i, INTERRUPT);
}

dpu_error_t launch(struct dpu_t **dpus, uint32_t count, double seconds) {
  for (uint32_t i = 0; i < count; i++)
    if (!dpus[i]->program) return failed(DPU_ERR_NO_PROGRAM_LOADED, "DPU %u has no program", dpus[i]->index);
  struct work *work = calloc(1, sizeof *work);
  if (!work) return failed(DPU_ERR_SYSTEM, "no memory for a launch");
  work->dpus = dpus;
  work->count = count;
  work->seconds = seconds;
  work->started = now();
  struct samples_before before = {0};
  struct upmem *all = dpus[0]->of;
  bool timed = dpus[0]->program->timing != NULL;
  all->timed = timed ? timing_begin(dpus, count, &before) : NULL;
  catch_faults();
  pool_run(run_share, work, look_at_clock);
  if (timed && !all->timed) all->timed = timing_run(dpus, &before);
  dpu_error_t status = DPU_OK;
  if (work->faults > 1)
    status = failed(DPU_ERR_DPU_FAULT, "%s; %u DPUs in fault", work->words, work->faults);
  else if (work->faults)
    status = failed(DPU_ERR_DPU_FAULT, "%s", work->words);
  free(work);
  return status;
}
