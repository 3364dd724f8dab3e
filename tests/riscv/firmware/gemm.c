// Multiplies matrices by the engine that the host has put into memory; exits with the number of a failed step.
#include "gemm.h"

#ifndef CALL
#define CALL bringup_gemm
#endif
#define ENGINE 0x10320000

volatile uint32_t m, n, k, a_stride, b_stride, c_stride, control; // from the host
volatile uint32_t before, after;                                  // for the host: instructions retired
float a[4096], b[4096], c[4096];                                  // int8 and int32 if the control says so

static inline uint32_t retired(void) {
  uintptr_t value;
  __asm__ volatile("csrr %0, minstret" : "=r"(value)::"memory");
  return (uint32_t)value;
}

int main(void) {
#ifdef PRELOADED
  __asm__ volatile("wfi" ::: "memory"); // the host fills memory now
#endif
  bringup_gemm_listen();
  before = retired();
  int failed = CALL(ENGINE, a, b, c, m, n, k, a_stride, b_stride, c_stride, control);
  after = retired();
  return failed;
}
