// Our kernels at PrivateUse1, and which ops go the boxed route: read from the dispatcher itself, which knows what this
// torch has and what the CPU can do.
#include <ATen/SparseCsrTensorUtils.h>
#include <c10/core/DeviceGuard.h>

#include <deque>
#include <optional>
#include <string_view>

#include "aten/kernel_call.h"
#include "aten/own_kernels.h"
#include "aten/route.h"

namespace bringup {
namespace {

using c10::DispatchKey;

// ---- what the dispatcher keeps but does not show: who registered a kernel, and kernels behind the newest ----
//
// PyTorch's own C++ meta kernels stand behind Python ones that `import torch` puts in front of many of them. Those cost
// 60 µs for an add (the C++ ones 2) and word their errors differently from the CPU's. All are in
// OperatorEntry::kernels_, newest first; an explicit instantiation may name a private member, and that is how it is
// reached. The same in torch 2.11 to 2.15.

template <class Tag, auto member>
struct Reach {
  friend constexpr auto reach(Tag) { return member; }
};
struct Definition {
  friend constexpr auto reach(Definition);
};
struct Registered {
  friend constexpr auto reach(Registered);
};
template struct Reach<Definition, &c10::OperatorHandle::operatorDef_>;
template struct Reach<Registered, &c10::impl::OperatorEntry::kernels_>;

// The kernels of an op at a key; nullptr if there is none.
const auto* kernels_at(const c10::OperatorHandle& op, DispatchKey key) {
  const auto& kernels = (op.*reach(Definition()))->op.*reach(Registered());
  const auto found = kernels.find(key);
  return found == kernels.end() || found->second.empty() ? nullptr : &found->second;
}

// ---- our kernels ----

struct OwnKernel {
  c10::KernelFunction kernel;
  std::optional<c10::RegistrationHandleRAII> registration;
};
std::map<std::string, OwnKernel>& own_kernels() { // never destroyed: the dispatcher may be gone before us
  static auto* kernels = new std::map<std::string, OwnKernel>();
  return *kernels;
}

void enter(const c10::OperatorName& name, OwnKernel& own) {
  own.registration.reset();
  own.registration.emplace(c10::Dispatcher::singleton().registerImpl(name, DispatchKey::PrivateUse1, own.kernel,
                                                                     std::nullopt, nullptr, kOwnKernel));
}

// ---- which ops go to the CPU's kernels ----

// Where the CPU has a kernel of its own, a composite one would hide it, and the ledger would see only its parts.
bool hidden_by_composite(const c10::OperatorHandle& op) {
  if (!op.hasKernelForDispatchKey(DispatchKey::CPU)) {
    // foreach ops have only a composite loop: running that loop inside one call saves a dispatch per tensor.
    return op.schema().name().rfind("aten::_foreach_", 0) == 0 &&
           op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
  }
  // Not CompositeImplicit: its kernel is also the op's autograd formula, which a backend kernel would switch off.
  return op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
}

bool returns_view(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  return false;
}

// These run on the device by composition of other ops, and their CPU kernels would undo that or draw CPU numbers.
bool keeps_composite(const std::string& name) { return name == "aten::convolution" || name == "aten::copy"; }

void refuse(const c10::OperatorHandle& op, const char* tensors, const char* advice) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, toString(op.operator_name()), ": ", tensors, " cannot live on ",
                              Registry::get().type_name, " devices; ", advice);
}
void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse(op, "quantized tensors", "dequantize() first, or keep the tensor on the CPU");
}
void refuse_nested(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse(op, "nested tensors (strided layout)", "use layout=torch.jagged or pad them");
}

} // namespace

bool has_foreign_kernel(const c10::OperatorHandle& op) {
  const auto* kernels = kernels_at(op, DispatchKey::PrivateUse1);
  return kernels && kernels->front().debug != kOwnKernel;
}

c10::KernelFunction first_kernel(const c10::OperatorHandle& op, DispatchKey key) {
  const auto* kernels = kernels_at(op, key);
  return kernels ? kernels->back().kernel : c10::KernelFunction();
}

bool has_quick_meta_kernel(const c10::OperatorHandle& op) {
  const auto* kernels = kernels_at(op, DispatchKey::Meta);
  return kernels && kernels->back().debug.find(".py:") == std::string::npos;
}

c10::OperatorHandle find_op(const std::string& full) {
  const size_t dot = full.find('.');
  const auto found = c10::Dispatcher::singleton().findSchema(
      {full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1)});
  TORCH_CHECK_VALUE(found, "there is no op ", full, " in this PyTorch");
  return *found;
}

void own_kernel(const std::string& name, c10::KernelFunction kernel, const char* route) {
  own_kernels()[name].kernel = std::move(kernel);
  registered_routes()[name] = route;
}

ReplacedKernel replace_own_kernel(const c10::OperatorHandle& op, c10::KernelFunction kernel, const char* route) {
  const std::string name = toString(op.operator_name());
  OwnKernel& own = own_kernels()[name];
  ReplacedKernel earlier{std::exchange(own.kernel, std::move(kernel)), std::exchange(registered_routes()[name], route)};
  enter(op.operator_name(), own);
  return earlier;
}

std::map<std::string, std::string>& registered_routes() {
  static auto* routes = new std::map<std::string, std::string>();
  return *routes;
}

bool runs_whole(const std::string& overload) {
  return overload == "aten::mode.values" || overload == "aten::conj_physical_" || overload == "aten::mv";
}

namespace {

void keep(c10::RegistrationHandleRAII registration) { // for good: the dispatcher may be gone before us
  static auto* kept = new std::deque<c10::RegistrationHandleRAII>();
  kept->push_back(std::move(registration));
}

// Each looks at every op of the dispatcher: 2 ms.
void fallback(DispatchKey key, c10::KernelFunction kernel) {
  keep(c10::Dispatcher::singleton().registerFallback(key, std::move(kernel), kOwnKernel));
}

// The CPU's kernels of these ask nothing of a device but memory: they serve ours as they are.
constexpr const char* kViews[] = {
    "aten::view",         "aten::as_strided",      "aten::_reshape_alias",     "aten::unfold",
    "aten::view_as_real", "aten::view_as_complex", "aten::set_.source_Tensor", "aten::set_.source_Storage"};
constexpr std::string_view kSparseMembers =
    " _indices _values indices values sparse_dim dense_dim _dimI _dimV _nnz is_coalesced _coalesced_ crow_indices"
    " col_indices ccol_indices row_indices copy_ sparse_resize_ sparse_resize_and_clear_ copy_sparse_to_sparse_ ";

// A constructor of sparse tensors: ATen's own, which asks nothing of a device but memory. It runs with its device
// argument as the current device: members are made on that.
struct SparseConstructor final : c10::OperatorKernel {
  explicit SparseConstructor(c10::KernelFunction kernel) : kernel(std::move(kernel)) {}
  const c10::KernelFunction kernel;

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    c10::Device device(kDeviceType, current_device());
    for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); ++i)
      if ((*stack)[i].isDevice()) device = (*stack)[i].toDevice();
    const c10::DeviceGuard guard(device);
    kernel.callBoxed(op, keys, stack);
    const at::Tensor& made = stack->back().toTensor();
    if (!at::sparse_csr::is_sparse_compressed(made)) return;
    // ATen leaves the indices as the allocator gives them, and its kernels read and write wherever they say: to_dense()
    // of such a tensor ends the process. Zeros are in bounds, and say that every row is empty.
    const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(made);
    compressed.zero_();
    plain.zero_();
  }
};

void add(const c10::OperatorHandle& op, DispatchKey key, c10::KernelFunction kernel) {
  keep(c10::Dispatcher::singleton().registerImpl(op.operator_name(), key, std::move(kernel), std::nullopt, nullptr,
                                                 kOwnKernel));
}

void register_sparse_constructor(const char* name, DispatchKey ours, DispatchKey theirs) {
  const auto op = find_op(name);
  auto kernel = std::make_unique<SparseConstructor>(first_kernel(op, theirs));
  add(op, ours, c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel)));
}

// Calls function(op, name) for each op of ATen.
template <typename Function>
void for_each_op(Function function) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findOp(name);
    if (op && op->hasSchema()) function(*op, toString(name));
  }
}

} // namespace

void register_library_ops() {
  own_copies();
  own_neural_ops();
  for (const char* view : kViews) own_kernel(view, first_kernel(find_op(view), DispatchKey::CPU));
  using Key = DispatchKey;
  register_sparse_constructor("aten::_sparse_coo_tensor_with_dims", Key::SparsePrivateUse1, Key::SparseCPU);
  register_sparse_constructor("aten::_sparse_coo_tensor_with_dims_and_tensors", Key::SparsePrivateUse1, Key::SparseCPU);
  register_sparse_constructor("aten::empty.memory_format", Key::SparsePrivateUse1, Key::SparseCPU);
  register_sparse_constructor("aten::empty.memory_format", Key::SparseCsrPrivateUse1, Key::SparseCsrCPU);
  register_sparse_constructor("aten::_sparse_compressed_tensor_with_dims", Key::SparseCsrPrivateUse1,
                              Key::CompositeExplicitAutograd);
  fallback(DispatchKey::PrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&route>());
  fallback(DispatchKey::QuantizedPrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&refuse_quantized>());
  fallback(DispatchKey::NestedTensorPrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&refuse_nested>());
  for_each_op([&](const c10::OperatorHandle& op, const std::string& full) {
    if (op.hasKernelForDispatchKey(DispatchKey::PrivateUse1)) registered_routes().try_emplace(full, "native");
    if (registered_routes().count(full) > 0) return;
    if (returns_view(op.schema())) return; // a copy would come back: such ops are written by hand
    if ((hidden_by_composite(op) && !keeps_composite(op.schema().name())) || runs_whole(full))
      own_kernel(full, c10::KernelFunction::makeFromBoxedFunction<&route>(), "library");
  });
  for (auto& [name, own] : own_kernels()) enter(find_op(name).operator_name(), own);
}

void register_sparse_ops() {
  fallback(DispatchKey::SparsePrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&route>());
  fallback(DispatchKey::SparseCsrPrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&route>());
  for_each_op([&](const c10::OperatorHandle& op, const std::string& full) {
    if (op.hasKernelForDispatchKey(DispatchKey::NestedTensorCPU) && // linear: its composite never meets the fallback
        op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd))
      add(op, DispatchKey::NestedTensorPrivateUse1, c10::KernelFunction::makeFromBoxedFunction<&refuse_nested>());
    const bool member = kSparseMembers.find(" " + full.substr(strlen("aten::")) + " ") != std::string_view::npos;
    if (returns_view(op.schema()) && !member) return;
    for (const auto& [ours, cpu] : {std::pair(DispatchKey::SparsePrivateUse1, DispatchKey::SparseCPU),
                                    std::pair(DispatchKey::SparseCsrPrivateUse1, DispatchKey::SparseCsrCPU)})
      if (!op.hasKernelForDispatchKey(ours) && op.hasKernelForDispatchKey(cpu))
        add(op, ours, member ? first_kernel(op, cpu) : c10::KernelFunction::makeFromBoxedFunction<&route>());
  });
}

} // namespace bringup
