// The STUB form: ATen's own op function, with a device kernel in its DispatchStub. Loaded by stub_form.py.
//
// Many ATen ops are written once for all devices: at::native::logit checks, promotes types, allocates and builds a
// TensorIterator, then calls logit_stub for the inner loop. A backend fills its slot of the stub with a loop and
// registers the op function itself. Take this form for element-wise ops and reductions, where ATen has a stub.
//
// The loop reads device memory at its own addresses: for host-visible devices with host_offset 0 (see cpp_kernel/).
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/logit_native.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <atomic>
#include <cmath>

namespace at::native {
namespace {

std::atomic<int64_t> kernel_calls{0}; // so that the example can show which kernel ran

void logit_on_device(TensorIteratorBase& iterator, const Scalar& eps) {
  ++kernel_calls;
  const Device device = iterator.device(0);
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device)); // the host is about to touch what the stream works on
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, iterator.dtype(), "logit", [&] {
    using Wide = at::opmath_type<scalar_t>;
    const auto low = eps.to<Wide>(); // below 0: no clamping
    iterator.for_each([&](char** data, const int64_t* strides, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        auto x = static_cast<Wide>(*reinterpret_cast<const scalar_t*>(data[1] + i * strides[1]));
        if (low >= 0) x = x < low ? low : (x > 1 - low ? 1 - low : x); // NaN stays NaN
        *reinterpret_cast<scalar_t*>(data[0] + i * strides[0]) = static_cast<scalar_t>(std::log(x / (1 - x)));
      }
    });
  });
}

// TensorIterator converts inputs to the common dtype on the CPU only: elsewhere the caller does.
Tensor floating(const Tensor& self) {
  return self.is_floating_point() ? self : self.to(c10::get_default_dtype_as_scalartype());
}
Tensor logit_functional(const Tensor& self, std::optional<double> eps) { return logit(floating(self), eps); }
Tensor& logit_into(const Tensor& self, std::optional<double> eps, Tensor& out) {
  if (self.scalar_type() == out.scalar_type()) return logit_out(self, eps, out);
  const Tensor result = logit_functional(self, eps);
  out.resize_(result.sizes());
  return out.copy_(result);
}

int64_t calls() { return kernel_calls; }

} // namespace

REGISTER_PRIVATEUSE1_DISPATCH(logit_stub, &logit_on_device)

} // namespace at::native

// bringup leaves these three to its fallback kernel, so nothing is replaced. The gradient of logit is ATen's.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("logit", TORCH_FN(at::native::logit_functional));
  library.impl("logit.out", TORCH_FN(at::native::logit_into));
  library.impl("logit_", TORCH_FN(at::native::logit_));
}
TORCH_LIBRARY_FRAGMENT(stub_form, library) { library.def("calls", &at::native::calls); }
