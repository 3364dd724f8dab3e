/* Floats in registers: boxes, the one NaN that RISC-V makes, and half floats. */
#ifndef BRINGUP_ISS_FLOAT_H
#define BRINGUP_ISS_FLOAT_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define F16_NAN 0x7e00u
#define F32_NAN 0x7fc00000u
#define F64_NAN 0x7ff8000000000000u

enum rounding { RNE, RTZ, RDN, RUP, RMM };

static inline float f32_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static inline double f64_of(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
/* A result of arithmetic: every NaN is the canonical one. */
static inline uint32_t f32_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return value != value ? F32_NAN : bits;
}
static inline uint64_t f64_bits(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return value != value ? F64_NAN : bits;
}

static inline uint64_t box32(uint32_t bits) { return bits | 0xffffffff00000000u; }
static inline uint64_t box16(uint16_t bits) { return bits | 0xffffffffffff0000u; }
static inline uint32_t unbox32(uint64_t f) { return f >> 32 == 0xffffffffu ? (uint32_t)f : F32_NAN; }
static inline uint16_t unbox16(uint64_t f) { return f >> 16 == 0xffffffffffffu ? (uint16_t)f : F16_NAN; }

/* Halves compute as doubles, which hold their sums, products and fused sums exactly enough: rounding a correctly
 * rounded double once more gives the correctly rounded half (quotients and roots included, as 53 ≥ 2·11 + 2). */
static inline double f16_of(uint16_t bits) {
  uint32_t exponent = (bits >> 10) & 31, fraction = bits & 1023;
  uint64_t sign = (uint64_t)(bits >> 15) << 63;
  if (exponent == 31) return f64_of(sign | 0x7ff0000000000000u | (uint64_t)fraction << 42);
  if (exponent == 0) { /* fraction · 2⁻²⁴ */
    double small = (double)fraction * 0x1p-24;
    return sign ? -small : small;
  }
  return f64_of(sign | (uint64_t)(exponent + 1008) << 52 | (uint64_t)fraction << 42);
}

static inline uint16_t f16_round(double value, enum rounding mode) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint16_t sign = (uint16_t)(bits >> 63 << 15);
  int exponent = (int)((bits >> 52) & 2047) - 1023;
  uint64_t fraction = bits & 0xfffffffffffffu;
  if (value != value) return F16_NAN;
  if (exponent == 1024) return sign | 0x7c00;
  if (exponent == -1023) { /* zero, or a double far below a half's smallest */
    if (!fraction) return sign;
    exponent = -1022;
  } else {
    fraction |= (uint64_t)1 << 52;
  }
  /* The half's last place is 2^(e-10) for normals and 2^-24 below them; a double's is 2^(e-52). */
  int drop = exponent < -14 ? 42 + (-14 - exponent) : 42;
  uint64_t kept = drop > 63 ? 0 : fraction >> drop, rest = drop > 63 ? 1 : fraction & (((uint64_t)1 << drop) - 1);
  uint64_t half = drop > 63 ? 2 : (uint64_t)1 << (drop - 1);
  bool up = false;
  if (mode == RNE) up = rest > half || (rest == half && (kept & 1));
  if (mode == RMM) up = rest >= half;
  if (mode == RUP) up = rest && !sign;
  if (mode == RDN) up = rest && sign;
  kept += up;
  uint64_t result = exponent < -14 ? kept : ((uint64_t)(exponent + 14) << 10) + kept;
  if (result >= 0x7c00) { /* too large: infinity, or the largest half where the mode rounds towards zero */
    bool to_infinity = mode == RNE || mode == RMM || (mode == RUP && !sign) || (mode == RDN && sign);
    result = to_infinity ? 0x7c00 : 0x7bff;
  }
  return sign | (uint16_t)result;
}

/* The smaller or larger of two, where a NaN loses against a number and -0 is below +0. */
#define MINMAX(NAME, BITS, FLOAT, OF, NAN_BITS, SIGN)               \
  static inline BITS NAME(BITS a, BITS b, int larger) {             \
    FLOAT x = OF(a), y = OF(b);                                     \
    if (x != x) return y != y ? NAN_BITS : b;                       \
    if (y != y) return a;                                           \
    if (x == y) return (larger ? !(a >> SIGN) : a >> SIGN) ? a : b; \
    return (x < y) != larger ? a : b;                               \
  }
MINMAX(f16_minmax, uint16_t, double, f16_of, F16_NAN, 15)
MINMAX(f32_minmax, uint32_t, float, f32_of, F32_NAN, 31)
MINMAX(f64_minmax, uint64_t, double, f64_of, F64_NAN, 63)
#undef MINMAX

/* fclass: one bit of ten. */
static inline uint32_t classify(uint64_t bits, int exponent_bits, int fraction_bits) {
  uint64_t fraction = bits & (((uint64_t)1 << fraction_bits) - 1);
  uint64_t top = ((uint64_t)1 << exponent_bits) - 1, exponent = (bits >> fraction_bits) & top;
  int negative = (int)(bits >> (fraction_bits + exponent_bits)) & 1;
  if (exponent == top && fraction) return fraction >> (fraction_bits - 1) ? 1u << 9 : 1u << 8;
  if (exponent == top) return negative ? 1u << 0 : 1u << 7;
  if (exponent) return negative ? 1u << 1 : 1u << 6;
  if (fraction) return negative ? 1u << 2 : 1u << 5;
  return negative ? 1u << 3 : 1u << 4;
}

/* To an integer value, still as a double. Where the mode is to nearest, the host's is, too. */
static inline double round_to_integer(double value, enum rounding mode) {
  switch (mode) {
    case RTZ:
      return trunc(value);
    case RDN:
      return floor(value);
    case RUP:
      return ceil(value);
    case RMM:
      return round(value);
    default:
      return rint(value);
  }
}

/* A double to an integer of `bits` bits: too large, too small and NaN give the nearest there is (NaN the largest). */
static inline uint64_t to_integer(double value, int bits, int is_signed, enum rounding mode) {
  uint64_t most = is_signed ? ((uint64_t)1 << (bits - 1)) - 1 : ~(uint64_t)0 >> (64 - bits);
  int64_t least = is_signed ? -(int64_t)most - 1 : 0;
  if (value != value) return most;
  value = round_to_integer(value, mode);
  double above = 2.0 * (double)((uint64_t)1 << (bits - is_signed - 1));
  if (value >= above) return most;
  if (value < (double)least) return (uint64_t)least;
  return is_signed ? (uint64_t)(int64_t)value : value >= 0 ? (uint64_t)value : 0;
}

#endif
