// Loops that the compiler turns into vector instructions of any length, and a few in assembly; `sum` tells all of it.
#include <stdint.h>

enum { COUNT = 203 };
float x[COUNT], y[COUNT];
int32_t whole[COUNT];
int8_t small[COUNT];
volatile uint32_t sum;

__attribute__((noinline)) static void fill(void) {
  for (int i = 0; i < COUNT; i++) {
    x[i] = (float)(i % 17) * 0.37f - 2;
    y[i] = (float)(i % 5) * 1.25f;
    small[i] = (int8_t)(i * 7);
  }
}

__attribute__((noinline)) static void scale(float by) {
  for (int i = 0; i < COUNT; i++) y[i] = y[i] * by + x[i];
}

__attribute__((noinline)) static void widen(void) {
  for (int i = 0; i < COUNT; i++) whole[i] = small[i] * 3 - i;
}

__attribute__((noinline)) static uint32_t reduce(const uint32_t *words, long count) {
  uint32_t total;
  __asm__ volatile(
      "vsetvli t0, zero, e32, m1, ta, ma\n vmv.v.i v8, 0\n"
      "1: vsetvli t0, %1, e32, m2, ta, ma\n vle32.v v4, (%2)\n vredsum.vs v8, v4, v8\n"
      "slli t1, t0, 2\n add %2, %2, t1\n sub %1, %1, t0\n bnez %1, 1b\n"
      "vsetivli zero, 1, e32, m1, ta, ma\n vmv.x.s %0, v8\n csrr t0, vlenb\n"
      : "=&r"(total), "+r"(count), "+r"(words)::"t0", "t1", "memory", "v4", "v5", "v8");
  return total;
}

int main(void) {
  fill();
  scale(1.5f);
  widen();
  sum = reduce((const uint32_t *)y, COUNT) ^ reduce((const uint32_t *)whole, COUNT);
  return 0;
}
