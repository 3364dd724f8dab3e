/* The routines of the chip's run-time (products, quotients, floats, 64 bits), computed for a sampled DPU that calls
 * one. */
#include <string.h>

#include "rv32.h"

enum {
#define BU_ROUTINE(name, number) R##name = number,
#include "../runtime/routines.h"
#undef BU_ROUTINE
};

static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}
static double double_of(uint64_t bits) {
  double value;
  memcpy(&value, &bits, 8);
  return value;
}
static uint64_t long_bits_of(double value) {
  uint64_t bits;
  memcpy(&bits, &value, 8);
  return bits;
}

/* Compares as the routines do: negative, 0 or positive; `unordered` is what a NaN gives. */
static int32_t order(double a, double b, int32_t unordered) {
  return a != a || b != b ? unordered : a < b ? -1 : a > b;
}
static int bit_length(uint64_t value) { return value ? 64 - __builtin_clzll(value) : 0; }
static uint32_t magnitude(uint32_t value) { return (int32_t)value < 0 ? 0 - value : value; }
/* Conversions of what does not fit give the nearest integer, as the host's would be undefined. */
static int64_t to_integer(double value, double low, double high) {
  if (value != value) return 0;
  return value <= low ? (int64_t)low : value >= high ? (int64_t)(high - 1) : (int64_t)value;
}

double timing_routine(uint32_t number, uint64_t *x) {
  uint32_t a = (uint32_t)x[10], b = (uint32_t)x[11];
  uint64_t la = (uint64_t)b << 32 | a, lb = (uint64_t)(uint32_t)x[13] << 32 | (uint32_t)x[12];
  float fa = float_of(a), fb = float_of(b);
  double da = double_of(la), db = double_of(lb), extra = 0;
  uint64_t result = 0;
  bool wide = false; /* the result has 64 bits */
#define WIDE(value) (wide = true, result = (uint64_t)(value))
  switch (number) {
    case R__bringup_byte_product:
    case R__mulsi3:
      result = a * b;
      if (number == R__mulsi3) extra = bit_length(magnitude(a) < magnitude(b) ? magnitude(a) : magnitude(b));
      break;
    case R__divsi3:
    case R__modsi3:
      if (b)
        result = number == R__divsi3 ? (b == ~0u ? 0 - a : (uint32_t)((int32_t)a / (int32_t)b))
                                     : (b == ~0u ? 0 : (uint32_t)((int32_t)a % (int32_t)b));
      extra = bit_length(magnitude(a)) - bit_length(magnitude(b));
      break;
    case R__udivsi3:
    case R__umodsi3:
      if (b) result = number == R__udivsi3 ? a / b : a % b;
      extra = bit_length(a) - bit_length(b);
      break;
    case R__muldi3:
      WIDE(la * lb);
      break;
    case R__divdi3:
      WIDE(lb ? lb == ~0ull ? 0 - la : (uint64_t)((int64_t)la / (int64_t)lb) : 0);
      break;
    case R__udivdi3:
      WIDE(lb ? la / lb : 0);
      break;
    case R__moddi3:
      WIDE(lb ? lb == ~0ull ? 0 : (uint64_t)((int64_t)la % (int64_t)lb) : 0);
      break;
    case R__umoddi3:
      WIDE(lb ? la % lb : 0);
      break;
    case R__addsf3:
      result = bits_of(fa + fb);
      break;
    case R__subsf3:
      result = bits_of(fa - fb);
      break;
    case R__mulsf3:
      result = bits_of(fa * fb);
      break;
    case R__divsf3:
      result = bits_of(fa / fb);
      break;
    case R__eqsf2:
    case R__nesf2:
    case R__ltsf2:
    case R__lesf2:
      result = (uint32_t)order(fa, fb, 1);
      break;
    case R__gtsf2:
    case R__gesf2:
      result = (uint32_t)order(fa, fb, -1);
      break;
    case R__unordsf2:
      result = fa != fa || fb != fb;
      break;
    case R__fixsfsi:
      result = (uint32_t)to_integer(fa, -0x1p31, 0x1p31);
      break;
    case R__fixunssfsi:
      result = (uint32_t)to_integer(fa, 0, 0x1p32);
      break;
    case R__fixsfdi:
      WIDE(to_integer(fa, -0x1p63, 0x1p63));
      break;
    case R__fixunssfdi:
      WIDE(fa >= 0x1p63f ? (uint64_t)fa : (uint64_t)to_integer(fa, 0, 0x1p63));
      break;
    case R__floatsisf:
      result = bits_of((float)(int32_t)a);
      break;
    case R__floatunsisf:
      result = bits_of((float)a);
      break;
    case R__floatdisf:
      result = bits_of((float)(int64_t)la);
      break;
    case R__floatundisf:
      result = bits_of((float)la);
      break;
    case R__adddf3:
      WIDE(long_bits_of(da + db));
      break;
    case R__subdf3:
      WIDE(long_bits_of(da - db));
      break;
    case R__muldf3:
      WIDE(long_bits_of(da * db));
      break;
    case R__divdf3:
      WIDE(long_bits_of(da / db));
      break;
    case R__eqdf2:
    case R__nedf2:
    case R__ltdf2:
    case R__ledf2:
      result = (uint32_t)order(da, db, 1);
      break;
    case R__gtdf2:
    case R__gedf2:
      result = (uint32_t)order(da, db, -1);
      break;
    case R__unorddf2:
      result = da != da || db != db;
      break;
    case R__fixdfsi:
      result = (uint32_t)to_integer(da, -0x1p31, 0x1p31);
      break;
    case R__fixunsdfsi:
      result = (uint32_t)to_integer(da, 0, 0x1p32);
      break;
    case R__fixdfdi:
      WIDE(to_integer(da, -0x1p63, 0x1p63));
      break;
    case R__fixunsdfdi:
      WIDE(da >= 0x1p63 ? (uint64_t)da : (uint64_t)to_integer(da, 0, 0x1p63));
      break;
    case R__floatsidf:
      WIDE(long_bits_of((int32_t)a));
      break;
    case R__floatunsidf:
      WIDE(long_bits_of(a));
      break;
    case R__floatdidf:
      WIDE(long_bits_of((double)(int64_t)la));
      break;
    case R__floatundidf:
      WIDE(long_bits_of((double)la));
      break;
    case R__extendsfdf2:
      WIDE(long_bits_of(fa));
      break;
    case R__truncdfsf2:
      result = bits_of((float)da);
      break;
    case R__ashldi3:
      WIDE(la << (x[12] & 63));
      break;
    case R__lshrdi3:
      WIDE(la >> (x[12] & 63));
      break;
    case R__ashrdi3:
      WIDE((int64_t)la >> (x[12] & 63));
      break;
    case R__clzsi2:
      result = a ? (uint32_t)__builtin_clz(a) : 32;
      break;
    case R__ctzsi2:
      result = a ? (uint32_t)__builtin_ctz(a) : 32;
      break;
    case R__popcountsi2:
      result = (uint32_t)__builtin_popcount(a);
      break;
    case R__clzdi2:
      result = la ? (uint32_t)__builtin_clzll(la) : 64;
      break;
    case R__ctzdi2:
      result = la ? (uint32_t)__builtin_ctzll(la) : 64;
      break;
    case R__popcountdi2:
      result = (uint32_t)__builtin_popcountll(la);
      break;
    case R__bswapsi2:
      result = __builtin_bswap32(a);
      break;
  }
#undef WIDE
  x[10] = (uint64_t)(int64_t)(int32_t)result;
  if (wide) x[11] = (uint64_t)(int64_t)(int32_t)(result >> 32);
  return extra > 0 ? extra : 0;
}
