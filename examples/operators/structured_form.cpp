// The structured form: ATen's shape function, our kernel, and every form of the op from one class. Loaded by
// structured_form.py.
//
// A structured op is written in ATen as meta (shapes and dtypes; at::meta::structured_softshrink) and impl (the work).
// A backend keeps meta and writes impl once. How outputs come about is all that differs between the functional, the
// out= and the in-place form: set_output_raw_strided and maybe_get_output below.
//
// The loop reads device memory at its own addresses: for host-visible devices with host_offset 0 (see cpp_kernel/).
#include <ATen/Dispatch.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/softshrink_meta.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <atomic>

// Torch before 2.13 passes the names of dimensions along.
#if __has_include(<ATen/core/NamedTensor.h>)
#define NAMES_PARAMETER , at::DimnameList names
#define NAMES , names
#else
#define NAMES_PARAMETER
#define NAMES
#endif

namespace {

using at::Tensor;

std::atomic<int64_t> kernel_calls{0}; // so that the example can show which kernel ran

// meta builds the TensorIterator that this class is; impl runs over it.
struct Softshrink : at::meta::structured_softshrink {
  void impl(const at::Scalar& lambd) {
    ++kernel_calls;
    const c10::impl::VirtualGuardImpl guard(device(0).type());
    guard.synchronizeStream(guard.getStream(device(0))); // the host is about to touch what the stream works on
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype(), "softshrink", [&] {
      const auto limit = lambd.to<scalar_t>();
      for_each([&](char** data, const int64_t* strides, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          const auto x = *reinterpret_cast<const scalar_t*>(data[1] + i * strides[1]);
          auto& out = *reinterpret_cast<scalar_t*>(data[0] + i * strides[0]);
          out = x > limit ? x - limit : x < -limit ? x + limit : x * scalar_t(0); // NaN stays NaN
        }
      });
    });
  }
};

// The output is a new tensor.
struct Functional final : Softshrink {
  Tensor output;
  void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options NAMES_PARAMETER) override {
    const at::DimVector contiguous = c10::contiguous_strides(sizes);
    output = at::empty_strided(sizes, strides.empty() ? at::IntArrayRef(contiguous) : strides, options);
    at::TensorIteratorBase::set_output_raw_strided(index, sizes, strides, options NAMES);
  }
  const Tensor& maybe_get_output(int64_t) override { return output; }
};

// The output is the caller's tensor: out=, or self of the in-place form.
struct Into final : Softshrink {
  explicit Into(const Tensor& out) : output(out) {}
  const Tensor& output;
  void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options NAMES_PARAMETER) override {
    TORCH_CHECK(options.dtype() == output.dtype(), "softshrink: expected out of dtype ", options.dtype(), ", got ",
                output.dtype());
    TORCH_CHECK(options.device() == output.device(), "softshrink: expected out on ", options.device(), ", got ",
                output.device());
    if (at::native::resize_output(output, sizes) && !strides.empty()) output.as_strided_(sizes, strides);
    at::TensorIteratorBase::set_output_raw_strided(index, sizes, strides, options NAMES);
  }
  const Tensor& maybe_get_output(int64_t) override { return output; }
};

Tensor softshrink(const Tensor& self, const at::Scalar& lambd) {
  Functional op;
  op.meta(self, lambd);
  op.impl(lambd);
  return std::move(op.output);
}

Tensor& softshrink_out(const Tensor& self, const at::Scalar& lambd, Tensor& out) {
  Into op(out);
  op.meta(self, lambd);
  op.impl(lambd);
  return out;
}

int64_t calls() { return kernel_calls; }

} // namespace

// bringup has a kernel for aten::softshrink already (the library route): this one takes its place, and PyTorch warns
// once that it does. softshrink.out was left to the fallback. The gradient is ATen's.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("softshrink", TORCH_FN(softshrink));
  library.impl("softshrink.out", TORCH_FN(softshrink_out));
}
TORCH_LIBRARY_FRAGMENT(structured_form, library) { library.def("calls", &calls); }
