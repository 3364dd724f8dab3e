/* Vector instructions: a kernel is a plain loop over elements; vector.c finds it, and puts masks and tails around it.
 *
 * A kernel sees no mask: it computes all elements below vl, into the destination itself where nothing is masked and
 * nothing overlaps, else into a scratch group from which the active elements are taken. A scalar operand is spread
 * into a scratch group first. So an operation is written once, and the compiler makes vector code of it.
 */
#ifndef BRINGUP_ISS_VECTOR_H
#define BRINGUP_ISS_VECTOR_H

#include "iss.h"

enum { GROUP_BYTES = 8 * ISS_VLEN_MAX / 8, ELEMENTS_MAX = GROUP_BYTES };

typedef uint8_t __attribute__((may_alias)) u8;
typedef uint16_t __attribute__((may_alias)) u16;
typedef uint32_t __attribute__((may_alias)) u32;
typedef uint64_t __attribute__((may_alias)) u64;

/* What a kernel knows besides its operands. */
typedef struct vcontext {
  uint32_t vxrm, frm;
  uint8_t *saturated; /* per element: whether it was too large or too small */
} vcontext;

/* out = f(vs2, vs1 or scalar, the old vd or the carries in bytes) */
typedef void vkernel(void *out, const void *a, const void *b, const void *d, size_t n, vcontext *context);

enum vshape {
  V_NONE,
  V_SAME,   /* SEW = SEW op SEW, perhaps with the old vd */
  V_CARRY,  /* the same with v0 as carries */
  V_WIDE,   /* 2·SEW = SEW op SEW */
  V_WIDE_W, /* 2·SEW = 2·SEW op SEW */
  V_NARROW, /* SEW = 2·SEW op SEW */
  V_MASK,   /* mask = SEW op SEW */
  V_MASK_CARRY,
};
enum vforms { F_V = 1, F_X = 2, F_I = 4, F_UNSIGNED_IMM = 8, F_SATURATES = 16, F_UNARY = 32 };

typedef struct voperation {
  uint8_t shape, forms;
  vkernel *by_sew[4];
} voperation;

struct iss_kernels {
  voperation opi[64], opm[64], opf[64];
  voperation conversions[32]; /* VFUNARY0, by the field vs1 */
  voperation unary[32];       /* VFUNARY1, by the field vs1 */
  void (*blend[4])(void *vd, const void *from, const uint8_t *active, size_t n);
  void (*spread[4])(void *out, uint64_t value, size_t n);
};

const struct iss_kernels *iss_choose_kernels(bool portable);

/* One vector instruction with its setting. */
typedef struct vop {
  iss *m;
  uint32_t raw, vd, vs1, vs2; /* vs1 is rs1 or an immediate, too */
  uint32_t kind, function;    /* funct3, funct6 */
  bool masked;
  uint32_t sew; /* log2 of the bytes of an element */
  int lmul;     /* log2 */
  uint32_t start, vl;
  uint64_t *beats;
} vop;

enum { OPIVV, OPFVV, OPMVV, OPIVI, OPIVX, OPFVF, OPMVX, OPCFG };

static inline uint8_t *vreg(const vop *o, uint32_t number) { return o->m->v + number * o->m->vlenb; }
static inline bool mask_bit(const uint8_t *mask, uint32_t i) { return (mask[i / 8] >> (i % 8)) & 1; }
static inline uint32_t vlmax(const vop *o) {
  uint32_t elements = o->m->vlenb >> o->sew;
  return o->lmul >= 0 ? elements << o->lmul : elements >> -o->lmul;
}
/* Registers of a group. */
static inline uint32_t group(int lmul) { return lmul > 0 ? 1u << lmul : 1; }
static inline bool fits(uint32_t number, int lmul) { return lmul <= 3 && lmul >= -3 && number % group(lmul) == 0; }
static inline bool overlap(uint32_t a, uint32_t count_a, uint32_t b, uint32_t count_b) {
  return a < b + count_b && b < a + count_a;
}
static inline void count_beats(const vop *o, uint32_t element_bytes) {
  *o->beats += (o->vl * element_bytes + o->m->vlenb - 1) / o->m->vlenb;
}
static inline uint64_t get_element(const uint8_t *at, uint32_t sew, uint32_t i) {
  switch (sew) {
    case 0:
      return at[i];
    case 1:
      return ((const u16 *)at)[i];
    case 2:
      return ((const u32 *)at)[i];
    default:
      return ((const u64 *)at)[i];
  }
}
static inline void set_element(uint8_t *at, uint32_t sew, uint32_t i, uint64_t value) {
  switch (sew) {
    case 0:
      at[i] = (uint8_t)value;
      break;
    case 1:
      ((u16 *)at)[i] = (uint16_t)value;
      break;
    case 2:
      ((u32 *)at)[i] = (uint32_t)value;
      break;
    default:
      ((u64 *)at)[i] = value;
      break;
  }
}
static inline uint64_t sign_extend(uint64_t value, uint32_t sew) {
  int unused = 64 - (8 << sew);
  return (uint64_t)((int64_t)(value << unused) >> unused);
}

/* Every function below gives ISS_OK or a fault. */
bool vop_active(const vop *o, uint32_t i); /* whether the mask has element i */
bool vop_destination(const vop *o, uint32_t vd, int lmul);
bool vop_operand(const vop *o, uint32_t vs, int lmul, int lmul_vd);
bool vop_scalar_float(const vop *o, uint64_t *bits);
void vop_active_bytes(const vop *o, uint8_t *active);
int vector_memory(vop *o);                                /* vector_memory.c */
int vector_elements(vop *o, const voperation *operation); /* vector_elements.c */
int vector_reduce(vop *o);                                /* vector_reduce.c */
int vector_float_reduce(vop *o);
int vector_mask_logic(vop *o); /* vector_mask.c */
int vector_mask_unary(vop *o);
int vector_mask_to_integer(vop *o);
int vector_slide(vop *o); /* vector_permute.c */
int vector_gather(vop *o);
int vector_compress(vop *o);
int vector_merge(vop *o);
int vector_move_registers(vop *o);
int vector_extend(vop *o);
int vector_move_scalar(vop *o);

#endif
