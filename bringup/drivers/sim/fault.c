/* Failures: the message every function leaves for `last_error`, and faults injected on purpose. */
#include <stdarg.h>
#include <stdio.h>

#include "sim.h"

static _Thread_local char message_of_thread[512];

const char *const sim_fault_names[SIM_FAULTS] = {"alloc", "copy", "launch", "event"};

int32_t sim_fail(int32_t status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int prefix = snprintf(message_of_thread, sizeof message_of_thread, "sim: ");
  vsnprintf(message_of_thread + prefix, sizeof message_of_thread - (size_t)prefix, format, arguments);
  va_end(arguments);
  return status;
}

void sim_last_error(void *self, char *message, uint64_t size) {
  (void)self;
  if (message && size) snprintf(message, size, "%s", message_of_thread[0] ? message_of_thread : "sim: no error");
}

/* splitmix64: the n-th draw depends on seed, kind and n only, so that copies do not shift the faults of allocations. */
uint64_t sim_draw(uint64_t seed, uint64_t kind, uint64_t number) {
  uint64_t z = seed * 0x9e3779b97f4a7c15u + (kind << 56) + (number + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

int32_t sim_inject(sim *s, sim_fault fault, int32_t device) {
  double probability = s->options.fail[fault];
  if (probability <= 0) return BRINGUP_OK;
  uint64_t number = atomic_fetch_add_explicit(&s->fault_draws[fault], 1, memory_order_relaxed);
  if ((double)(sim_draw(s->options.seed, fault, number) >> 11) * 0x1p-53 >= probability) return BRINGUP_OK;
  return sim_fail(fault == SIM_FAULT_ALLOC ? BRINGUP_OUT_OF_MEMORY : BRINGUP_ERROR,
                  "injected fault: %s number %llu on device %d (fail=%s:%g, seed=%llu)", sim_fault_names[fault],
                  (unsigned long long)number, device, sim_fault_names[fault], probability,
                  (unsigned long long)s->options.seed);
}
