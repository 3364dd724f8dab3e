// Ops on compiled kernels: a signature that is known is launched from here, one that is not goes to Python once.
#include "aten/kernel_call.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorAdvancedIndexingUtils.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/masked_fill.h>
#include <c10/util/strides.h>

#include <map>

#include "aten/launch.h"
#include "aten/own_kernels.h"
#include "aten/route.h"

namespace bringup {
namespace {

using at::MemOverlapStatus;
using c10::DispatchKey;
using torch::jit::Stack;

struct Kernels {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<KernelOp>> ops;
  std::shared_ptr<const Resolver> resolver; // read and written with std::atomic_*
};
Kernels& kernels() {
  static auto* kernels = new Kernels();
  return *kernels;
}

thread_local bool t_resolving = false;         // the resolver runs on this thread: what it calls takes the old route
thread_local const KernelOp* t_form = nullptr; // whose functional form runs on this thread
struct Form {
  explicit Form(const KernelOp& op) : outer(std::exchange(t_form, &op)) {}
  ~Form() { t_form = outer; }
  const KernelOp* outer;
};

// ---- calls that no kernel serves ----

void fall_through(KernelOp& op, Device& device, c10::DispatchKeySet keys, Stack* stack, const char* reason) {
  const NamedWork named(op.record.name.c_str());
  const bool kernels = translated([&] { return device.runs_kernels(); });
  if (op.earlier.isValid() && (op.earlier_is_native || !kernels)) return op.earlier.callBoxed(op.handle, keys, stack);
  // An op that is only a composition stays one, so that its parts may run on the device.
  if (kernels && !op.handle.hasKernelForDispatchKey(DispatchKey::CPU) && !runs_whole(op.record.name))
    for (DispatchKey composite : {DispatchKey::CompositeExplicitAutogradNonFunctional,
                                  DispatchKey::CompositeExplicitAutograd, DispatchKey::CompositeImplicitAutograd})
      if (op.handle.hasKernelForDispatchKey(composite)) return op.handle.callBoxedForDispatchKey(composite, *stack);
  const Refusal refusal(reason);
  route_dense(op.handle, stack);
}

// ---- arguments that are written ----

bool same_geometry(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type();
}

// Whether an input shares memory with an output in a way that the plan cannot stand; PyTorch's error if nothing can.
bool clash(const KernelOp& op, const Plan& plan, const at::Tensor& output, const at::Tensor& input) {
  const bool pointwise = plan.flags & Plan::kPointwise;
  const auto status = at::get_overlap_status(output, input);
  if (status == MemOverlapStatus::No || (pointwise && same_geometry(output, input))) return false;
  if (plan.flags & Plan::kApart) at::assert_no_overlap(output, input);
  if (pointwise) at::assert_no_partial_overlap(output, input);
  if (op.functional) return true;
  if (status != MemOverlapStatus::TooHard) at::assert_no_overlap(output, input);
  return false;
}

bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

// The same for the many tensors of a foreach op: in the order of their addresses only neighbours can meet. Pair by pair
// an optimizer's step over 1,500 parameters of one buffer took 3 s.
bool any_clash(const KernelOp& op, const Signature& call, const Plan& plan) {
  struct Range {
    const char *begin, *end;
    const at::Tensor* tensor;
    bool written;
  };
  std::vector<bool> written(call.tensors.size());
  for (uint32_t slot : call.mutated) written[slot] = true;
  std::vector<Range> ranges;
  for (size_t slot = 0; slot < call.tensors.size(); ++slot) {
    const at::Tensor& tensor = *call.tensors[slot];
    const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
    const size_t nbytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
    if (nbytes > 0) ranges.push_back({begin, begin + nbytes, &tensor, written[slot]});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < ranges.size(); ++i)
    for (size_t j = i + 1; j < ranges.size() && ranges[j].begin < ranges[i].end; ++j) {
      if (ranges[i].written == ranges[j].written || !share_storage(*ranges[i].tensor, *ranges[j].tensor)) continue;
      const auto& [output, input] = ranges[i].written ? std::pair(i, j) : std::pair(j, i);
      if (clash(op, plan, *ranges[output].tensor, *ranges[input].tensor)) return true;
    }
  return false;
}

bool overlaps(const KernelOp& op, const Signature& call, const Plan& plan) {
  if (call.mutated.size() * call.tensors.size() > 256) return any_clash(op, call, plan);
  for (uint32_t slot : call.mutated)
    for (size_t other = 0; other < call.tensors.size(); ++other) {
      if (C10_LIKELY(other == slot || !share_storage(*call.tensors[slot], *call.tensors[other]))) continue;
      if (std::find(call.mutated.begin(), call.mutated.end(), other) != call.mutated.end()) continue;
      if (clash(op, plan, *call.tensors[slot], *call.tensors[other])) return true;
    }
  return false;
}

void resize(const at::Tensor& tensor, const OutputSpec& spec, bool warn) {
  if (warn) at::native::resize_output_check(tensor, spec.sizes);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const size_t nbytes =
      at::detail::computeStorageNbytes(spec.sizes, spec.strides, impl->itemsize(), impl->storage_offset());
  if (impl->storage().nbytes() < nbytes) resize_storage(impl->storage(), nbytes);
  impl->set_sizes_and_strides(spec.sizes, spec.strides);
}

void run_functional(KernelOp& op, const Signature& call, const Stack& stack, bool same_dtype) {
  Stack inner;
  const auto& arguments = op.record.schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (!arguments[i].is_out()) inner.push_back(stack[call.first + i]);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  {
    const Form form(op);
    op.functional->redispatchBoxed(c10::DispatchKeySet(DispatchKey::PrivateUse1), &inner);
  }
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : inner)
    each_tensor(value, [&](const at::Tensor& result) { results.push_back(result); });
  // Before out= tensors come those that both forms write in place (running statistics).
  size_t next = call.mutated.size() - std::min(call.mutated.size(), results.size());
  for (size_t i = 0; next < call.mutated.size(); ++i) {
    at::Tensor target = *call.tensors[call.mutated[next++]];
    TORCH_CHECK(!same_dtype || target.scalar_type() == results[i].scalar_type(), op.record.name,
                ": expected out tensor to have dtype ", results[i].scalar_type(), ", but got ", target.scalar_type());
    if (target.sizes() != results[i].sizes()) {
      const auto strides = c10::contiguous_strides(results[i].sizes());
      resize(target, {target.scalar_type(), results[i].sizes().vec(), {strides.begin(), strides.end()}}, /*warn=*/true);
    }
    at::_ops::copy_::redispatch(c10::DispatchKeySet(DispatchKey::PrivateUse1), target, results[i], false);
  }
}

// ---- masks among indices: PyTorch's own expansion, by nonzero(), and its shortcut for x[mask] = number ----

// Puts integers in the place of masks on the stack (the host waits for their number). True if that is not needed: the
// call put one number where a mask holds, and its result is on the stack.
bool expand_masks(const KernelOp& op, Stack* stack) {
  auto argument = [&](size_t position) -> c10::IValue& {
    return (*stack)[stack->size() - op.rules.arguments.size() + position];
  };
  c10::IValue& list = argument(1);
  bool masks = false;
  for (const c10::IValue& index : list.toListRef())
    masks |= index.isTensor() && index.toTensor().defined() &&
             (index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte);
  const at::Tensor self = argument(0).toTensor();
  if (!masks || self.device().type() != kDeviceType || !device_at(self.device().index()).runs_kernels()) return false;

  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto indices = map_tensors(list, [](const at::Tensor& index) { return index; }).toOptionalTensorList();
  TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(), "too many indices for tensor of dimension ",
                    self.dim(), " (got ", indices.size(), ")");
  const bool puts = op.rules.arguments.size() > 3 && !op.record.schema.arguments().back().is_out();
  if (puts && !argument(3).toBool()) { // accumulate
    const at::Tensor value = argument(2).toTensor();
    if (const auto [fits, mask] = at::native::canDispatchToMaskedFill(self, indices, value); fits) {
      const at::Scalar number = value.item();
      const at::Tensor result = op.in_place ? self.masked_fill_(mask, number) : self.masked_fill(mask, number);
      torch::jit::drop(*stack, op.rules.arguments.size());
      stack->push_back(result);
      return true;
    }
  }
  list = at::native::toListOfOptionalTensors(at::native::expandTensors(self, indices, /*ensure_same_device=*/true));
  return false;
}

// ---- launching ----

using Outputs = c10::SmallVector<at::Tensor, 4>; // undefined where nothing is computed

void launch(const KernelOp& op, Device& device, const Signature& call, const Plan& plan, const Outputs& outputs) {
  c10::SmallVector<PhiloxState, 1> draws;
  if (plan.flags & Plan::kRandom) {
    std::optional<at::Generator> given;
    if (call.generator && call.generator->isGenerator()) given = call.generator->toGenerator();
    draws.push_back(generator_for(given, call.device).reserve());
  }
  launch_plan(op.record.name.c_str(), device, plan, {call.device, call.tensors, call.numbers, outputs, draws});
}

void run(KernelOp& op, Device& device, const Signature& call, const BoundPlan& bound, Stack* stack, bool known) {
  for (const auto& [slot, spec] : bound.resizes) resize(*call.tensors[slot], spec, /*warn=*/known); // else meta did
  const bool functional = !call.mutated.empty() && (overlaps(op, call, *bound.plan) || bound.functional);
  Outputs outputs;
  for (const auto& result : bound.results) {
    if (result.constant) outputs.emplace_back();
    for (const OutputSpec& spec : result.tensors)
      outputs.push_back(spec.slot >= 0 ? *call.tensors[spec.slot] : new_tensor(call.device, spec));
  }
  if (C10_UNLIKELY(functional))
    run_functional(op, call, *stack, bound.same_dtype);
  else
    launch(op, device, call, *bound.plan, outputs);

  torch::jit::drop(*stack, op.rules.arguments.size());
  size_t next = 0;
  for (const auto& result : bound.results) {
    if (result.constant) {
      stack->push_back(*result.constant);
      ++next;
    } else if (result.count < 0) {
      stack->emplace_back(std::move(outputs[next++]));
    } else {
      c10::List<at::Tensor> list;
      for (int i = 0; i < result.count; ++i) list.push_back(std::move(outputs[next++]));
      stack->emplace_back(std::move(list));
    }
  }
}

SharedPlan make_plan(KernelOp& op, const Signature& call, const Stack& stack) {
  const auto resolver = std::atomic_load(&kernels().resolver);
  if (!resolver || t_resolving) return nullptr;
  op.misses.fetch_add(1, std::memory_order_relaxed);
  return op.cache.find_or_make(call, [&] {
    struct Resolving {
      Resolving() { t_resolving = true; }
      ~Resolving() { t_resolving = false; }
    } resolving;
    return resolve_plan(*resolver, op, call, stack);
  });
}

struct KernelRoute final : c10::OperatorKernel {
  explicit KernelRoute(KernelOp& op) : op(op) {}
  KernelOp& op;

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet keys, Stack* stack) {
    if (C10_UNLIKELY(op.takes_masks) && expand_masks(op, stack)) return;
    Signature call;
    const auto fit = call.read(op.rules, stack);
    Device& device = device_at(call.device);
    if (C10_UNLIKELY(!translated([&] { return device.runs_kernels(); }) || fit == Signature::Fit::other_route))
      return fall_through(op, device, keys, stack, "kernels take dense tensors and plain numbers");
    if (C10_UNLIKELY(fit == Signature::Fit::mixed)) {
      if (!op.earlier_is_native) mixed_devices(op.record.name.c_str(), call.device, call.stranger);
      return op.earlier.callBoxed(op.handle, keys, stack); // copies go between devices
    }
    SharedPlan plan = op.cache.find(call);
    const bool known = plan != nullptr;
    if (C10_LIKELY(known)) {
      op.hits.fetch_add(1, std::memory_order_relaxed);
      if (C10_UNLIKELY(!plan->vouches_for(call))) check_numbers(op, call, *stack, *plan);
    } else {
      plan = make_plan(op, call, *stack);
    }
    // A functional form without a kernel may be a composition of this very form: huber_loss_backward.
    if (C10_UNLIKELY(!plan || plan->refused() || (plan->functional && t_form == &op)))
      return fall_through(op, device, keys, stack, plan && plan->plan ? plan->plan->reason.c_str() : "");
    run(op, device, call, *plan, stack, known);
  }
};

} // namespace

KernelOp::KernelOp(c10::OperatorHandle op, std::optional<c10::OperatorHandle> functional_form)
    : handle(op),
      functional(functional_form),
      record(op_record(op.schema())),
      rules(record),
      meta(first_kernel(op, DispatchKey::Meta)),
      has_quick_meta(has_quick_meta_kernel(op)) {
  const auto& arguments = record.schema.arguments();
  takes_masks = arguments.size() > 1 && arguments[1].type()->isSubtypeOf(*c10::ListType::ofOptionalTensors());
  size_t inputs = 0;
  for (size_t i = 0; i < rules.arguments.size(); ++i) {
    const bool is_out = arguments[i].is_out();
    in_place |= record.mutated[i] && !is_out;
    inputs += !is_out;
  }
  TORCH_CHECK_VALUE(!functional || functional->schema().arguments().size() == inputs,
                    "register_kernels: ", toString(functional->operator_name()), " does not take the arguments of ",
                    record.name);
  TORCH_CHECK_VALUE(!record.returns_view, "register_kernels: ", record.name, " returns a view");
}

void register_kernel(const std::string& overload, const std::string& functional, bool own_outputs) {
  std::lock_guard<std::mutex> lock(kernels().mutex);
  const c10::OperatorHandle handle = find_op(overload);
  if (kernels().ops.count(overload) || has_foreign_kernel(handle)) return; // what a user registers counts
  auto op = std::make_unique<KernelOp>(handle, functional.empty() ? std::nullopt : std::optional(find_op(functional)));
  op->own_outputs = own_outputs;
  auto [earlier, route] = replace_own_kernel(
      handle, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<KernelRoute>(*op)), "kernel");
  op->earlier = std::move(earlier);
  op->earlier_is_native = op->earlier.isValid() && route != "library";
  kernels().ops.emplace(overload, std::move(op));
}

void set_kernel_resolver(Resolver resolver) {
  std::atomic_store(&kernels().resolver, resolver ? std::make_shared<const Resolver>(std::move(resolver)) : nullptr);
}

std::map<std::string, uint64_t> kernel_cache_info() {
  std::lock_guard<std::mutex> lock(kernels().mutex);
  std::map<std::string, uint64_t> info{{"entries", 0}, {"hits", 0}, {"misses", 0}, {"plans", 0}, {"refused", 0}};
  for (auto& [name, op] : kernels().ops) {
    op->cache.add_to(info);
    info["hits"] += op->hits.load();
    info["misses"] += op->misses.load();
  }
  return info;
}

void kernel_cache_clear() {
  std::lock_guard<std::mutex> lock(kernels().mutex);
  for (auto& [name, op] : kernels().ops) {
    op->cache.clear();
    op->hits = op->misses = 0;
  }
}

} // namespace bringup
