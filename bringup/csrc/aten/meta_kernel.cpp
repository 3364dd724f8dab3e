// What the dispatcher keeps but does not show: who registered a kernel, and kernels behind the newest.
//
// PyTorch's own C++ meta kernels stand behind Python ones that `import torch` puts in front of many of them. Those cost
// 60 µs for an add (the C++ ones 2) and word their errors differently from the CPU's. All are in
// OperatorEntry::kernels_, newest first; an explicit instantiation may name a private member, and that is how it is
// reached. The same in torch 2.11 to 2.15.
#include "aten/kernel_call.h"
#include "aten/own_kernels.h"

namespace bringup {
namespace {

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

} // namespace

bool has_foreign_kernel(const c10::OperatorHandle& op) {
  const auto& kernels = (op.*reach(Definition()))->op.*reach(Registered());
  const auto found = kernels.find(c10::DispatchKey::PrivateUse1);
  return found != kernels.end() && !found->second.empty() && found->second.front().debug != kOwnKernel;
}

c10::KernelFunction first_meta_kernel(const c10::OperatorHandle& op) {
  const auto& kernels = (op.*reach(Definition()))->op.*reach(Registered());
  const auto found = kernels.find(c10::DispatchKey::Meta);
  return found == kernels.end() ? c10::KernelFunction() : found->second.back().kernel;
}

bool has_quick_meta_kernel(const c10::OperatorHandle& op) {
  const auto& kernels = (op.*reach(Definition()))->op.*reach(Registered());
  const auto found = kernels.find(c10::DispatchKey::Meta);
  return found != kernels.end() && found->second.back().debug.find(".py:") == std::string::npos;
}

} // namespace bringup
