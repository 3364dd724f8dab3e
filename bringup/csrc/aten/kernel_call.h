// Ops on compiled kernels: a signature that is known is launched from here, one that is not goes to Python once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "aten/plan_cache.h"

namespace bringup {

// An overload that compiled kernels may serve; never freed.
struct KernelOp {
  KernelOp(c10::OperatorHandle handle, std::optional<c10::OperatorHandle> functional_form);

  c10::OperatorHandle handle;
  std::optional<c10::OperatorHandle> functional; // of an in-place or out= form: the same op with a new result
  OpRecord& record;
  const ArgumentRules rules;
  bool in_place = false;          // it writes an argument that is no out=
  bool own_outputs = false;       // its lowering describes the outputs, instead of the meta kernel
  bool takes_masks = false;       // its second argument is a list of indices
  c10::KernelFunction earlier;    // our kernel that this one replaced, if there was one
  bool earlier_is_native = false; // and it does the device's own work, not the CPU's
  c10::KernelFunction meta;       // PyTorch's meta kernel of the op itself, if it has one
  const bool has_quick_meta;      // and it is C++
  PlanCache cache;
  std::atomic<uint64_t> hits{0}, misses{0};
};

// PyTorch's own, in C++ where it has one; invalid if there is none.
c10::KernelFunction first_kernel(const c10::OperatorHandle& op, c10::DispatchKey key);
bool has_quick_meta_kernel(const c10::OperatorHandle& op);

// What the resolver gets to see of a call that has no plan yet. `results` is nullptr for an op without a meta kernel.
struct PlanRequest {
  const KernelOp& op;
  const Signature& call;
  const torch::jit::Stack& stack;
  const std::vector<BoundPlan::Result>* results;
  const std::vector<BoundPlan::Resize>& resizes; // out= tensors are shown as they will be
};
using Resolver = std::function<std::shared_ptr<const Plan>(const PlanRequest&)>; // nullptr: no kernel
void set_kernel_resolver(Resolver resolver);

void register_kernel(const std::string& overload, const std::string& functional, bool own_outputs);

// Runs PyTorch's meta kernel, then the resolver, with the user's modes switched off.
SharedPlan resolve_plan(const Resolver& resolver, KernelOp& op, const Signature& call, const torch::jit::Stack& stack);
// Raises PyTorch's error if a known plan is called with numbers that its meta kernel refuses.
void check_numbers(KernelOp& op, const Signature& call, const torch::jit::Stack& stack, const BoundPlan& bound);

// Entries, plans, refused signatures, hits and misses of all ops.
std::map<std::string, uint64_t> kernel_cache_info();
void kernel_cache_clear();

} // namespace bringup
