// A handler for the matrix engine's interrupt: taken in wfi, while computing, and only when it is let in.
#include "gemm.h"

#define ENGINE ((bringup_gemm_engine *)0x10320000)

volatile uint32_t handled, cause, spins, at; // the host looks at them
float a[16], b[16], c[16];

__attribute__((interrupt("machine"), aligned(4))) static void handler(void) {
  uintptr_t value;
  __asm__ volatile("csrr %0, mcause" : "=r"(value));
  cause = (uint32_t)value;
  __asm__ volatile("csrr %0, minstret" : "=r"(value));
  at = (uint32_t)value;
  if (ENGINE->status & GEMM_DONE) handled++; // which lowers the interrupt
}

static void start(void) { bringup_gemm_start((uintptr_t)ENGINE, a, b, c, 4, 4, 4, 4, 4, 4, GEMM_INTERRUPT); }

int main(void) {
  uintptr_t external = 1 << 11;
  __asm__ volatile("csrw mtvec, %0" ::"r"(handler));
  start(); // no interrupt is let in: it waits
  for (volatile int i = 0; i < 100; i++) {
  }
  if (handled) return 1;
  __asm__ volatile("csrs mie, %0" ::"r"(external));
  if (handled) return 2;
  __asm__ volatile("csrsi mstatus, 8" ::: "memory");
  if (handled != 1) return 3; // at once
  start();
  __asm__ volatile("wfi" ::: "memory");
  if (handled != 2) return 4;
  start();
#ifdef SPIN
  while (handled != 3) spins++; // in the middle of something else
#else
  __asm__ volatile("wfi" ::: "memory");
#endif
  if (handled != 3 || (cause & 0xff) != 11) return 5;
  return 0;
}
