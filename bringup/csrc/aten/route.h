// The boxed route: any op, on CPU kernels over device memory, as the chip's own library or as a counted fallback.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <map>
#include <string>

#include "aten/host_call.h"
#include "aten/ledger.h"

namespace bringup {

// The kernel behind every op that has no better one. Registered as the backend fallback and explicitly where a
// composite kernel would hide the CPU's own (rule: hidden by composites).
void route(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
// The same for callers that know the tensors to be dense.
void route_dense(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// The same work under another op's CPU kernel: convolution_overrideable runs aten::convolution.
void route_to(OpRecord& record, const c10::OperatorHandle& target, c10::DispatchKey cpu_key, torch::jit::Stack* stack);

// A device whose library is ATen's CPU code spends time as a described chip would, if it has a clock for that.
void charge(Device& device, const OpRecord& op, c10::ArrayRef<at::Tensor> inputs, c10::ArrayRef<at::Tensor> outputs,
            bool transposed = false);
// The flops of an op by the sizes of its tensors; nothing for one that is undefined or sparse.
using AllSizes = std::vector<std::optional<std::vector<int64_t>>>;
using FlopsOf = std::function<double(const std::string& op, const AllSizes& in, const AllSizes& out, bool transposed)>;
void set_flops_of(FlopsOf flops_of);
inline bool charges(Device& device) { return device.driver.api.charge != nullptr && device.spec().peak_flops > 0; }

// Ops with a kernel of ours: name with overload → library | native | random | kernel.
std::map<std::string, std::string>& registered_routes();

// ---- tensors in boxed values ----

// IValue::isOptionalTensorList compares pointers to types: a list that TorchScript has made is none by it.
inline bool is_optional_tensors(const c10::IValue& value) {
  return value.isList() && *value.toList().elementType() == *c10::OptionalType::ofTensor();
}

template <class F>
void each_tensor(const c10::IValue& value, F&& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (is_optional_tensors(value)) {
    for (const c10::IValue& item : value.toListRef())
      if (item.isTensor()) visit(item.toTensor());
  }
}

template <class F>
c10::IValue map_tensors(const c10::IValue& value, F&& replace) {
  if (value.isTensor()) return replace(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(replace(tensor));
    return list;
  }
  if (is_optional_tensors(value)) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& item : value.toListRef())
      list.push_back(item.isTensor() ? std::optional<at::Tensor>(replace(item.toTensor())) : std::nullopt);
    return list;
  }
  return value;
}

} // namespace bringup
