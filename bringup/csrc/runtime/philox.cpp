// Philox in a plain loop over blocks that gcc turns into SIMD, one block per lane. The definition is in philox.h.
#include "runtime/philox.h"

#include <algorithm>
#include <cstring>

#if !defined(BRINGUP_SIMD) && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define BRINGUP_SIMD __attribute__((optimize("O3"), target_clones("avx512f", "avx2", "default")))
#elif !defined(BRINGUP_SIMD) // the test also builds single versions, to compare their bits
#define BRINGUP_SIMD
#endif

namespace bringup {
namespace {

// Writes the draws of the blocks first … first + blocks - 1. Ten rounds stay in registers, one block per SIMD lane.
BRINGUP_SIMD void fill_blocks(uint64_t seed, uint64_t offset, uint64_t first, int32_t blocks,
                              uint32_t* __restrict out) {
  for (int32_t j = 0; j < blocks; ++j) {
    const auto low = static_cast<uint32_t>(first);
    uint32_t c0 = low + static_cast<uint32_t>(j), c1 = static_cast<uint32_t>(first >> 32) + (c0 < low);
    uint32_t c2 = static_cast<uint32_t>(offset), c3 = static_cast<uint32_t>(offset >> 32);
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
      c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
      c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c1 = static_cast<uint32_t>(p1);
      c3 = static_cast<uint32_t>(p0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    const uint32_t lanes[] = {c0, c1, c2, c3};
    for (int lane = 0; lane < 4; ++lane) out[4 * j + lane] = lanes[lane];
  }
}

} // namespace

// Whole blocks in place, the two ends through a buffer.
void philox_u32(uint64_t seed, uint64_t offset, uint64_t begin, uint64_t count, uint32_t* out) {
  constexpr uint64_t most = 1 << 16; // blocks per call
  for (uint64_t used; count > 0; begin += used, count -= used, out += used) {
    const uint64_t skip = begin % 4, whole = std::min(count / 4, most);
    if (skip == 0 && whole > 0) {
      fill_blocks(seed, offset, begin / 4, static_cast<int32_t>(whole), out);
      used = 4 * whole;
    } else {
      uint32_t block[4];
      fill_blocks(seed, offset, begin / 4, 1, block);
      used = std::min(count, 4 - skip);
      std::memcpy(out, block + skip, used * sizeof(uint32_t));
    }
  }
}

} // namespace bringup
