// Which ops go the boxed route, read from the dispatcher itself: it knows what this torch has and what the CPU can do.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <deque>
#include <unordered_set>

#include "aten/own_kernels.h"
#include "aten/route.h"
#include "pytorch/context.h"

namespace bringup {
namespace {

using c10::DispatchKey;

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
bool keeps_composite(const std::string& name) {
  static const std::unordered_set<std::string> ops = {"aten::convolution", "aten::copy"};
  return ops.count(name) > 0;
}

void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, toString(op.operator_name()), ": quantized tensors cannot live on ",
                              Registry::get().type_name, " devices; dequantize() first, or keep the tensor on the CPU");
}

void refuse_nested(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, toString(op.operator_name()), ": nested tensors (strided layout) cannot live on ",
                              Registry::get().type_name, " devices; use layout=torch.jagged or pad them");
}

} // namespace

bool runs_whole(const std::string& overload) {
  return overload == "aten::mode.values" || overload == "aten::conj_physical_" || overload == "aten::mv";
}

void register_library_ops() {
  static auto* libraries = new std::deque<torch::Library>(); // a deque: references into it stay good
  auto fallback = [&](DispatchKey key, torch::CppFunction&& function) {
    libraries->emplace_back(torch::Library::IMPL, "_", key, __FILE__, __LINE__).fallback(std::move(function));
  };
  fallback(DispatchKey::PrivateUse1, torch::CppFunction::makeFromBoxedFunction<&route>());
  fallback(DispatchKey::SparsePrivateUse1, torch::CppFunction::makeFromBoxedFunction<&route>());
  fallback(DispatchKey::SparseCsrPrivateUse1, torch::CppFunction::makeFromBoxedFunction<&route>());
  fallback(DispatchKey::QuantizedPrivateUse1, torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
  fallback(DispatchKey::NestedTensorPrivateUse1, torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());

  auto& dispatcher = c10::Dispatcher::singleton();
  auto& sparse =
      libraries->emplace_back(torch::Library::IMPL, "aten", DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
  auto& csr =
      libraries->emplace_back(torch::Library::IMPL, "aten", DispatchKey::SparseCsrPrivateUse1, __FILE__, __LINE__);
  auto& nested =
      libraries->emplace_back(torch::Library::IMPL, "aten", DispatchKey::NestedTensorPrivateUse1, __FILE__, __LINE__);
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema()) continue;
    const std::string full = toString(name);
    if (op->hasKernelForDispatchKey(DispatchKey::NestedTensorCPU) && // linear: its composite never meets the fallback
        op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd))
      nested.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
    if (op->hasKernelForDispatchKey(DispatchKey::PrivateUse1)) registered_routes().try_emplace(full, "native");
    if (returns_view(op->schema())) continue; // a copy would come back: such ops are written by hand
    auto add = [&](torch::Library& library) {
      library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&route>());
    };
    auto missing = [&](DispatchKey ours, DispatchKey cpu) {
      return !op->hasKernelForDispatchKey(ours) && op->hasKernelForDispatchKey(cpu);
    };
    if (missing(DispatchKey::SparsePrivateUse1, DispatchKey::SparseCPU)) add(sparse);
    if (missing(DispatchKey::SparseCsrPrivateUse1, DispatchKey::SparseCsrCPU)) add(csr);
    if (registered_routes().count(full) > 0) continue;
    if ((hidden_by_composite(*op) && !keeps_composite(name.name)) || runs_whole(full))
      own_kernel(full, c10::KernelFunction::makeFromBoxedFunction<&route>(), "library");
  }
  register_own_kernels();
}

std::map<std::string, std::string> all_routes() {
  auto routes = registered_routes();
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || name.name.rfind("aten::", 0) != 0) continue;
    const auto has = [&](DispatchKey key) { return op->hasKernelForDispatchKey(key); };
    if (has(DispatchKey::CPU)) // the backend fallback serves it
      routes.try_emplace(toString(name), "library");
    else if (has(DispatchKey::CompositeImplicitAutograd) || has(DispatchKey::CompositeExplicitAutograd) ||
             has(DispatchKey::CompositeExplicitAutogradNonFunctional))
      routes.try_emplace(toString(name), "composite");
    else
      routes.try_emplace(toString(name), "error");
  }
  return routes;
}

} // namespace bringup
