// What one op call launches: made once by Python for a signature, then run without it (documented in _C.pyi).
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace bringup {

// The value of a Scalar, a float or a 0-dim CPU tensor of a call: data of a launch, no part of the cache's key.
struct Number {
  enum class Kind : uint8_t { boolean, integer, real, complex };
  Kind kind = Kind::integer;
  bool tensor = false; // PyTorch wraps a tensor's value around; a Scalar that its type cannot hold is an error
  union {
    int64_t integer = 0; // boolean, integer
    double real;         // real, complex
  };
  double imaginary = 0;

  static Number of(const c10::IValue& value); // bool, int, double, complex
  static Number of(const at::Tensor& cpu);    // 0-dim
  at::Scalar scalar() const;
  bool same(const Number& other) const { return integer == other.integer && imaginary == other.imaginary; } // as bits
  // The 8 bytes of a kernel's argument; `wrap` as for tensors.
  uint64_t bits(c10::ScalarType dtype, bool wrap) const;
};

at::Scalar scalar_at(const void* bytes, c10::ScalarType type);

struct Guard {
  enum class Relation : uint8_t { eq, ne, lt, ge, gt, le }; // every second one is "not the one before", also of NaN
  uint32_t number;
  Relation relation;
  Number value;
  bool holds(const Number& given) const;
};

enum class Source : uint8_t { immediate, tensor, output, temporary, number, seed, offset };

struct Patch { // an argument that a call fills in
  uint32_t position;
  Source source;
  uint32_t slot;
  int64_t extra; // bytes from the start; of a number, its scalar type (+ kWrap)
};
constexpr int64_t kWrap = 256;

struct LoadedKernel;
struct Spread; // placement/spread.h

struct KernelLaunch {
  const LoadedKernel* kernel = nullptr;
  uint64_t units = 0;
  double flops = 0, bytes = 0;
  std::vector<uint64_t> args; // immediates in place
  uint32_t address_count = 0; // leading arguments that are addresses
  std::vector<Patch> patches;
  std::shared_ptr<const Spread> spread; // on partitioned memory: how it may be shared out
};

struct OutputSpec {                                   // a new tensor, or an argument
  c10::ScalarType dtype = c10::ScalarType::Undefined; // and no slot: nothing is computed
  std::vector<int64_t> sizes, strides;
  int slot = -1;     // ≥ 0: the tensor argument that this is
  size_t nbytes = 0; // of a new storage; filled in when the plan is bound to a signature
};

struct Plan {
  enum Flags { kPointwise = 1, kRandom = 2, kRefused = 8, kApart = 16 };

  std::vector<KernelLaunch> launches;
  std::vector<uint64_t> temporaries; // bytes of each
  std::vector<Guard> guards;
  int flags = 0;
  std::optional<std::vector<OutputSpec>> outputs; // for ops without a meta kernel
  std::string reason;                             // kRefused: why

  // Every slot exists: a wrong plan is an error here, not a wild address later.
  void check(const char* op, size_t tensors, size_t numbers, size_t outputs) const;
};

} // namespace bringup
