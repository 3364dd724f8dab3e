/* Masks: logic on their bits, and what is counted or found in them. */
#include "vector.h"

static void set_bit(uint8_t *mask, uint32_t i, bool value) {
  uint8_t bit = (uint8_t)(1u << (i % 8));
  mask[i / 8] = value ? mask[i / 8] | bit : mask[i / 8] & (uint8_t)~bit;
}

static bool combine(uint32_t function, bool a, bool b) {
  switch (function) {
    case 0x18:
      return a && !b;
    case 0x19:
      return a && b;
    case 0x1a:
      return a || b;
    case 0x1b:
      return a != b;
    case 0x1c:
      return a || !b;
    case 0x1d:
      return !(a && b);
    case 0x1e:
      return !(a || b);
    default:
      return a == b;
  }
}

int vector_mask_logic(vop *o) {
  if (o->masked) return ISS_ILLEGAL;
  *o->beats += o->vl > 0;
  const uint8_t *a = vreg(o, o->vs2), *b = vreg(o, o->vs1);
  uint8_t *vd = vreg(o, o->vd);
  for (uint32_t i = o->start; i < o->vl; i++) set_bit(vd, i, combine(o->function, mask_bit(a, i), mask_bit(b, i)));
  return ISS_OK;
}

/* vcpop.m, vfirst.m */
int vector_mask_to_integer(vop *o) {
  const uint8_t *from = vreg(o, o->vs2);
  uint64_t count = 0, first = ~(uint64_t)0;
  if ((o->vs1 != 16 && o->vs1 != 17) || o->start) return ISS_ILLEGAL;
  *o->beats += o->vl > 0;
  for (uint32_t i = 0; i < o->vl; i++) {
    if (!mask_bit(from, i) || !vop_active(o, i)) continue;
    if (!count++) first = i;
  }
  if (o->vd) o->m->r.x[o->vd] = o->vs1 == 16 ? count : first;
  return ISS_OK;
}

static int index_or_prefix(vop *o) {
  bool iota = o->vs1 == 16;
  if (!vop_destination(o, o->vd, o->lmul) || (!iota && o->vs2)) return ISS_ILLEGAL;
  if (iota && (o->start || overlap(o->vd, group(o->lmul), o->vs2, 1))) return ISS_ILLEGAL;
  count_beats(o, 1u << o->sew);
  uint64_t before = 0;
  for (uint32_t i = o->start; i < o->vl; i++) {
    if (!vop_active(o, i)) continue;
    set_element(vreg(o, o->vd), o->sew, i, iota ? before : i);
    if (iota) before += mask_bit(vreg(o, o->vs2), i);
  }
  return ISS_OK;
}

/* vmsbf.m, vmsof.m, vmsif.m, viota.m, vid.v */
int vector_mask_unary(vop *o) {
  enum { BEFORE = 1, ONLY = 2, INCLUDING = 3 };
  if (o->vs1 == 16 || o->vs1 == 17) return index_or_prefix(o);
  if (o->vs1 < BEFORE || o->vs1 > INCLUDING || o->start || o->vd == o->vs2 || (o->masked && o->vd == 0))
    return ISS_ILLEGAL;
  *o->beats += o->vl > 0;
  bool found = false;
  for (uint32_t i = 0; i < o->vl; i++) {
    if (!vop_active(o, i)) continue;
    bool here = !found && mask_bit(vreg(o, o->vs2), i);
    set_bit(vreg(o, o->vd), i, o->vs1 == ONLY ? here : !found && (!here || o->vs1 == INCLUDING));
    found |= here;
  }
  return ISS_OK;
}
