/* Elements that move: slides, gathers, compress, merges, moves, extensions. */
#include <string.h>

#include "float.h"
#include "vector.h"

static bool scalar_of(const vop *o, uint64_t *value) {
  if (o->kind == OPFVF) return vop_scalar_float(o, value);
  if (o->kind == OPIVI)
    *value = (uint64_t)(int64_t)((int)(o->vs1 ^ 16) - 16);
  else
    *value = o->m->r.x[o->vs1];
  return true;
}

static uint64_t offset_of(const vop *o) {
  if (o->kind == OPIVI) return o->vs1;
  return o->m->xlen == 32 ? (uint32_t)o->m->r.x[o->vs1] : o->m->r.x[o->vs1];
}

static void slide_by_one(const vop *o, bool up, uint64_t scalar) {
  uint8_t *vd = vreg(o, o->vd);
  const uint8_t *from = vreg(o, o->vs2);
  for (uint32_t i = o->start; i < o->vl; i++) {
    if (!vop_active(o, i)) continue;
    bool edge = up ? i == 0 : i == o->vl - 1;
    set_element(vd, o->sew, i, edge ? scalar : get_element(from, o->sew, up ? i - 1 : i + 1));
  }
}

int vector_slide(vop *o) {
  bool up = o->function == 0x0e, by_one = o->kind == OPMVX || o->kind == OPFVF;
  uint64_t scalar = 0;
  if (!vop_destination(o, o->vd, o->lmul) || !fits(o->vs2, o->lmul)) return ISS_ILLEGAL;
  if (up && overlap(o->vd, group(o->lmul), o->vs2, group(o->lmul))) return ISS_ILLEGAL;
  if (by_one && !scalar_of(o, &scalar)) return ISS_ILLEGAL;
  count_beats(o, 1u << o->sew);
  if (by_one) {
    slide_by_one(o, up, scalar);
    return ISS_OK;
  }
  uint64_t offset = offset_of(o), most = vlmax(o);
  uint8_t *vd = vreg(o, o->vd);
  const uint8_t *from = vreg(o, o->vs2);
  for (uint32_t i = o->start; i < o->vl; i++) {
    if (!vop_active(o, i) || (up && i < offset)) continue;
    uint64_t value = 0;
    if (up)
      value = get_element(from, o->sew, i - (uint32_t)offset);
    else if (offset < most && i + offset < most)
      value = get_element(from, o->sew, i + (uint32_t)offset);
    set_element(vd, o->sew, i, value);
  }
  return ISS_OK;
}

/* vrgather.vv, .vx, .vi and vrgatherei16.vv */
int vector_gather(vop *o) {
  bool vector = o->kind == OPIVV, sixteen = o->function == 0x0e;
  uint32_t index_width = sixteen ? 1 : o->sew;
  int index_lmul = o->lmul + (int)index_width - (int)o->sew;
  uint32_t size = group(o->lmul);
  if (!vop_destination(o, o->vd, o->lmul) || !fits(o->vs2, o->lmul) || overlap(o->vd, size, o->vs2, size))
    return ISS_ILLEGAL;
  if (vector && (!fits(o->vs1, index_lmul) || overlap(o->vd, size, o->vs1, group(index_lmul)))) return ISS_ILLEGAL;
  count_beats(o, 1u << o->sew);
  uint64_t most = vlmax(o), index = vector ? 0 : offset_of(o);
  for (uint32_t i = o->start; i < o->vl; i++) {
    if (!vop_active(o, i)) continue;
    if (vector) index = get_element(vreg(o, o->vs1), index_width, i);
    uint64_t value = index < most ? get_element(vreg(o, o->vs2), o->sew, (uint32_t)index) : 0;
    set_element(vreg(o, o->vd), o->sew, i, value);
  }
  return ISS_OK;
}

int vector_compress(vop *o) {
  uint32_t size = group(o->lmul), filled = 0;
  if (o->masked || o->start || !fits(o->vd, o->lmul) || !fits(o->vs2, o->lmul)) return ISS_ILLEGAL;
  if (overlap(o->vd, size, o->vs2, size) || overlap(o->vd, size, o->vs1, 1)) return ISS_ILLEGAL;
  count_beats(o, 1u << o->sew);
  for (uint32_t i = 0; i < o->vl; i++)
    if (mask_bit(vreg(o, o->vs1), i))
      set_element(vreg(o, o->vd), o->sew, filled++, get_element(vreg(o, o->vs2), o->sew, i));
  return ISS_OK;
}

/* vmerge and vmv.v of integers and floats: the second operand where the mask is set, else the first. */
int vector_merge(vop *o) {
  _Alignas(64) uint8_t spread[GROUP_BYTES];
  bool vector = o->kind == OPIVV;
  const void *from = vreg(o, o->vs1);
  uint64_t scalar = 0;
  if (!vop_destination(o, o->vd, o->lmul) || !fits(o->vs2, o->lmul)) return ISS_ILLEGAL;
  if ((vector && !fits(o->vs1, o->lmul)) || (!o->masked && o->vs2)) return ISS_ILLEGAL;
  if (!vector && !scalar_of(o, &scalar)) return ISS_ILLEGAL;
  count_beats(o, 1u << o->sew);
  if (o->start >= o->vl) return ISS_OK;
  if (!vector) {
    o->m->kernels->spread[o->sew](spread, scalar, o->vl);
    from = spread;
  }
  uint8_t *vd = vreg(o, o->vd);
  if (!o->masked) {
    uint32_t done = o->start << o->sew;
    memmove(vd + done, (const uint8_t *)from + done, (o->vl << o->sew) - done);
    return ISS_OK;
  }
  for (uint32_t i = o->start; i < o->vl; i++) {
    const uint8_t *chosen = vop_active(o, i) ? from : vreg(o, o->vs2);
    set_element(vd, o->sew, i, get_element(chosen, o->sew, i));
  }
  return ISS_OK;
}

/* vmv1r.v to vmv8r.v */
int vector_move_registers(vop *o) {
  uint32_t count = o->vs1 + 1, bytes = count * o->m->vlenb, done = o->start << o->sew;
  if (o->masked || (count != 1 && count != 2 && count != 4 && count != 8) || o->vd % count || o->vs2 % count)
    return ISS_ILLEGAL;
  *o->beats += count;
  if (done < bytes) memmove(vreg(o, o->vd) + done, vreg(o, o->vs2) + done, bytes - done);
  return ISS_OK;
}

/* vzext and vsext, from a half, a quarter or an eighth of the width */
int vector_extend(vop *o) {
  uint32_t by = 4 - o->vs1 / 2, is_signed = o->vs1 & 1;
  if (o->vs1 < 2 || o->vs1 > 7 || by > o->sew || !vop_destination(o, o->vd, o->lmul)) return ISS_ILLEGAL;
  if (!vop_operand(o, o->vs2, o->lmul - (int)by, o->lmul)) return ISS_ILLEGAL;
  count_beats(o, 1u << o->sew);
  for (uint32_t i = o->start; i < o->vl; i++) {
    if (!vop_active(o, i)) continue;
    uint64_t value = get_element(vreg(o, o->vs2), o->sew - by, i);
    set_element(vreg(o, o->vd), o->sew, i, is_signed ? sign_extend(value, o->sew - by) : value);
  }
  return ISS_OK;
}

/* vmv.x.s, vmv.s.x, vfmv.f.s, vfmv.s.f: element 0, whatever the group */
int vector_move_scalar(vop *o) {
  bool to_vector = o->kind == OPMVX || o->kind == OPFVF;
  uint64_t value;
  if (o->masked || (to_vector ? o->vs2 : o->vs1)) return ISS_ILLEGAL;
  *o->beats += 1;
  if (to_vector) {
    if (!scalar_of(o, &value)) return ISS_ILLEGAL;
    if (o->start < o->vl) set_element(vreg(o, o->vd), o->sew, 0, value);
    return ISS_OK;
  }
  value = get_element(vreg(o, o->vs2), o->sew, 0);
  if (o->kind == OPFVV) {
    o->m->r.f[o->vd] = o->sew == 1 ? box16((uint16_t)value) : o->sew == 2 ? box32((uint32_t)value) : value;
  } else if (o->vd) {
    value = sign_extend(value, o->sew);
    o->m->r.x[o->vd] = o->m->xlen == 32 ? (uint64_t)(int64_t)(int32_t)value : value;
  }
  return ISS_OK;
}
