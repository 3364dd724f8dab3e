/* Scalar floats: all that hart.inc does not do itself, and what it does under another rounding mode. */
#include "float.h"

#include <fenv.h>

#include "iss.h"

enum format { SINGLE, DOUBLE, HALF };
enum { ADD = 0, SUB = 1, MUL = 2, DIV = 3, SQRT = 11, MADD = 32, MSUB, NMSUB, NMADD };

static const int host_modes[4] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};

/* Arithmetic under the host's mode; volatile keeps the compiler from moving it across the change of modes. */
#define ARITHMETIC(NAME, FLOAT, FMA, ROOT)                                        \
  static FLOAT NAME(int kind, FLOAT first, FLOAT second, FLOAT third, int mode) { \
    volatile FLOAT a = first, b = second, c = third, result;                      \
    if (mode != RNE) fesetround(host_modes[mode]);                                \
    switch (kind) {                                                               \
      case ADD:                                                                   \
        result = a + b;                                                           \
        break;                                                                    \
      case SUB:                                                                   \
        result = a - b;                                                           \
        break;                                                                    \
      case MUL:                                                                   \
        result = a * b;                                                           \
        break;                                                                    \
      case DIV:                                                                   \
        result = a / b;                                                           \
        break;                                                                    \
      case SQRT:                                                                  \
        result = ROOT(a);                                                         \
        break;                                                                    \
      case MADD:                                                                  \
        result = FMA(a, b, c);                                                    \
        break;                                                                    \
      case MSUB:                                                                  \
        result = FMA(a, b, -c);                                                   \
        break;                                                                    \
      case NMSUB:                                                                 \
        result = FMA(-a, b, c);                                                   \
        break;                                                                    \
      default:                                                                    \
        result = FMA(-a, b, -c);                                                  \
        break;                                                                    \
    }                                                                             \
    if (mode != RNE) fesetround(FE_TONEAREST);                                    \
    return result;                                                                \
  }
ARITHMETIC(arithmetic32, float, fmaf, sqrtf)
ARITHMETIC(arithmetic64, double, fma, sqrt)

static float narrow(double wide, int mode) {
  volatile double from = wide;
  volatile float result;
  if (mode != RNE) fesetround(host_modes[mode]);
  result = (float)from;
  if (mode != RNE) fesetround(FE_TONEAREST);
  return result;
}

static double from_integer64(uint64_t value, bool is_signed, int mode) {
  volatile uint64_t from = value;
  volatile double result;
  if (mode != RNE) fesetround(host_modes[mode]);
  result = is_signed ? (double)(int64_t)from : (double)from;
  if (mode != RNE) fesetround(FE_TONEAREST);
  return result;
}

static float from_integer32(uint64_t value, bool is_signed, int mode) {
  volatile uint64_t from = value;
  volatile float result;
  if (mode != RNE) fesetround(host_modes[mode]);
  result = is_signed ? (float)(int64_t)from : (float)from;
  if (mode != RNE) fesetround(FE_TONEAREST);
  return result;
}

static bool has_format(const iss *m, int format) {
  return format == SINGLE || (format == DOUBLE && iss_has(m, ISS_D)) || (format == HALF && iss_has(m, ISS_ZFH));
}

static double value_of(uint64_t f, int format) {
  return format == SINGLE ? f32_of(unbox32(f)) : format == DOUBLE ? f64_of(f) : f16_of(unbox16(f));
}

static void set_integer(iss *m, uint32_t rd, uint64_t value) {
  if (rd) m->r.x[rd] = m->xlen == 32 ? (uint64_t)(int64_t)(int32_t)value : value;
}

static bool compute(iss *m, uint32_t raw, int kind, int format, int mode) {
  const uint64_t *f = m->r.f;
  uint64_t a = f[(raw >> 15) & 31], b = f[(raw >> 20) & 31], c = f[raw >> 27], *rd = &m->r.f[(raw >> 7) & 31];
  if (mode > RUP || !has_format(m, format) || (kind == SQRT && ((raw >> 20) & 31))) return false;
  if (format == SINGLE)
    *rd = box32(f32_bits(arithmetic32(kind, f32_of(unbox32(a)), f32_of(unbox32(b)), f32_of(unbox32(c)), mode)));
  else if (format == DOUBLE)
    *rd = f64_bits(arithmetic64(kind, f64_of(a), f64_of(b), f64_of(c), mode));
  else
    *rd = box16(f16_round(arithmetic64(kind, value_of(a, HALF), value_of(b, HALF), value_of(c, HALF), mode), mode));
  return true;
}

static bool inject_sign(iss *m, uint32_t raw, int format, uint32_t kind) {
  uint64_t a = m->r.f[(raw >> 15) & 31], b = m->r.f[(raw >> 20) & 31];
  int top = format == SINGLE ? 31 : format == DOUBLE ? 63 : 15;
  if (kind > 2 || !has_format(m, format)) return false;
  a = format == SINGLE ? unbox32(a) : format == HALF ? unbox16(a) : a;
  b = format == SINGLE ? unbox32(b) : format == HALF ? unbox16(b) : b;
  uint64_t sign = kind == 0 ? b : kind == 1 ? ~b : a ^ b, bit = (uint64_t)1 << top;
  a = (a & ~bit) | (sign & bit);
  m->r.f[(raw >> 7) & 31] = format == SINGLE ? box32((uint32_t)a) : format == HALF ? box16((uint16_t)a) : a;
  return true;
}

static bool minmax(iss *m, uint32_t raw, int format, uint32_t kind) {
  uint64_t a = m->r.f[(raw >> 15) & 31], b = m->r.f[(raw >> 20) & 31], *rd = &m->r.f[(raw >> 7) & 31];
  if (kind > 1 || !has_format(m, format)) return false;
  if (format == SINGLE)
    *rd = box32(f32_minmax(unbox32(a), unbox32(b), (int)kind));
  else if (format == DOUBLE)
    *rd = f64_minmax(a, b, (int)kind);
  else
    *rd = box16(f16_minmax(unbox16(a), unbox16(b), (int)kind));
  return true;
}

static bool compare(iss *m, uint32_t raw, int format, uint32_t kind) {
  double a = value_of(m->r.f[(raw >> 15) & 31], format), b = value_of(m->r.f[(raw >> 20) & 31], format);
  if (kind > 2 || !has_format(m, format)) return false;
  set_integer(m, (raw >> 7) & 31, kind == 0 ? a <= b : kind == 1 ? a < b : a == b);
  return true;
}

static bool convert_format(iss *m, uint32_t raw, int format, int mode) {
  int from = (raw >> 20) & 31;
  uint64_t value = m->r.f[(raw >> 15) & 31], *rd = &m->r.f[(raw >> 7) & 31];
  bool half = from == HALF || format == HALF;
  if (from > HALF || from == format || (half && !iss_has(m, ISS_ZFHMIN))) return false;
  if ((from == DOUBLE || format == DOUBLE) && !iss_has(m, ISS_D)) return false;
  if (mode > RUP && !(format == HALF && mode == RMM)) return false;
  double wide = value_of(value, from);
  if (format == SINGLE)
    *rd = box32(f32_bits(narrow(wide, mode)));
  else if (format == DOUBLE)
    *rd = f64_bits(wide);
  else
    *rd = box16(f16_round(wide, (enum rounding)mode));
  return true;
}

static bool convert_to_integer(iss *m, uint32_t raw, int format, int mode) {
  int kind = (raw >> 20) & 31, bits = kind & 2 ? 64 : 32;
  if (kind > 3 || bits > (int)m->xlen || mode > RMM || !has_format(m, format)) return false;
  double value = value_of(m->r.f[(raw >> 15) & 31], format);
  uint64_t result = to_integer(value, bits, !(kind & 1), (enum rounding)mode);
  set_integer(m, (raw >> 7) & 31, bits == 32 ? (uint64_t)(int64_t)(int32_t)result : result);
  return true;
}

static bool convert_from_integer(iss *m, uint32_t raw, int format, int mode) {
  int kind = (raw >> 20) & 31;
  bool is_signed = !(kind & 1);
  uint64_t value = m->r.x[(raw >> 15) & 31], *rd = &m->r.f[(raw >> 7) & 31];
  if (kind > 3 || (kind & 2 && m->xlen == 32) || mode > RUP || !has_format(m, format)) return false;
  if (!(kind & 2)) value = is_signed ? (uint64_t)(int64_t)(int32_t)value : (uint32_t)value;
  if (format == SINGLE)
    *rd = box32(f32_bits(from_integer32(value, is_signed, mode)));
  else if (format == DOUBLE)
    *rd = f64_bits(from_integer64(value, is_signed, mode));
  else
    *rd = box16(f16_round(from_integer64(value, is_signed, mode), (enum rounding)mode));
  return true;
}

static bool move_to_integer(iss *m, uint32_t raw, int format, uint32_t kind) {
  uint64_t value = m->r.f[(raw >> 15) & 31];
  if (kind > 1 || ((raw >> 20) & 31)) return false;
  if (format == HALF ? !iss_has(m, kind ? ISS_ZFH : ISS_ZFHMIN) : format == DOUBLE && !iss_has(m, ISS_D)) return false;
  if (kind == 0 && format == DOUBLE && m->xlen == 32) return false;
  if (kind == 0)
    value = format == SINGLE ? (uint64_t)(int64_t)(int32_t)value
            : format == HALF ? (uint64_t)(int64_t)(int16_t)value
                             : value;
  else
    value = format == SINGLE ? classify(unbox32(value), 8, 23)
            : format == HALF ? classify(unbox16(value), 5, 10)
                             : classify(value, 11, 52);
  set_integer(m, (raw >> 7) & 31, value);
  return true;
}

static bool move_from_integer(iss *m, uint32_t raw, int format, uint32_t kind) {
  uint64_t value = m->r.x[(raw >> 15) & 31];
  if (kind || ((raw >> 20) & 31) || (format == HALF && !iss_has(m, ISS_ZFHMIN))) return false;
  if (format == DOUBLE && (m->xlen == 32 || !iss_has(m, ISS_D))) return false;
  m->r.f[(raw >> 7) & 31] = format == SINGLE ? box32((uint32_t)value) : format == HALF ? box16((uint16_t)value) : value;
  return true;
}

bool iss_float(iss *m, uint32_t raw) {
  uint32_t top = raw >> 27, kind = (raw >> 12) & 7;
  int format = (raw >> 25) & 3, mode = kind == 7 ? (int)m->frm : (int)kind;
  if (!(m->mstatus & MSTATUS_FS) || format > HALF) return false;
  if ((raw & 0x7f) != 0x53) return compute(m, raw, MADD + ((raw >> 2) & 3), format, mode);
  switch (top) {
    case ADD:
    case SUB:
    case MUL:
    case DIV:
    case SQRT:
      return compute(m, raw, (int)top, format, mode);
    case 0x04:
      return inject_sign(m, raw, format, kind);
    case 0x05:
      return minmax(m, raw, format, kind);
    case 0x08:
      return convert_format(m, raw, format, mode);
    case 0x14:
      return compare(m, raw, format, kind);
    case 0x18:
      return convert_to_integer(m, raw, format, mode);
    case 0x1a:
      return convert_from_integer(m, raw, format, mode);
    case 0x1c:
      return move_to_integer(m, raw, format, kind);
    case 0x1e:
      return move_from_integer(m, raw, format, kind);
    default:
      return false;
  }
}
