// A new operator in C++: schema, kernels for CPU and device, Meta kernel, gradient. Loaded by soft_clip.py.
//
// The kernel reads device memory through data_ptr. That is right only where the host can see device memory at the
// device's own addresses: `host_visible` with a `host_offset` of 0, such as sim without trap=1. On any other device
// the kernel gets its bytes by a copy: x.to(at::kCPU), compute, result.to(x.device()).
#include <ATen/Dispatch.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>

namespace {

using at::Tensor;

// Work on the current stream may still be writing what we are about to read.
void wait_for_stream(const c10::Device& device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

void check(const Tensor& x, double limit) {
  TORCH_CHECK_VALUE(limit > 0, "soft_clip: limit must be above 0, got ", limit);
  TORCH_CHECK_TYPE(x.is_floating_point(), "soft_clip: x must be floating point, got ", x.scalar_type());
}

Tensor soft_clip(const Tensor& x, double limit) {
  check(x, limit);
  const Tensor in = x.contiguous();
  Tensor out = at::empty_like(in);
  if (!x.is_cpu()) wait_for_stream(x.device());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "soft_clip", [&] {
    const auto* from = in.const_data_ptr<scalar_t>();
    auto* to = out.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < in.numel(); ++i) {
      const auto value = static_cast<double>(from[i]);
      to[i] = static_cast<scalar_t>(value / (1 + std::abs(value) / limit));
    }
  });
  return out;
}

// Shape and dtype only: torch.compile, torch.export and FakeTensor call it.
Tensor soft_clip_meta(const Tensor& x, double limit) {
  check(x, limit);
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

Tensor call_soft_clip(const Tensor& x, double limit) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("cpp_kernel::soft_clip", "")
                             .typed<Tensor(const Tensor&, double)>();
  return op.call(x, limit);
}

struct SoftClip : torch::autograd::Function<SoftClip> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, double limit) {
    context->save_for_backward({x});
    context->saved_data["limit"] = limit;
    const at::AutoDispatchBelowADInplaceOrView below_autograd; // on to the kernel of x's device
    return call_soft_clip(x, limit);
  }
  // Device ops, so that the gradient runs on every device and has a gradient itself.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const Tensor x = context->get_saved_variables()[0];
    const Tensor scale = x.abs().div(context->saved_data["limit"].toDouble()).add(1);
    return {grads[0].div(scale).div(scale), Tensor()};
  }
};

Tensor soft_clip_autograd(const Tensor& x, double limit) { return SoftClip::apply(x, limit); }

} // namespace

TORCH_LIBRARY_FRAGMENT(cpp_kernel, library) {
  library.def("soft_clip(Tensor x, float limit) -> Tensor", {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(cpp_kernel, CPU, library) { library.impl("soft_clip", TORCH_FN(soft_clip)); }
TORCH_LIBRARY_IMPL(cpp_kernel, PrivateUse1, library) { library.impl("soft_clip", TORCH_FN(soft_clip)); }
TORCH_LIBRARY_IMPL(cpp_kernel, Meta, library) { library.impl("soft_clip", TORCH_FN(soft_clip_meta)); }
TORCH_LIBRARY_IMPL(cpp_kernel, Autograd, library) { library.impl("soft_clip", TORCH_FN(soft_clip_autograd)); }
