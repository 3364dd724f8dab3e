/* Reductions: one element from many, in the order of the elements (also where the order is free). */
#include <fenv.h>

#include "float.h"
#include "vector.h"

static bool legal(const vop *o, bool wide) {
  if (wide && o->sew == 3) return false;
  return fits(o->vs2, o->lmul) && o->start == 0;
}

static uint64_t combine(uint32_t function, uint64_t a, uint64_t b, uint32_t sew) {
  uint64_t sa = sign_extend(a, sew), sb = sign_extend(b, sew);
  switch (function) {
    case 0:
      return a + b;
    case 1:
      return a & b;
    case 2:
      return a | b;
    case 3:
      return a ^ b;
    case 4:
      return a < b ? a : b;
    case 5:
      return (int64_t)sa < (int64_t)sb ? a : b;
    case 6:
      return a > b ? a : b;
    default:
      return (int64_t)sa > (int64_t)sb ? a : b;
  }
}

int vector_reduce(vop *o) {
  bool wide = o->kind == OPIVV, is_signed = o->function == 0x31;
  uint32_t out = o->sew + wide;
  if (!legal(o, wide)) return ISS_ILLEGAL;
  count_beats(o, 1u << out);
  if (!o->vl) return ISS_OK;
  const uint8_t *from = vreg(o, o->vs2);
  uint64_t sum = get_element(vreg(o, o->vs1), out, 0);
  for (uint32_t i = 0; i < o->vl; i++) {
    if (!vop_active(o, i)) continue;
    uint64_t value = get_element(from, o->sew, i);
    if (wide)
      sum += is_signed ? sign_extend(value, o->sew) : value;
    else
      sum = combine(o->function, sum, value, o->sew);
  }
  set_element(vreg(o, o->vd), out, 0, sum);
  return ISS_OK;
}

static uint64_t combine_floats(uint32_t function, uint64_t a, uint64_t b, uint32_t width, enum rounding mode) {
  bool sum = function == 0x01 || function == 0x03 || function >= 0x31;
  int larger = function == 0x07;
  switch (width) {
    case 1:
      return sum ? f16_round(f16_of((uint16_t)a) + f16_of((uint16_t)b), mode)
                 : f16_minmax((uint16_t)a, (uint16_t)b, larger);
    case 2:
      return sum ? f32_bits(f32_of((uint32_t)a) + f32_of((uint32_t)b)) : f32_minmax((uint32_t)a, (uint32_t)b, larger);
    default:
      return sum ? f64_bits(f64_of(a) + f64_of(b)) : f64_minmax(a, b, larger);
  }
}

static uint64_t widen(uint64_t bits, uint32_t sew) {
  return sew == 1 ? f32_bits((float)f16_of((uint16_t)bits)) : f64_bits(f32_of((uint32_t)bits));
}

int vector_float_reduce(vop *o) {
  static const int modes[4] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
  bool wide = o->function >= 0x31, sums = o->function != 0x05 && o->function != 0x07;
  uint32_t out = o->sew + wide;
  if (!legal(o, wide) || (sums && o->m->frm > RUP)) return ISS_ILLEGAL;
  count_beats(o, 1u << out);
  if (!o->vl) return ISS_OK;
  const uint8_t *from = vreg(o, o->vs2);
  enum rounding mode = sums ? (enum rounding)o->m->frm : RNE;
  volatile uint64_t sum = get_element(vreg(o, o->vs1), out, 0); /* volatile: no sum moves across the change of modes */
  if (mode != RNE) fesetround(modes[mode]);
  for (uint32_t i = 0; i < o->vl; i++) {
    if (!vop_active(o, i)) continue;
    uint64_t value = get_element(from, o->sew, i);
    sum = combine_floats(o->function, sum, wide ? widen(value, o->sew) : value, out, mode);
  }
  if (mode != RNE) fesetround(FE_TONEAREST);
  set_element(vreg(o, o->vd), out, 0, sum);
  return ISS_OK;
}
