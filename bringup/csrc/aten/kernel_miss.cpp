// A call with a new signature: PyTorch's meta kernel describes the outputs or says what is wrong; Python plans.
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <limits>

#include "aten/kernel_call.h"
#include "aten/route.h"

namespace bringup {
namespace {

using c10::DispatchKey;

// Neither modes of the user nor transforms see what the core asks on its own account.
class Unseen {
 public:
  ~Unseen() { at::impl::PythonTorchFunctionTLS::set_disabled_state(before_); }

 private:
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::impl::ExcludeDispatchKeyGuard keys_{
      c10::DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::PythonDispatcher,
                           DispatchKey::FuncTorchDynamicLayerFrontMode, DispatchKey::FuncTorchDynamicLayerBackMode,
                           DispatchKey::Functionalize, DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchVmapMode})};
  at::impl::TorchFunctionDisabledState before_ = [] {
    const auto state = at::impl::PythonTorchFunctionTLS::get_disabled_state();
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
    return state;
  }();
};

class MetaCall {
 public:
  MetaCall(KernelOp& op, const Signature& call, const torch::jit::Stack& stack) : op_(op), call_(call) {
    for (const at::Tensor* tensor : call.tensors) stand_ins_.push_back(stand_in(*tensor));
    size_t slot = 0;
    for (size_t i = 0; i < op.rules.arguments.size(); ++i) {
      const c10::IValue& value = stack[call.first + i];
      if (op.rules.arguments[i].kind == ArgumentRules::Kind::device)
        stack_.emplace_back(c10::Device(c10::kMeta));
      else if (op.rules.arguments[i].kind == ArgumentRules::Kind::generator)
        stack_.emplace_back();
      else
        stack_.push_back(map_tensors(value, [&](const at::Tensor& tensor) {
          const bool ours = tensor.defined() && tensor.device().type() == kDeviceType;
          return ours ? stand_ins_[slot++] : tensor; // CPU numbers stay what they are
        }));
    }
  }

  // False where the op has no meta kernel.
  bool run() {
    try {
      const c10::DispatchKeySet keys(DispatchKey::Meta);
      if (op_.meta.isValid())
        op_.meta.callBoxed(op_.handle, keys, &stack_);
      else
        op_.handle.redispatchBoxed(keys, &stack_); // a composite
      return true;
    } catch (const c10::NotImplementedError& error) {
      // The dispatcher's error, or about the arguments: torch 2.15 has argmax of bool say it so, in its meta kernel.
      if (op_.has_quick_meta && error.msg().find("Could not run") == std::string::npos) throw;
      return false;
    } catch (const pybind11::error_already_set& error) {
      // A meta kernel in Python, registered for an out= that it never takes.
      if (!op_.functional || !error.matches(PyExc_TypeError)) throw;
      return false;
    }
  }

  // An in-place form must hold what the functional form returns: meta kernels in Python do not look.
  void check_in_place() {
    op_.functional->redispatchBoxed(c10::DispatchKeySet(DispatchKey::Meta), &stack_);
    if (stack_.size() != 1 || !stack_[0].isTensor()) return;
    const at::Tensor &result = stack_[0].toTensor(), &self = stand_ins_[call_.mutated[0]];
    TORCH_CHECK(result.sizes() == self.sizes(), "output with shape ", self.sizes(),
                " doesn't match the broadcast shape ", result.sizes());
    TORCH_CHECK(c10::canCast(result.scalar_type(), self.scalar_type()), "result type ", result.scalar_type(),
                " can't be cast to the desired output type ", self.scalar_type());
  }

  std::vector<BoundPlan::Result> results() {
    std::vector<BoundPlan::Result> results;
    for (const c10::IValue& value : stack_) {
      BoundPlan::Result& result = results.emplace_back();
      if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) result.tensors.push_back(spec_of(tensor));
        result.count = static_cast<int>(result.tensors.size());
      } else if (value.isTensor() && value.toTensor().defined()) {
        result.tensors.push_back(spec_of(value.toTensor()));
      } else {
        result.constant = value;
      }
    }
    return results;
  }

  std::vector<BoundPlan::Resize> resizes() {
    std::vector<BoundPlan::Resize> resizes;
    for (uint32_t slot : call_.mutated) {
      const at::Tensor& now = stand_ins_[slot];
      if (now.sizes() != call_.tensors[slot]->sizes() || now.strides() != call_.tensors[slot]->strides())
        resizes.push_back({slot, OutputSpec{now.scalar_type(), now.sizes().vec(), now.strides().vec()}});
    }
    return resizes;
  }

 private:
  at::Tensor stand_in(const at::Tensor& tensor) {
    for (size_t slot = 0; slot < stand_ins_.size(); ++slot)
      if (call_.tensors[slot]->is_same(tensor)) return stand_ins_[slot]; // kernels tell in-place use by identity
    at::Tensor made(at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
  }

  OutputSpec spec_of(const at::Tensor& tensor) {
    // What is written comes first: the plan also serves calls whose out= is no input, as this one's may be.
    for (uint32_t slot : call_.mutated)
      if (tensor.is_same(stand_ins_[slot])) return OutputSpec{tensor.scalar_type(), {}, {}, static_cast<int>(slot)};
    for (size_t slot = 0; slot < stand_ins_.size(); ++slot) {
      // A meta kernel may return an argument for one that has the same value; a kernel would write into it.
      if (tensor.is_same(stand_ins_[slot])) return spec_of(at::empty_like(tensor));
      TORCH_CHECK_NOT_IMPLEMENTED(!tensor.storage().is_alias_of(stand_ins_[slot].storage()), op_.record.name,
                                  " returns a view of an argument: no kernel can serve it");
    }
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.is_meta() && tensor.layout() == c10::kStrided, op_.record.name,
                                ": its result is no dense device tensor: no kernel can serve it");
    return OutputSpec{tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec()};
  }

  KernelOp& op_;
  const Signature& call_;
  torch::jit::Stack stack_;
  std::vector<at::Tensor> stand_ins_; // by slot
};

// Values on both sides of every bound that PyTorch has, and between: 0, 1, numbers that name a norm, float32's ends.
constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::array kProbes{-kInfinity, -1e30, -2.0,     -1.0, -0.5, -1e-30, 0.0, 1e-30, 0.5,       0.999999,
                             1.0,        1.5,   1.999999, 2.0,  2.5,  3.0,    3.5, 1e30,  kInfinity, kNan};

// Which probes the meta kernel refuses in the place of each number of a call: asked, so that no list has to be kept.
BoundPlan::Refusals refused_probes(KernelOp& op, const Signature& call, const torch::jit::Stack& stack) {
  BoundPlan::Refusals refused(op.rules.arguments.size());
  torch::jit::Stack varied(stack);
  for (size_t i = 0; i < refused.size(); ++i) {
    const c10::IValue given = varied[call.first + i];
    if (op.rules.arguments[i].kind != ArgumentRules::Kind::number || !(given.isDouble() || given.isInt())) continue;
    for (size_t probe = 0; probe < kProbes.size(); ++probe) {
      const double value = kProbes[probe];
      if (given.isInt() && !(value == std::trunc(value) && std::abs(value) < 1e18)) continue;
      varied[call.first + i] = given.isInt() ? c10::IValue(static_cast<int64_t>(value)) : c10::IValue(value);
      try {
        MetaCall(op, call, varied).run();
      } catch (const std::exception&) {
        refused[i] |= 1U << probe;
      }
    }
    varied[call.first + i] = given;
  }
  return refused;
}

// Whether a call differs from the one that passed in one number, a float between two probes that are not refused.
bool lies_between(const Signature& call, const torch::jit::Stack& stack, const BoundPlan& bound,
                  const BoundPlan::Refusals& refused) {
  size_t different = 0;
  for (size_t slot = 0; slot < bound.passed.size(); ++slot) different += !bound.passed[slot].same(call.numbers[slot]);
  for (size_t i = 0; i < refused.size(); ++i) {
    if (refused[i] == 0) continue;
    if (different > 1 || !stack[call.first + i].isDouble()) return false;
    const double value = stack[call.first + i].toDouble();
    const size_t above = std::upper_bound(kProbes.begin(), kProbes.end() - 1, value) - kProbes.begin(); // NaN: the end
    if (above == 0 || above >= kProbes.size() - 1 || (refused[i] >> (above - 1) & 3) != 0) return false;
  }
  return true;
}

// The outputs that the plan itself describes, for an op that PyTorch has no meta kernel for.
std::vector<BoundPlan::Result> results_of(const KernelOp& op, const Plan& plan) {
  const auto& returns = op.record.schema.returns();
  if (returns.empty()) return {};
  const bool list = returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType;
  TORCH_CHECK_VALUE(plan.outputs && (list || plan.outputs->size() == returns.size()), op.record.name,
                    " has no meta kernel: its plan must say what its ", returns.size(), " outputs are");
  std::vector<BoundPlan::Result> results(returns.size());
  if (list) {
    results[0].tensors = *plan.outputs;
    results[0].count = static_cast<int>(plan.outputs->size());
    return results;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const OutputSpec& spec = (*plan.outputs)[i];
    if (spec.slot < 0 && spec.dtype == c10::ScalarType::Undefined)
      results[i].constant = at::Tensor();
    else
      results[i].tensors.push_back(spec);
  }
  return results;
}

// An out= or in-place form that PyTorch has no meta kernel for: the functional form knows the outputs.
SharedPlan functional_plan(const KernelOp& op, const Signature& call) {
  auto bound = std::make_shared<BoundPlan>();
  bound->plan = std::make_shared<const Plan>();
  bound->functional = true;
  bound->same_dtype = !op.in_place;
  const size_t returns = op.record.schema.returns().size();
  for (size_t i = 0; i < returns; ++i) {
    const uint32_t slot = call.mutated[call.mutated.size() - returns + i]; // out= tensors are the last arguments
    bound->results.emplace_back().tensors.push_back(
        {call.tensors[slot]->scalar_type(), {}, {}, static_cast<int>(slot)});
  }
  return bound;
}

} // namespace

SharedPlan resolve_plan(const Resolver& resolver, KernelOp& op, const Signature& call, const torch::jit::Stack& stack) {
  Unseen unseen;
  auto bound = std::make_shared<BoundPlan>();
  MetaCall meta(op, call, stack);
  const bool by_functional = op.functional && call.mutated.size() >= op.record.schema.returns().size();
  // A form with an undefined out=: the meta kernel refuses it.
  const bool known = !(op.own_outputs && (by_functional || !op.functional)) && meta.run();
  if (op.in_place && op.functional && !op.has_quick_meta && call.mutated.size() == 1)
    MetaCall(op, call, stack).check_in_place();
  if (!known && by_functional) return functional_plan(op, call);
  if (known) {
    bound->results = meta.results();
    bound->resizes = meta.resizes();
  }
  const bool fills = op.record.base_name == "aten::fill_" || op.record.base_name == "aten::zero_"; // twice is once
  for (uint32_t slot : call.mutated) // strides alone decide it
    if (!fills) at::assert_no_internal_overlap(*call.tensors[slot]);
  bound->plan = resolver(PlanRequest{op, call, stack, known ? &bound->results : nullptr, bound->resizes});
  if (!bound->plan) return bound;
  const bool refused = bound->refused();
  bound->passed.assign(call.numbers.begin(), call.numbers.end());
  bound->checks_numbers = known && !refused && !bound->passed.empty();
  if (!known && !refused) bound->results = results_of(op, *bound->plan);
  const int flags = bound->plan->flags;
  bound->functional = op.functional && op.in_place && !(flags & Plan::kPointwise);
  size_t outputs = 0;
  if (refused) bound->results.clear();
  for (auto& result : bound->results) {
    outputs += result.constant ? 1 : result.tensors.size();
    for (OutputSpec& spec : result.tensors) {
      TORCH_CHECK_VALUE(spec.slot < static_cast<int>(call.tensors.size()), op.record.name, ": output ", spec.slot,
                        " is no argument");
      if (spec.slot >= 0) continue;
      check_dtype(device_at(call.device), spec.dtype);
      spec.nbytes = at::detail::computeStorageNbytes(spec.sizes, spec.strides, c10::elementSize(spec.dtype));
    }
  }
  bound->plan->check(op.record.name.c_str(), call.tensors.size(), call.numbers.size(), outputs);
  return bound;
}

void check_numbers(KernelOp& op, const Signature& call, const torch::jit::Stack& stack, const BoundPlan& bound) {
  Unseen unseen;
  auto refused = std::atomic_load(&bound.refusals);
  if (!refused) { // threads that ask at the same time get the same answer
    refused = std::make_shared<const BoundPlan::Refusals>(refused_probes(op, call, stack));
    std::atomic_store(&bound.refusals, refused);
    if (std::ranges::all_of(*refused, [](uint32_t probes) { return probes == 0; })) bound.checks_numbers = false;
  }
  // A meta kernel in C++ takes a microsecond; one in Python takes a thousand, too long for a delta that grows.
  if (bound.checks_numbers && (op.has_quick_meta || !lies_between(call, stack, bound, *refused)))
    MetaCall(op, call, stack).run();
}

} // namespace bringup
