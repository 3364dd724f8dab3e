/* The chip's one-cycle instructions that C has no operator for: products of two bytes, counts of bits.
 *
 * A product's name says which byte of each operand is taken (l: bits 0-7, h: bits 8-15) and whether it is signed.
 */
#ifndef BRINGUP_DPU_BUILTINS_H
#define BRINGUP_DPU_BUILTINS_H

#include <stdint.h>

#define BRINGUP_SL(x) ((int32_t)(int8_t)(x))
#define BRINGUP_SH(x) ((int32_t)(int8_t)((uint32_t)(x) >> 8))
#define BRINGUP_UL(x) ((int32_t)(uint8_t)(x))
#define BRINGUP_UH(x) ((int32_t)(uint8_t)((uint32_t)(x) >> 8))

#ifdef __riscv
/* rv32i has no multiplier, so that products by software can be told from these: an addition stands for the cycle. */
int32_t __bringup_byte_product(int32_t a, int32_t b);
#define BRINGUP_BYTES(a, b) __bringup_byte_product(a, b)
#else
#define BRINGUP_BYTES(a, b) ((a) * (b))
#endif

#define __builtin_mul_sl_sl_rrr(rc, ra, rb) ((rc) = BRINGUP_BYTES(BRINGUP_SL(ra), BRINGUP_SL(rb)))
#define __builtin_mul_sl_sh_rrr(rc, ra, rb) ((rc) = BRINGUP_BYTES(BRINGUP_SL(ra), BRINGUP_SH(rb)))
#define __builtin_mul_sh_sl_rrr(rc, ra, rb) ((rc) = BRINGUP_BYTES(BRINGUP_SH(ra), BRINGUP_SL(rb)))
#define __builtin_mul_sh_sh_rrr(rc, ra, rb) ((rc) = BRINGUP_BYTES(BRINGUP_SH(ra), BRINGUP_SH(rb)))
#define __builtin_mul_ul_ul_rrr(rc, ra, rb) ((rc) = BRINGUP_BYTES(BRINGUP_UL(ra), BRINGUP_UL(rb)))
#define __builtin_mul_ul_uh_rrr(rc, ra, rb) ((rc) = BRINGUP_BYTES(BRINGUP_UL(ra), BRINGUP_UH(rb)))
#define __builtin_mul_uh_ul_rrr(rc, ra, rb) ((rc) = BRINGUP_BYTES(BRINGUP_UH(ra), BRINGUP_UL(rb)))
#define __builtin_mul_uh_uh_rrr(rc, ra, rb) ((rc) = BRINGUP_BYTES(BRINGUP_UH(ra), BRINGUP_UH(rb)))
#define __builtin_mul_sl_ul_rrr(rc, ra, rb) ((rc) = BRINGUP_BYTES(BRINGUP_SL(ra), BRINGUP_UL(rb)))
#define __builtin_mul_sh_ul_rrr(rc, ra, rb) ((rc) = BRINGUP_BYTES(BRINGUP_SH(ra), BRINGUP_UL(rb)))
#define __builtin_mul_sl_uh_rrr(rc, ra, rb) ((rc) = BRINGUP_BYTES(BRINGUP_SL(ra), BRINGUP_UH(rb)))
#define __builtin_mul_sh_uh_rrr(rc, ra, rb) ((rc) = BRINGUP_BYTES(BRINGUP_SH(ra), BRINGUP_UH(rb)))

/* A 1 in each byte that is the same in both. */
static inline uint32_t __bringup_same_bytes(uint32_t a, uint32_t b) {
  uint32_t differ = a ^ b, same = 0;
  for (int i = 0; i < 32; i += 8) same |= (uint32_t)!(differ >> i & 0xff) << i;
  return same;
}
#define __builtin_cmpb4_rrr(rc, ra, rb) ((rc) = __bringup_same_bytes((ra), (rb)))

#endif
