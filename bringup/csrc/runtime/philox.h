// The definition of bringup's random numbers: Philox4x32-10, counted, so element i never depends on threads or layout.
//
// key = the 64-bit seed; counter = (block low, block high, offset low, offset high). `offset` names the call of the op,
// so two calls never share a counter. Draws, each a pure function of (seed, offset, i):
//   32 bit   u32[i] = lane i & 3 of block i >> 2
//   64 bit   u64[i] = lanes 2 (i & 1) (low half) and 2 (i & 1) + 1 (high half) of block i >> 1
//            = u32[2 i] | u32[2 i + 1] << 32
// Values (x: the 32-bit draw, y: the 64-bit draw of the element), in bringup/lowering/ops: of compiled kernels
// (draws.py) and of the host (host_draws.py):
//   uniform      float32 (x >> 8) 2^-24, float64 (y >> 11) 2^-53: in [0, 1)
//   normal       Box-Muller on pairs: elements 2 k and 2 k + 1 are r cos t and r sin t with r = sqrt(-2 log u),
//                float32: u = unit(x[2 k]), t = 2 pi x[2 k + 1] 2^-32       (|value| <= 6.77)
//                float64: u = ((y[2 k] >> 11) + 1) 2^-53, t = 2 pi (y[2 k + 1] >> 11) 2^-53, both draws of block k
//   exponential  -log u with the same u, at least 2^-25 (float32) or 2^-54 (float64): never 0, never inf
//   bernoulli    x < p 2^32
// unit(x) = float(x) 2^-32 + 2^-33, in (0, 1]. The float32 values are the same bits on every machine: only IEEE
// additions, multiplications and square roots, no libm, no fused multiply-add. The float64 normal and exponential call
// libm's log, sin and cos (last bit may differ between libms).
#pragma once

#include <cstdint>

namespace bringup {

// The 32-bit draws begin … begin + count - 1: any split of a range gives the same. The end must stay below 2^64.
void philox_u32(uint64_t seed, uint64_t offset, uint64_t begin, uint64_t count, uint32_t* out);

} // namespace bringup
