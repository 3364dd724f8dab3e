/* Catches the host when it touches device memory by its device address (trap=1), and lets it go on.
 *
 * The addresses handed out are a PROT_NONE mapping of the memfd. The SIGSEGV handler opens the touched page (the same
 * bytes: no wrong value is read), counts and notes the address, and calls what it was given: in Python that is
 * PyErr_SetInterruptEx, so that the program learns of it at the next bytecode. No longjmp out of foreign code.
 * Everything in the handler is async-signal-safe: atomics, mprotect, and callbacks that must be so too.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "sim.h"

#define MAX_RANGES 256
#define REMEMBERED 64

static struct {
  _Atomic uint64_t start, end;
} ranges[MAX_RANGES];
static _Atomic uint32_t range_count;
static _Atomic uint64_t trapped;
static _Atomic uint64_t addresses[REMEMBERED]; /* the latest ones */
static void (*_Atomic callback_of_user)(uint64_t address);
static int (*_Atomic interrupt_of_user)(int signum);
static _Atomic int interrupt_signum;
static struct sigaction previous;

static int watched(uint64_t address) {
  uint32_t count = atomic_load(&range_count);
  for (uint32_t i = 0; i < count; i++)
    if (address >= atomic_load(&ranges[i].start) && address < atomic_load(&ranges[i].end)) return 1;
  return 0;
}

static void pass_on(int signum, siginfo_t *info, void *context) {
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(signum, info, context);
  } else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
    signal(signum, SIG_DFL); /* the instruction runs again, and the process ends as it would have without us */
  } else {
    previous.sa_handler(signum);
  }
}

static void on_fault(int signum, siginfo_t *info, void *context) {
  uint64_t address = (uint64_t)(uintptr_t)info->si_addr;
  void *page = (void *)(uintptr_t)(address & ~(uint64_t)(SIM_PAGE - 1));
  if (info->si_code != SEGV_ACCERR || !watched(address) || mprotect(page, SIM_PAGE, PROT_READ | PROT_WRITE) != 0) {
    pass_on(signum, info, context);
    return;
  }
  uint64_t number = atomic_fetch_add(&trapped, 1);
  atomic_store(&addresses[number % REMEMBERED], address);
  void (*callback)(uint64_t) = atomic_load(&callback_of_user);
  if (callback) callback(address);
  int (*interrupt)(int) = atomic_load(&interrupt_of_user);
  if (interrupt) interrupt(atomic_load(&interrupt_signum));
}

static void install(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous);
}

/* Called under sim_process_lock; a device keeps its range for the life of the process. */
int32_t sim_trap_watch(uint64_t start, uint64_t end) {
  static int installed;
  uint32_t count = atomic_load(&range_count);
  if (count == MAX_RANGES)
    return sim_fail(BRINGUP_ERROR, "trap=1 works on at most %d devices of a process", MAX_RANGES);
  atomic_store(&ranges[count].start, start);
  atomic_store(&ranges[count].end, end);
  atomic_store(&range_count, count + 1);
  if (!installed) install();
  installed = 1;
  return BRINGUP_OK;
}

void sim_set_trap_callback(void (*callback)(uint64_t address)) { atomic_store(&callback_of_user, callback); }

void sim_set_trap_interrupt(int (*interrupt)(int signum), int signum) {
  atomic_store(&interrupt_signum, signum);
  atomic_store(&interrupt_of_user, interrupt);
}

uint64_t sim_trap_count(void) { return atomic_load(&trapped); }

/* The address of trap number 0, 1, …; 0 where it is not known (not yet happened, or more than 64 ago). */
uint64_t sim_trap_address(uint64_t number) {
  uint64_t count = atomic_load(&trapped);
  return number < count && count - number <= REMEMBERED ? atomic_load(&addresses[number % REMEMBERED]) : 0;
}
