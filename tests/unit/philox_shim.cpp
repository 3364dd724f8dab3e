// bringup/csrc/runtime/philox.h under plain C names, for ctypes (test_philox.py). Its file is included, so that the
// function inside can be tested with any counter.
#include "runtime/philox.cpp"

extern "C" {
void u32(uint64_t seed, uint64_t offset, uint64_t begin, uint64_t count, uint32_t* out) {
  bringup::philox_u32(seed, offset, begin, count, out);
}
void block(uint64_t seed, uint64_t offset, uint64_t index, uint32_t* out) {
  bringup::fill_blocks(seed, offset, index, 1, out);
}
}
