// The out= form of a function: the same arguments, then the tensor that takes the result.
#pragma once

#include <ATen/core/Tensor.h>

namespace bringup {

template <auto function>
struct IntoOut;
template <class... Args, at::Tensor (*function)(Args...)>
struct IntoOut<function> {
  static at::Tensor& call(Args... args, at::Tensor& out) {
    const at::Tensor result = function(std::forward<Args>(args)...);
    TORCH_CHECK(out.scalar_type() == result.scalar_type(), "out has dtype ", out.scalar_type(), ", expected ",
                result.scalar_type());
    out.resize_(result.sizes());
    return out.copy_(result);
  }
};

} // namespace bringup
