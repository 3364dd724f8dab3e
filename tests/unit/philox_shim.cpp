// bringup/csrc/runtime/philox.h under plain C names, for ctypes (test_philox.py).
#include "runtime/philox.h"

#define RANGE uint64_t seed, uint64_t offset, uint64_t begin, uint64_t count
#define FORWARD(name, type) \
  void name(RANGE, type* out) { bringup::philox_##name(seed, offset, begin, count, out); }

extern "C" {
FORWARD(u32, uint32_t)
FORWARD(u64, uint64_t)
FORWARD(uniform_f32, float)
FORWARD(uniform_f64, double)
FORWARD(normal_f32, float)
FORWARD(normal_f64, double)
FORWARD(exponential_f32, float)
FORWARD(exponential_f64, double)
void bernoulli(RANGE, double p, uint8_t* out) { bringup::philox_bernoulli(seed, offset, begin, count, p, out); }
void block(uint64_t seed, uint64_t offset, uint64_t index, uint32_t* out) {
  bringup::philox_block(seed, offset, index, out);
}
void log_f32(const float* x, uint64_t count, float* out) { bringup::philox_log_f32(x, count, out); }
void sincos_f32(const uint32_t* turn, uint64_t count, float* sine, float* cosine) {
  bringup::philox_sincos_f32(turn, count, sine, cosine);
}
}
