/* Vector loads and stores: unit-stride, strided, indexed, segments, whole registers, masks, fault-only-first. */
#include <string.h>

#include "vector.h"

enum { UNIT, INDEXED_UNORDERED, STRIDED, INDEXED_ORDERED };
enum { REGULAR = 0, WHOLE = 8, MASK = 11, FAULT_ONLY_FIRST = 16 };

typedef struct access {
  vop *o;
  bool store, first_only;
  uint32_t width;             /* log2 of the bytes of an element */
  uint32_t fields, registers; /* of a segment; registers from one field to the next */
  uint64_t base;
} access;

static uint64_t address_in(const iss *m, uint64_t address) { return m->xlen == 32 ? (uint32_t)address : address; }

static int move_element(access *a, uint32_t i, uint64_t address) {
  iss *m = a->o->m;
  for (uint32_t field = 0; field < a->fields; field++) {
    uint8_t *at = vreg(a->o, a->o->vd + field * a->registers);
    uint64_t where = address_in(m, address + (field << a->width)), value;
    int fault = ISS_OK;
    if (a->store) {
      fault = iss_store(m, where, 1u << a->width, get_element(at, a->width, i));
    } else {
      fault = iss_load(m, where, 1u << a->width, &value);
      if (fault == ISS_OK) set_element(at, a->width, i, value);
    }
    if (fault != ISS_OK) return fault;
  }
  return ISS_OK;
}

/* Elements one by one, from where an earlier fault stopped. */
static int move_each(access *a, uint32_t vl, uint64_t stride, const uint8_t *indices, uint32_t index_width) {
  iss *m = a->o->m;
  for (uint32_t i = a->o->start; i < vl; i++) {
    if (!vop_active(a->o, i)) continue;
    uint64_t offset = indices ? get_element(indices, index_width, i) : i * stride;
    int fault = move_element(a, i, a->base + offset);
    if (fault == ISS_OK) continue;
    if (a->first_only && i > 0 && fault == ISS_LOAD_FAULT) {
      m->vl = i;
      return ISS_OK;
    }
    m->vstart = i;
    return fault;
  }
  return ISS_OK;
}

static int move_unit(access *a, uint32_t vl) {
  iss *m = a->o->m;
  uint64_t bytes = (uint64_t)vl << a->width;
  bool plain = a->fields == 1 && !a->o->masked && a->o->start == 0 && vl;
  if (!plain || !iss_in_ram(m, a->base, bytes)) return move_each(a, vl, (uint64_t)a->fields << a->width, NULL, 0);
  uint8_t *at = vreg(a->o, a->o->vd), *ram = m->ram + (a->base - m->ram_base);
  memcpy(a->store ? ram : at, a->store ? at : ram, bytes);
  return ISS_OK;
}

static bool has_setting(const vop *o) { return !(o->m->vtype >> (o->m->xlen - 1)); }

/* The field width: of elements, or of indices. */
static int width_of(uint32_t field) { return field == 0 ? 0 : field >= 5 ? (int)field - 4 : -1; }

static int whole_registers(access *a) {
  vop *o = a->o;
  uint32_t count = a->fields;
  if (o->masked || (count & (count - 1)) || o->vd % count) return ISS_ILLEGAL;
  if (a->store && a->width) return ISS_ILLEGAL;
  a->fields = 1;
  *o->beats += count;
  return move_unit(a, count * o->m->vlenb >> a->width);
}

static int mask_bytes(access *a) {
  vop *o = a->o;
  if (o->masked || a->fields != 1 || a->width || !has_setting(o)) return ISS_ILLEGAL;
  *o->beats += o->vl > 0;
  return move_unit(a, (o->vl + 7) / 8);
}

/* Groups of all fields: within the registers, at most eight, and not the mask. */
static bool fields_fit(const access *a, int lmul) {
  uint32_t all = a->fields * group(lmul);
  if (!fits(a->o->vd, lmul) || all > 8 || a->o->vd + all > 32) return false;
  return a->store || !a->o->masked || a->o->vd != 0;
}

static int indexed(access *a, uint32_t index_width) {
  vop *o = a->o;
  int index_lmul = o->lmul + (int)index_width - (int)o->sew;
  a->width = o->sew;
  a->registers = group(o->lmul);
  if (!fields_fit(a, o->lmul) || !fits(o->vs2, index_lmul)) return ISS_ILLEGAL;
  if (!a->store && !vop_operand(o, o->vs2, index_lmul, o->lmul)) return ISS_ILLEGAL;
  if (!a->store && a->fields > 1 && overlap(o->vd, a->fields * group(o->lmul), o->vs2, group(index_lmul)))
    return ISS_ILLEGAL;
  *o->beats += a->fields * (((o->vl << a->width) + o->m->vlenb - 1) / o->m->vlenb);
  return move_each(a, o->vl, 0, vreg(o, o->vs2), index_width);
}

int vector_memory(vop *o) {
  iss *m = o->m;
  uint32_t mode = (o->raw >> 26) & 3;
  int width = width_of(o->kind);
  access a = {.o = o, .store = o->raw & 0x20, .fields = 1 + (o->raw >> 29), .base = address_in(m, m->r.x[o->vs1])};
  if (width < 0 || (o->raw >> 28) & 1) return ISS_ILLEGAL;
  a.width = (uint32_t)width;
  if (mode == UNIT && o->vs2 == WHOLE) return whole_registers(&a);
  if (mode == UNIT && o->vs2 == MASK) return mask_bytes(&a);
  if (!has_setting(o)) return ISS_ILLEGAL;
  if (mode == INDEXED_UNORDERED || mode == INDEXED_ORDERED) return indexed(&a, (uint32_t)width);
  int lmul = o->lmul + width - (int)o->sew;
  a.registers = group(lmul);
  a.first_only = mode == UNIT && o->vs2 == FAULT_ONLY_FIRST;
  if (!fields_fit(&a, lmul)) return ISS_ILLEGAL;
  if (mode == UNIT && o->vs2 != REGULAR && (!a.first_only || a.store)) return ISS_ILLEGAL;
  *o->beats += a.fields * (((o->vl << a.width) + m->vlenb - 1) / m->vlenb);
  if (mode == UNIT) return move_unit(&a, o->vl);
  return move_each(&a, o->vl, m->r.x[o->vs2], NULL, 0);
}
