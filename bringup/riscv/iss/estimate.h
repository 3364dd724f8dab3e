/* vfrec7 and vfrsqrt7: estimates with seven bits, as the vector specification tabulates them.
 *
 * An entry of its tables is the best seven-bit fraction for the middle of the operand's interval, which is cheap enough
 * to compute.
 */
#ifndef BRINGUP_ISS_ESTIMATE_H
#define BRINGUP_ISS_ESTIMATE_H

#include "float.h"

typedef struct parts {
  uint64_t sign, fraction, fraction_mask, quiet;
  int exponent, top, bias, fraction_bits; /* exponent as stored; top is that of infinities */
} parts;

static inline parts take_apart(uint64_t bits, int exponent_bits, int fraction_bits) {
  parts p;
  p.fraction_bits = fraction_bits;
  p.fraction_mask = ((uint64_t)1 << fraction_bits) - 1;
  p.top = (1 << exponent_bits) - 1;
  p.bias = p.top / 2;
  p.sign = bits >> (exponent_bits + fraction_bits) << (exponent_bits + fraction_bits);
  p.exponent = (int)(bits >> fraction_bits) & p.top;
  p.fraction = bits & p.fraction_mask;
  p.quiet = (uint64_t)p.top << fraction_bits | (uint64_t)1 << (fraction_bits - 1);
  return p;
}

/* A subnormal number gets an exponent of 0 or less, and the fraction of a normal one. */
static inline void normalise(parts *p) {
  if (p->exponent) return;
  while (!(p->fraction >> (p->fraction_bits - 1))) {
    p->fraction <<= 1;
    p->exponent--;
  }
  p->fraction = (p->fraction << 1) & p->fraction_mask;
}

static inline uint64_t estimate_reciprocal(uint64_t bits, int exponent_bits, int fraction_bits, uint32_t mode) {
  parts p = take_apart(bits, exponent_bits, fraction_bits);
  uint64_t infinity = (uint64_t)p.top << fraction_bits;
  if (p.exponent == p.top) return p.fraction ? p.quiet : p.sign;
  if (!p.exponent && !p.fraction) return p.sign | infinity;
  normalise(&p);
  if (p.exponent < -1) { /* its reciprocal is too large */
    bool largest = mode == RTZ || (mode == RDN && !p.sign) || (mode == RUP && p.sign);
    return p.sign | (largest ? infinity - 1 : infinity);
  }
  uint64_t index = p.fraction >> (fraction_bits - 7);
  uint64_t estimate = ((255 - 2 * index) * 256 + (257 + 2 * index)) / (2 * (257 + 2 * index));
  uint64_t fraction = estimate << (fraction_bits - 7);
  int exponent = 2 * p.bias - 1 - p.exponent;
  if (exponent <= 0) {
    fraction = (fraction >> 1 | (uint64_t)1 << (fraction_bits - 1)) >> -exponent;
    exponent = 0;
  }
  return p.sign | (uint64_t)exponent << fraction_bits | fraction;
}

static inline uint64_t estimate_root(uint64_t bits, int exponent_bits, int fraction_bits) {
  parts p = take_apart(bits, exponent_bits, fraction_bits);
  if (p.exponent == p.top && p.fraction) return p.quiet;
  if (!p.exponent && !p.fraction) return p.sign | (uint64_t)p.top << fraction_bits;
  if (p.sign) return p.quiet;
  if (p.exponent == p.top) return 0;
  normalise(&p);
  double middle = 1 + ((double)(p.fraction >> (fraction_bits - 6)) + 0.5) / 64;
  if (!(p.exponent & 1)) middle *= 2;
  uint64_t estimate = (uint64_t)((2 / sqrt(middle) - 1) * 128 + 0.5);
  uint64_t exponent = (uint64_t)(3 * p.bias - 1 - p.exponent) / 2;
  return exponent << fraction_bits | estimate << (fraction_bits - 7);
}

#endif
