// As generated code calls the engine, with constant sizes. `before` and `after` tell what a call costs.
#include "gemm.h"

#ifndef CALL
#define CALL bringup_gemm
#endif
#define ENGINE 0x10320000

volatile uint32_t before, after;
float a[5 * 9], b[9 * 7], c[5 * 7];

static inline uintptr_t retired(void) {
  uintptr_t value;
  __asm__ volatile("csrr %0, minstret" : "=r"(value)::"memory");
  return value;
}

int main(void) {
  bringup_gemm_listen();
  uintptr_t start = retired();
  int failed = CALL(ENGINE, a, b, c, 5, 7, 9, 9, 7, 7, 0);
  after = (uint32_t)retired();
  before = (uint32_t)start;
  return failed;
}
