// Our kernels at PrivateUse1 that a compiled kernel may replace: it then falls through to the one it replaced.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace bringup {

// What the dispatcher notes as the origin of these kernels.
constexpr const char* kOwnKernel = "bringup";

// The op with this name, "aten::add.Tensor".
c10::OperatorHandle find_op(const std::string& full);

// Notes a kernel before attach() registers it. `route` is what routes() says of the op.
void own_kernel(const std::string& name, c10::KernelFunction kernel, const char* route = "native");
template <class FuncType, FuncType* function>
void own_kernel(const std::string& name, c10::CompileTimeFunctionPointer<FuncType, function> typed) {
  own_kernel(name, c10::KernelFunction::makeFromUnboxedFunction(typed));
}
void own_copies();
void own_neural_ops();

// Puts a kernel in place of ours, if there is one, which is returned. PyTorch warns where two kernels stand for one
// op, so ours is taken away first.
struct ReplacedKernel {
  c10::KernelFunction kernel; // not valid: there was none
  std::string route;
};
ReplacedKernel replace_own_kernel(const c10::OperatorHandle& op, c10::KernelFunction kernel, const char* route);
// Whether somebody else's kernel (TORCH_LIBRARY_IMPL, torch.library) is the one that runs on our devices.
bool has_foreign_kernel(const c10::OperatorHandle& op);

// Composites that are not taken apart: mode.values and conj_physical_ ask for a device type they know, mv would read a
// result it overwrites.
bool runs_whole(const std::string& overload);

} // namespace bringup
