/* Vector instructions: the setting (vset*), what is legal, and where each kind is done. */
#include "vector.h"

#include "float.h"

bool vop_active(const vop *o, uint32_t i) { return !o->masked || mask_bit(o->m->v, i); }

/* A destination group: aligned, and not the mask itself. */
bool vop_destination(const vop *o, uint32_t vd, int lmul) { return fits(vd, lmul) && !(o->masked && vd == 0); }

/* A source of another element width than the destination may overlap it only where nothing is lost: a narrower one in
 * its highest registers, a wider one in its lowest. */
bool vop_operand(const vop *o, uint32_t vs, int lmul, int lmul_vd) {
  if (!fits(vs, lmul)) return false;
  if (lmul == lmul_vd || !overlap(vs, group(lmul), o->vd, group(lmul_vd))) return true;
  if (lmul > lmul_vd) return vs == o->vd;
  return lmul >= 0 && vs + group(lmul) == o->vd + group(lmul_vd);
}

void vop_active_bytes(const vop *o, uint8_t *active) {
  for (uint32_t i = 0; i < o->vl; i++) active[i] = i >= o->start && vop_active(o, i);
}

/* The float operand of .vf forms, as the bits of an element. */
bool vop_scalar_float(const vop *o, uint64_t *bits) {
  uint64_t f = o->m->r.f[o->vs1];
  if (!(o->m->mstatus & MSTATUS_FS)) return false;
  *bits = o->sew == 1 ? unbox16(f) : o->sew == 2 ? unbox32(f) : f;
  return true;
}

static void set_length(iss *m, uint32_t rd, uint64_t requested, uint64_t vtype, bool keep) {
  int lmul = (int)(vtype & 7), sew = (int)(vtype >> 3) & 7;
  lmul = lmul >= 4 ? lmul - 8 : lmul;
  m->vstart = 0;
  if (vtype >> 8 || lmul == -4 || sew > 3 || sew - lmul > 3) {
    m->vtype = (uint64_t)1 << (m->xlen - 1);
    m->vl = 0;
  } else {
    uint32_t elements = m->vlenb >> sew, most = lmul >= 0 ? elements << lmul : elements >> -lmul;
    if (keep) requested = m->vl;
    m->vtype = vtype;
    m->vl = requested < most ? (uint32_t)requested : most;
  }
  if (rd) m->r.x[rd] = m->vl;
}

static void configure(iss *m, uint32_t raw) {
  uint32_t rd = (raw >> 7) & 31, rs1 = (raw >> 15) & 31, rs2 = (raw >> 20) & 31;
  uint64_t requested = rs1 ? m->r.x[rs1] : ~(uint64_t)0;
  if (m->xlen == 32) requested = (uint32_t)requested;
  bool keep = !rs1 && !rd;
  if (!(raw >> 31))
    set_length(m, rd, requested, (raw >> 20) & 0x7ff, keep);
  else if (raw >> 30 == 3)
    set_length(m, rd, rs1, (raw >> 20) & 0x3ff, false);
  else
    set_length(m, rd, requested, m->xlen == 32 ? (uint32_t)m->r.x[rs2] : m->r.x[rs2], keep);
}

static int integer_operation(vop *o) {
  switch (o->function) {
    case 0x0c:
      return vector_gather(o);
    case 0x0e:
      return o->kind == OPIVV ? vector_gather(o) : vector_slide(o);
    case 0x0f:
      return o->kind == OPIVV ? ISS_ILLEGAL : vector_slide(o);
    case 0x17:
      return vector_merge(o);
    case 0x27:
      return o->kind == OPIVI ? vector_move_registers(o) : vector_elements(o, &o->m->kernels->opi[0x27]);
    case 0x30:
    case 0x31:
      return o->kind == OPIVV ? vector_reduce(o) : ISS_ILLEGAL;
    default:
      return vector_elements(o, &o->m->kernels->opi[o->function]);
  }
}

static int multiply_operation(vop *o) {
  bool vector = o->kind == OPMVV;
  if (o->function < 8) return vector ? vector_reduce(o) : ISS_ILLEGAL;
  switch (o->function) {
    case 0x0e:
    case 0x0f:
      return vector ? ISS_ILLEGAL : vector_slide(o);
    case 0x10:
      return vector && o->vs1 ? vector_mask_to_integer(o) : vector_move_scalar(o);
    case 0x12:
      return vector ? vector_extend(o) : ISS_ILLEGAL;
    case 0x14:
      return vector ? vector_mask_unary(o) : ISS_ILLEGAL;
    case 0x17:
      return vector ? vector_compress(o) : ISS_ILLEGAL;
    default:
      break;
  }
  if (o->function >= 0x18 && o->function <= 0x1f) return vector ? vector_mask_logic(o) : ISS_ILLEGAL;
  return vector_elements(o, &o->m->kernels->opm[o->function]);
}

/* Whether an operand or the result is a half float; between 16-bit integers and single floats none is. */
static bool has_half(const vop *o) {
  bool converts = o->function == 0x12 && o->kind == OPFVV;
  bool singles =
      o->vs1 == 0x0a || o->vs1 == 0x0b || o->vs1 == 0x10 || o->vs1 == 0x11 || o->vs1 == 0x16 || o->vs1 == 0x17;
  return o->sew == 0 || (o->sew == 1 && !(converts && singles));
}

static int float_operation(vop *o) {
  bool vector = o->kind == OPFVV;
  if (!(o->m->mstatus & MSTATUS_FS) || (has_half(o) && !iss_has(o->m, ISS_ZVFH))) return ISS_ILLEGAL;
  if (o->sew == 0 && o->function != 0x12) return ISS_ILLEGAL;
  switch (o->function) {
    case 0x01:
    case 0x03:
    case 0x05:
    case 0x07:
    case 0x31:
    case 0x33:
      return vector ? vector_float_reduce(o) : ISS_ILLEGAL;
    case 0x0e:
    case 0x0f:
      return vector ? ISS_ILLEGAL : vector_slide(o);
    case 0x10:
      return vector_move_scalar(o);
    case 0x12:
      return vector ? vector_elements(o, &o->m->kernels->conversions[o->vs1]) : ISS_ILLEGAL;
    case 0x13:
      return vector ? vector_elements(o, &o->m->kernels->unary[o->vs1]) : ISS_ILLEGAL;
    case 0x17:
      return vector ? ISS_ILLEGAL : vector_merge(o);
    default:
      return vector_elements(o, &o->m->kernels->opf[o->function]);
  }
}

static int arithmetic(vop *o) {
  if (o->m->vtype >> (o->m->xlen - 1)) return ISS_ILLEGAL;
  switch (o->kind) {
    case OPIVV:
    case OPIVX:
    case OPIVI:
      return integer_operation(o);
    case OPMVV:
    case OPMVX:
      return multiply_operation(o);
    default:
      return float_operation(o);
  }
}

int iss_vector(iss *m, uint32_t raw, uint64_t *beats) {
  if (!(m->mstatus & MSTATUS_VS)) return ISS_ILLEGAL;
  vop o = {
      .m = m,
      .raw = raw,
      .vd = (raw >> 7) & 31,
      .vs1 = (raw >> 15) & 31,
      .vs2 = (raw >> 20) & 31,
      .kind = (raw >> 12) & 7,
      .function = raw >> 26,
      .masked = !((raw >> 25) & 1),
      .sew = (uint32_t)(m->vtype >> 3) & 7,
      .lmul = (int)((m->vtype & 7) ^ 4) - 4,
      .start = m->vstart,
      .vl = m->vl,
      .beats = beats,
  };
  if ((raw & 0x7f) == 0x57 && o.kind == OPCFG) {
    configure(m, raw);
    return ISS_OK;
  }
  int fault = (raw & 0x7f) == 0x57 ? arithmetic(&o) : vector_memory(&o);
  if (fault == ISS_OK) m->vstart = 0;
  return fault;
}
