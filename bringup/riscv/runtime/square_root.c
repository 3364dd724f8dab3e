/* sqrtf and sqrt for cores without them, rounded as IEEE 754 wants: root and remainder digit by digit, in integers. */
#include <stdint.h>

/* The first ``digits`` binary digits of the root of a number whose first pair of digits is at the top. */
static uint64_t root_of(uint64_t number, int digits) {
  uint64_t root = 0, rest = 0;
  for (; digits--; number <<= 2) {
    rest = rest << 2 | number >> 62;
    const uint64_t trial = root << 2 | 1;
    root <<= 1;
    if (rest >= trial) {
      rest -= trial;
      root |= 1;
    }
  }
  return root;
}

#if !defined(__riscv_flen) || __riscv_flen < 32
float sqrtf(float x);
float sqrtf(float x) {
  union {
    float value;
    uint32_t bits;
  } u = {x};
  if (u.bits << 1 == 0 || u.bits == 0x7f800000u) return x;
  if (u.bits > 0x7f800000u) return __builtin_nanf("");
  int exponent = (int)(u.bits >> 23);
  uint64_t digits = u.bits & 0x7fffffu;
  if (exponent) {
    digits |= 0x800000u;
  } else {
    exponent = 1;
  }
  for (; digits < 0x800000u; exponent--) digits <<= 1;
  exponent -= 150; /* x is digits × 2^exponent */
  if (exponent % 2 == 0) {
    digits <<= 1;
    exponent--;
  }
  /* One digit more than a float has says how to round: halfway never happens. */
  const uint32_t root = (uint32_t)(root_of(digits << 39, 25) + 1) >> 1;
  u.bits = ((uint32_t)((exponent - 25) / 2 + 151) << 23) + (root - 0x800000u);
  return u.value;
}
#endif

#if !defined(__riscv_flen) || __riscv_flen < 64
double sqrt(double x);
double sqrt(double x) {
  const uint64_t one = 1ull << 52;
  union {
    double value;
    uint64_t bits;
  } u = {x};
  if (u.bits << 1 == 0 || u.bits == 0x7ff0000000000000u) return x;
  if (u.bits > 0x7ff0000000000000u) return __builtin_nan("");
  int exponent = (int)(u.bits >> 52);
  uint64_t digits = u.bits & (one - 1);
  if (exponent) {
    digits |= one;
  } else {
    exponent = 1;
  }
  for (; digits < one; exponent--) digits <<= 1;
  exponent -= 1075;
  if (exponent % 2) {
    digits <<= 1;
    exponent--;
  }
  const uint64_t root = (root_of(digits << 10, 54) + 1) >> 1;
  u.bits = ((uint64_t)((exponent - 54) / 2 + 1076) << 52) + (root - one);
  return u.value;
}
#endif
