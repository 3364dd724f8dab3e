// Random numbers into a tensor; the ops around them are Python's (bringup/lowering/ops/distributions.py).
#pragma once

#include <ATen/core/Tensor.h>

#include "pytorch/generator.h"

namespace bringup {

// What the elements of a tensor become; `a` and `b` are the distribution's parameters.
struct Drawing {
  enum class What : uint8_t {
    word,        // the 32-bit draw itself
    coin,        // 1 with probability a, else 0
    integer,     // low … low + range - 1; of all 2^64 where the range is 0
    uniform,     // [a, b)
    normal,      // mean a, deviation b
    exponential, // rate a
    cauchy,      // median a, scale b
    geometric    // probability a
  };
  What what;
  PhiloxState state;
  double a, b;
  int64_t low;
  uint64_t range;
};

// Writes the elements in logical order: straight into memory that the host sees, else through a host buffer.
void fill_random(const at::Tensor& self, const Drawing& drawing);

} // namespace bringup
