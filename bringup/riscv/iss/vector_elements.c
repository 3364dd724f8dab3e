/* Element by element: operands, a kernel over all of them, then the active ones into the destination. */
#include <fenv.h>
#include <string.h>

#include "vector.h"

static uint32_t form_of(const vop *o) {
  switch (o->kind) {
    case OPIVV:
    case OPMVV:
    case OPFVV:
      return F_V;
    case OPIVI:
      return F_I;
    default:
      return F_X;
  }
}

static bool scalar_operand(const vop *o, const voperation *operation, uint64_t *value) {
  switch (o->kind) {
    case OPIVI:
      *value = operation->forms & F_UNSIGNED_IMM ? o->vs1 : (uint64_t)(int64_t)((int)(o->vs1 ^ 16) - 16);
      return true;
    case OPFVF:
      return vop_scalar_float(o, value);
    default:
      *value = o->m->r.x[o->vs1];
      return true;
  }
}

typedef struct widths {
  uint32_t out, a; /* log2 of the bytes of an element; b has SEW */
} widths;

static bool legal(const vop *o, const voperation *operation, widths *w) {
  uint8_t shape = operation->shape;
  bool wide_out = shape == V_WIDE || shape == V_WIDE_W, wide_a = shape == V_WIDE_W || shape == V_NARROW;
  bool to_mask = shape == V_MASK || shape == V_MASK_CARRY;
  int lmul_out = o->lmul + wide_out, lmul_a = o->lmul + wide_a;
  w->out = o->sew + wide_out;
  w->a = o->sew + wide_a;
  if (w->out > 3 || w->a > 3) return false;
  if (to_mask) {
    /* a mask takes one register, which may only be the first of a source group */
    if (!fits(o->vs2, o->lmul) || (o->vd != o->vs2 && overlap(o->vd, 1, o->vs2, group(o->lmul)))) return false;
    if (form_of(o) != F_V) return true;
    return fits(o->vs1, o->lmul) && (o->vd == o->vs1 || !overlap(o->vd, 1, o->vs1, group(o->lmul)));
  }
  if (!fits(o->vd, lmul_out) || (o->vd == 0 && (o->masked || shape == V_CARRY))) return false;
  if (!vop_operand(o, o->vs2, lmul_a, lmul_out)) return false;
  return form_of(o) != F_V || operation->forms & F_UNARY || vop_operand(o, o->vs1, o->lmul, lmul_out);
}

static void write_mask(const vop *o, const uint8_t *results, bool all_active) {
  uint8_t *vd = vreg(o, o->vd), active[ELEMENTS_MAX];
  vop_active_bytes(o, active);
  for (uint32_t i = o->start; i < o->vl; i++) {
    if (!all_active && !active[i]) continue;
    uint8_t bit = (uint8_t)(1u << (i % 8));
    vd[i / 8] = results[i] ? vd[i / 8] | bit : vd[i / 8] & (uint8_t)~bit;
  }
}

static void note_saturation(const vop *o, const uint8_t *saturated) {
  for (uint32_t i = o->start; i < o->vl; i++)
    if (saturated[i] && vop_active(o, i)) o->m->vxsat = 1;
}

/* Kernels round as the host does; for halves and conversions the mode is in the context. */
static void call(vkernel *kernel, void *out, const void *a, const void *b, const void *d, size_t n, vcontext *context) {
  static const int modes[4] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
  bool directed = context->frm > 0 && context->frm < 4;
  if (directed) fesetround(modes[context->frm]);
  kernel(out, a, b, d, n, context);
  if (directed) fesetround(FE_TONEAREST);
}

/* rmm (4) is for conversions to integers only; 5 to 7 mean nothing. */
static bool rounding_known(const vop *o) {
  if ((o->kind != OPFVV && o->kind != OPFVF) || o->m->frm < 4) return true;
  bool rounds = o->function == 0x00 || o->function == 0x02 || o->function >= 0x20 || o->function == 0x13;
  if (o->function == 0x12) return o->m->frm == 4 && ((o->vs1 & 7) < 2 || (o->vs1 & 7) > 5);
  return !rounds;
}

int vector_elements(vop *o, const voperation *operation) {
  _Alignas(64) uint8_t spread[GROUP_BYTES];
  _Alignas(64) uint8_t scratch[GROUP_BYTES];
  _Alignas(64) uint8_t carries[ELEMENTS_MAX];
  uint8_t saturated[ELEMENTS_MAX];
  uint32_t form = form_of(o);
  vkernel *kernel = o->sew < 4 ? operation->by_sew[o->sew] : NULL;
  widths w;
  if (!kernel || !(operation->forms & form) || !legal(o, operation, &w) || !rounding_known(o)) return ISS_ILLEGAL;
  count_beats(o, 1u << (w.out > w.a ? w.out : w.a));
  bool carry = operation->shape == V_CARRY || operation->shape == V_MASK_CARRY;
  bool to_mask = operation->shape == V_MASK || operation->shape == V_MASK_CARRY;
  if (operation->shape == V_CARRY && !o->masked) return ISS_ILLEGAL;

  const void *b = vreg(o, o->vs1), *d = vreg(o, o->vd);
  if (form != F_V) {
    uint64_t value;
    if (!scalar_operand(o, operation, &value)) return ISS_ILLEGAL;
    o->m->kernels->spread[o->sew](spread, value, o->vl);
    b = spread;
  }
  if (o->start >= o->vl) return ISS_OK;
  if (carry) {
    for (uint32_t i = 0; i < o->vl; i++) carries[i] = o->masked && mask_bit(o->m->v, i);
    d = carries;
  }
  vcontext context = {o->m->vxrm, o->kind == OPFVV || o->kind == OPFVF ? o->m->frm : 0, saturated};
  bool plain = !to_mask && (!o->masked || carry) && o->start == 0;
  bool direct = plain && operation->shape <= V_CARRY;
  void *out = direct ? (void *)vreg(o, o->vd) : scratch;
  call(kernel, out, vreg(o, o->vs2), b, d, o->vl, &context);
  if (operation->forms & F_SATURATES) note_saturation(o, saturated);
  if (to_mask) {
    write_mask(o, scratch, carry || !o->masked);
  } else if (plain && !direct) {
    memcpy(vreg(o, o->vd), scratch, (size_t)o->vl << w.out);
  } else if (!direct) {
    uint8_t active[ELEMENTS_MAX];
    vop_active_bytes(o, active);
    if (carry) memset(active + o->start, 1, o->vl - o->start);
    o->m->kernels->blend[w.out](vreg(o, o->vd), scratch, active, o->vl);
  }
  return ISS_OK;
}
