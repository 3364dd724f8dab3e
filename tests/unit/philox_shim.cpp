// bringup/csrc/runtime/philox.h under plain C names, for ctypes (test_philox.py). Its file is included, so that the
// functions inside can be measured too.
#include "runtime/philox.cpp"

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
void block(uint64_t seed, uint64_t offset, uint64_t index, uint32_t* out) {
  bringup::fill_u32({seed, offset}, index, 1, out);
}
BRINGUP_SIMD void log_f32(const float* x, uint64_t count, float* out) {
  for (uint64_t i = 0; i < count; ++i) out[i] = bringup::log_f32(x[i]);
}
BRINGUP_SIMD void sincos_f32(const uint32_t* turn, uint64_t count, float* sine, float* cosine) {
  for (uint64_t i = 0; i < count; ++i) bringup::sincos_f32(turn[i], sine[i], cosine[i]);
}
}
