// The fallback ledger: every op that left the device for the CPU, with what it cost, and the policy that allows it.
#pragma once

#include <ATen/core/function_schema.h>

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace bringup {

enum class Policy : int { allow, warn, error };

Policy parse_policy(const std::string& text); // ValueError that lists the three words
const char* policy_name(Policy policy);

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

  // The ledger's rows.
  struct Row {
    uint64_t calls = 0, bytes = 0, nanoseconds = 0;
    std::string stack; // of the first call
  };
  std::map<int, Row> rows; // by device, under the ledger's mutex
  std::atomic<bool> warned{false};

  Policy policy() const;
  std::atomic<int> own_policy{-1}; // -1: the global one
};

OpRecord& op_record(const c10::FunctionSchema& schema);

// Why the call that this thread takes to the CPU has no kernel, where one was tried: for the errors that say so.
class Refusal {
 public:
  explicit Refusal(const char* reason); // lives as long as this
  ~Refusal();

 private:
  const char* before_;
};
std::string no_kernel_on(int device); // " has no kernel on sim:0 (the reason)"

// One fallback. Begins with the policy (warns, or raises an error that names the op) and the first stack.
class Fallback {
 public:
  Fallback(OpRecord& op, int device);
  void done(uint64_t bytes_moved);

 private:
  OpRecord& op_;
  int device_;
  uint64_t started_;
};

struct LedgerRow {
  std::string op, stack;
  uint64_t calls, bytes;
  double milliseconds;
  int device;
};
std::vector<LedgerRow> ledger_rows();
void ledger_reset();
void set_policy(Policy policy);
Policy global_policy();
void set_op_policy(const std::string& op, std::optional<Policy> policy);
std::map<std::string, std::string> op_policies();
// Gives the Python stack as text; called once per op and device.
void set_stack_capture(std::function<std::string()> capture);

} // namespace bringup
