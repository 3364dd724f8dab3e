// The fallback ledger: every op that left the device for the CPU, with what it cost, and the policy that allows it.
#pragma once

#include <ATen/core/function_schema.h>

#include <functional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace bringup {

// What the core knows of one overload; made on its first call, never freed.
struct OpRecord {
  explicit OpRecord(const c10::FunctionSchema& schema);

  const c10::FunctionSchema schema; // a copy: custom ops can be freed, and their address used again
  bool describes(const c10::FunctionSchema& other) const {
    return other.arguments().size() == schema.arguments().size() && other.name() == base_name &&
           other.overload_name() == schema.overload_name();
  }
  std::string base_name;              // aten::add
  std::string name;                   // aten::add.Tensor
  std::vector<bool> mutated;          // per argument
  std::vector<int> returned_argument; // per return: the argument it is, or -1
  bool is_aten = false;               // its CPU kernel is PyTorch's own, no user code
  bool returns_view = false; // a non-write alias: the plain fallback would lose it (rule: views are never routed)
  bool shows_requires_grad = false; // its kernel computes more when a gradient will be asked for
  // One bit per argument. Elsewhere a CPU tensor may only stand for a number (0-dim), and only where it is not written.
  uint64_t from_cpu = 0;    // lengths and indices that PyTorch itself accepts on the CPU
  uint64_t device_only = 0; // what it takes from the device alone, numbers too
};

OpRecord& op_record(const c10::FunctionSchema& schema);
std::unordered_map<std::string, int>& special_arguments(); // "aten::index indices" → bits; before the first record

// Why the call that this thread takes to the CPU has no kernel, where one was tried: for the errors that say so.
class Refusal {
 public:
  explicit Refusal(const char* reason); // lives as long as this
  ~Refusal();

 private:
  const char* before_;
};
std::string no_kernel_on(int device); // " has no kernel on sim:0 (the reason)"

// One fallback. The first of an op on a device asks Python, which warns, or raises where the policy forbids it.
class Fallback {
 public:
  Fallback(OpRecord& op, int device);
  void done(uint64_t bytes_moved);

 private:
  OpRecord& op_;
  int device_;
  uint64_t started_;
};

// Called with the op, the device and no_kernel_on(device) by the first fallback, and by the next after ask_again.
void set_fallback_hook(std::function<void(const std::string&, int, const std::string&)> hook);
void ledger_ask_again(); // another policy counts from now on

using LedgerRow = std::tuple<std::string, int, uint64_t, uint64_t, double>; // op, device, calls, bytes, milliseconds
std::vector<LedgerRow> ledger_rows();
void ledger_reset();

} // namespace bringup
