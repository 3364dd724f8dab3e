// Our kernels at PrivateUse1 that a compiled kernel may replace: it then falls through to the one it replaced.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace bringup {

// What the dispatcher notes as the origin of these kernels.
constexpr const char* kOwnKernel = "bringup";

// Notes a kernel ("aten::add.Tensor") before attach(), which registers it. `route` is what routes() says of the op.
void own_kernel(const std::string& name, c10::KernelFunction kernel, const char* route);
template <class FuncType, FuncType* function>
void own_kernel(const std::string& name, c10::CompileTimeFunctionPointer<FuncType, function> typed, const char* route) {
  own_kernel(name, c10::KernelFunction::makeFromUnboxedFunction(typed), route);
}
void register_own_kernels();
// Puts a kernel in place of ours, if there is one, which is returned. PyTorch warns where two kernels stand for one
// op, so ours is taken away first.
struct ReplacedKernel {
  c10::KernelFunction kernel; // not valid: there was none
  std::string route;
};
ReplacedKernel replace_own_kernel(const std::string& name, c10::KernelFunction kernel, const char* route);

// Composites that are not taken apart: mode.values and conj_physical_ ask for a device type they know, mv would read a
// result it overwrites.
bool runs_whole(const std::string& overload);

// Takes our kernel away, if there is one: another is registered that is made of other ops.
void give_up_own_kernel(const std::string& name);

} // namespace bringup

// A block of own_kernel(…) lines, run when the library is loaded.
#define BRINGUP_OWN_KERNELS()                                             \
  static void list_own_kernels();                                         \
  static const bool listed_own_kernels = (list_own_kernels(), true);      \
  [[maybe_unused]] static const bool* const listed = &listed_own_kernels; \
  static void list_own_kernels()
