/* Operations of decoded instructions, by number; ops.inc lists them. */
#ifndef BRINGUP_ISS_OPS_H
#define BRINGUP_ISS_OPS_H

enum iss_counted { ISS_PLAIN = 0, ISS_LOADS = 1, ISS_STORES = 2, ISS_VECTOR = 4 };

enum iss_op {
#define OP(name, counted) ISS_OP_##name,
#include "ops.inc"
#undef OP
  ISS_OP_COUNT
};

#endif
