// One op call as the kernel cache sees it: words that must be equal, and beside them tensors and numbers, the data.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "aten/ledger.h"
#include "aten/plan.h"
#include "pytorch/context.h"

namespace bringup {

// How each argument of an op is read; from the schema, once.
struct ArgumentRules {
  enum class Kind : uint8_t { tensor, tensors, number, device, generator, plain };
  struct Argument {
    Kind kind;
    bool mutated;
  };
  explicit ArgumentRules(const OpRecord& record);
  ArgumentRules(std::vector<Argument> arguments) : arguments(std::move(arguments)) {}

  std::vector<Argument> arguments;
  bool numbers_are_keys = false; // no tensor goes in: arange's numbers say how large the output is
  // One bit per argument: indices that PyTorch takes from the CPU are brought to the device; CPU numbers are refused.
  uint64_t from_cpu = 0, device_only = 0;
};

// What PyTorch's meta kernels read beside the arguments, in 10 bits: the default dtype and deterministic algorithms.
int64_t global_state();

class Signature {
 public:
  // Of tensors on a device of ours, or all on the CPU: TorchScript's groups bring those.
  explicit Signature(c10::DeviceType home = kDeviceType) : home_(home) {}

  // Reads the last arguments of the stack, which must not change while this lives.
  enum class Fit { kernel, other_route, mixed };
  Fit read(const ArgumentRules& rules, torch::jit::Stack* stack);

  c10::ArrayRef<int64_t> words() const { return words_; }
  uint64_t hash() const;

  c10::DeviceIndex device = -1;
  c10::Device stranger{c10::kCPU};                // mixed: what does not live on our device
  c10::SmallVector<const at::Tensor*, 8> tensors; // on the device, lists flattened: slot → tensor
  c10::SmallVector<uint32_t, 4> mutated;          // their slots
  c10::SmallVector<Number, 4> numbers;            // scalar slot → value
  const c10::IValue* generator = nullptr;         // None, or a generator
  size_t first = 0;                               // of the arguments, on the stack

 private:
  Fit add_tensor(const at::Tensor& tensor, bool mutated);
  Fit add_number(const c10::IValue& value, bool as_key);
  Fit add_plain(const c10::IValue& value);
  void move_to_device(c10::IValue& value);

  const c10::DeviceType home_;
  c10::SmallVector<int64_t, 48> words_;
};

} // namespace bringup
