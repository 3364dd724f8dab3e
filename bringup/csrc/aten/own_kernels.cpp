// Our kernels at PrivateUse1 that a compiled kernel may replace: it then falls through to the one it replaced.
#include "aten/own_kernels.h"

#include <map>
#include <optional>

#include "aten/route.h"

namespace bringup {
namespace {

struct OwnKernel {
  c10::KernelFunction kernel;
  std::optional<c10::RegistrationHandleRAII> registration;
};
std::map<std::string, OwnKernel>& own_kernels() { // never destroyed: the dispatcher may be gone before us
  static auto* kernels = new std::map<std::string, OwnKernel>();
  return *kernels;
}

c10::OperatorName operator_name(const std::string& full) {
  const size_t dot = full.find('.');
  return dot == std::string::npos ? c10::OperatorName(full, "")
                                  : c10::OperatorName(full.substr(0, dot), full.substr(dot + 1));
}

void enter(const std::string& name, OwnKernel& own) {
  own.registration.reset();
  own.registration.emplace(c10::Dispatcher::singleton().registerImpl(operator_name(name), c10::DispatchKey::PrivateUse1,
                                                                     own.kernel, std::nullopt, nullptr, kOwnKernel));
}

} // namespace

void own_kernel(const std::string& name, c10::KernelFunction kernel, const char* route) {
  own_kernels()[name].kernel = std::move(kernel);
  registered_routes()[name] = route;
}

void register_own_kernels() {
  for (auto& [name, own] : own_kernels())
    if (!own.registration) enter(name, own);
}

ReplacedKernel replace_own_kernel(const std::string& name, c10::KernelFunction kernel, const char* route) {
  OwnKernel& own = own_kernels()[name];
  ReplacedKernel earlier{std::exchange(own.kernel, std::move(kernel)), registered_routes()[name]};
  enter(name, own);
  registered_routes()[name] = route;
  return earlier;
}

void give_up_own_kernel(const std::string& name) {
  own_kernels().erase(name);
  registered_routes()[name] = "composite";
}

} // namespace bringup
