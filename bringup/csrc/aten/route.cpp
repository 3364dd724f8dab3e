// The boxed route: any op, on CPU kernels over device memory, as the chip's own library or as a counted fallback.
#include "aten/route.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "pytorch/generator.h"

namespace bringup {

namespace {

c10::DispatchKey cpu_key_for(c10::DispatchKeySet keys) {
  if (keys.has(c10::DispatchKey::SparsePrivateUse1)) return c10::DispatchKey::SparseCPU;
  if (keys.has(c10::DispatchKey::SparseCsrPrivateUse1)) return c10::DispatchKey::SparseCsrCPU;
  return c10::DispatchKey::CPU;
}

bool is_generator(const c10::Argument& argument) {
  const auto* type = argument.real_type().get();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType().get();
  return type->kind() == c10::TypeKind::GeneratorType;
}

// CPU kernels know only CPU generators: one seeded from the device's own numbers (rule: element i of a random tensor).
at::Generator cpu_generator_from(const c10::IValue& value, c10::DeviceIndex index) {
  const auto given = value.isNone() ? std::nullopt : std::optional<at::Generator>(value.toGenerator());
  const PhiloxState state = generator_for(given, index).reserve();
  return at::make_generator<at::CPUGeneratorImpl>(state.seed * 0x9E3779B97F4A7C15ULL + state.offset);
}

using Tensors = c10::ArrayRef<at::Tensor>;
FlopsOf g_flops_of;

} // namespace

void set_flops_of(FlopsOf flops_of) { g_flops_of = std::move(flops_of); }

void charge(Device& device, const OpRecord& op, Tensors in, Tensors out, bool transposed) {
  double bytes = 0;
  int dtype = BRINGUP_FLOAT32;
  auto sizes_of = [&](Tensors tensors) {
    AllSizes sizes;
    for (const at::Tensor& tensor : tensors) {
      const bool counts = tensor.defined() && tensor.layout() == c10::kStrided;
      sizes.push_back(counts ? std::optional(tensor.sizes().vec()) : std::nullopt);
      if (counts) bytes += static_cast<double>(tensor.nbytes());
    }
    return sizes;
  };
  for (const at::Tensor& tensor : out)
    if (tensor.defined()) dtype = dtype_code(tensor.scalar_type());
  const double flops = g_flops_of(op.base_name, sizes_of(in), sizes_of(out), transposed);
  translated([&] { device.charge(current_stream(static_cast<c10::DeviceIndex>(device.index)), dtype, flops, bytes); });
}

void route_to(OpRecord& record, const c10::OperatorHandle& target, c10::DispatchKey cpu_key, torch::jit::Stack* stack) {
  const auto& arguments = record.schema.arguments();
  const size_t first = stack->size() - arguments.size();
  HostCall call(record.name.c_str(), /*may_be_kept=*/!record.is_aten);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = (*stack)[first + i];
    // CPU numbers stand for scalars, and some ops take indices or lengths from the CPU: never what they write to.
    const auto accept = record.mutated[i] || (record.device_only >> (i & 63) & 1) ? HostCall::Accept::device
                        : record.from_cpu >> (i & 63) & 1                         ? HostCall::Accept::any
                                                                                  : HostCall::Accept::numbers;
    each_tensor(value, [&](const at::Tensor& tensor) { call.add(tensor, accept); });
    if (value.isDevice() && value.toDevice().type() == kDeviceType) call.set_device(resolve(value.toDevice()));
  }
  if (!call.has_device()) call.set_device(current_device());
  TORCH_CHECK_NOT_IMPLEMENTED(!record.returns_view, record.name, " returns a view and has no kernel of its own on ",
                              call.device().label(), ": a fallback would return a copy");
  TORCH_CHECK_NOT_IMPLEMENTED(target.hasComputedKernelForDispatchKey(cpu_key), record.name, no_kernel_on(call.index()),
                              ", and none on the CPU (", c10::toString(cpu_key), ") to fall back to");
  const bool library = translated([&] { return call.device().spec().host_library != 0; });
  std::optional<Fallback> fallback;
  if (!library) fallback.emplace(record, call.index());

  call.prepare();
  c10::SmallVector<c10::IValue, 8> originals(stack->begin() + first, stack->end());
  c10::SmallVector<c10::IValue, 8> stand_ins;
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (value.isDevice())
      value = c10::Device(c10::kCPU);
    else if ((value.isNone() || value.isGenerator()) && is_generator(arguments[i]))
      value = cpu_generator_from(value, call.index());
    else
      value = map_tensors(value, [&](const at::Tensor& tensor) {
        at::Tensor stand_in = call.stand_in(tensor);
        if (C10_UNLIKELY(record.shows_requires_grad) && tensor.requires_grad()) stand_in.set_requires_grad(true);
        return stand_in;
      });
    stand_ins.push_back(value);
  }
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    // Not around kernels of users: what they allocate for themselves is no device memory.
    RedirectCpuAllocator redirect(call.zero_copy() && record.is_aten ? call.index() : -1);
    target.redispatchBoxed(c10::DispatchKeySet(cpu_key), stack);
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!record.mutated[i]) continue;
    std::vector<at::Tensor> before, after;
    each_tensor(originals[i], [&](const at::Tensor& tensor) { before.push_back(tensor); });
    each_tensor(stand_ins[i], [&](const at::Tensor& tensor) { after.push_back(tensor); });
    for (size_t k = 0; k < before.size(); ++k) call.write_back(before[k], after[k]);
  }
  const size_t returns = record.schema.returns().size();
  const size_t base = stack->size() - returns;
  for (size_t i = 0; i < returns; ++i) {
    c10::IValue& value = (*stack)[base + i];
    const int source = record.returned_argument[i];
    if (source >= 0)
      value = originals[source];
    else
      value = map_tensors(value, [&](const at::Tensor& tensor) { return call.result(tensor); });
  }

  if (library) {
    if (charges(call.device())) {
      std::vector<at::Tensor> in, out;
      for (size_t i = 0; i < arguments.size(); ++i)
        if (!arguments[i].is_out()) each_tensor(originals[i], [&](const at::Tensor& tensor) { in.push_back(tensor); });
      for (size_t i = 0; i < returns; ++i)
        each_tensor((*stack)[base + i], [&](const at::Tensor& tensor) { out.push_back(tensor); });
      bool transposed = false; // a convolution's argument that its tensors do not show
      for (size_t i = 0; i < arguments.size(); ++i)
        if (arguments[i].name() == "transposed") transposed = originals[i].toBool();
      charge(call.device(), record, in, out, transposed);
    }
    return;
  }
  fallback->done(call.bytes_moved());
}

void route(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  route_to(op_record(op.schema()), op, cpu_key_for(keys), stack);
}

void route_dense(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  route_to(op_record(op.schema()), op, c10::DispatchKey::CPU, stack);
}

} // namespace bringup
