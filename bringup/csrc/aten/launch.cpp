// Launching what a plan says: addresses, numbers and random draws of one call are filled in, and the driver is called.
#include "aten/launch.h"

#include <ATen/EmptyTensor.h>

#include <list>

#include "placement/placed_launch.h"
#include "pytorch/allocator.h"
#include "pytorch/context.h"

namespace bringup {

at::Tensor new_tensor(c10::DeviceIndex index, const OutputSpec& spec) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(new_storage(index, spec.nbytes),
                                                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                         c10::scalarTypeToTypeMeta(spec.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(spec.sizes, spec.strides);
  return tensor;
}

namespace {

// 0 for a tensor without memory, whatever its offset: nothing of it is touched.
uint64_t address_of(const at::Tensor& tensor, int64_t extra) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const auto base = reinterpret_cast<uint64_t>(impl->unsafe_storage().unsafeGetStorageImpl()->data_ptr().get());
  return base == 0 ? 0 : base + static_cast<uint64_t>(impl->storage_offset()) * impl->itemsize() + extra;
}

} // namespace

uint64_t number_argument(const Patch& patch, const Given& given) {
  if (patch.source == Source::number)
    return given.numbers[patch.slot].bits(static_cast<c10::ScalarType>(patch.extra & ~kWrap), patch.extra & kWrap);
  return patch.source == Source::seed ? given.draws[patch.slot].seed : given.draws[patch.slot].offset;
}

void launch_plan(const char* label, Device& device, const Plan& plan, const Given& given) {
  if (C10_UNLIKELY(device.partitioned())) return launch_over_partitions(label, device, plan, given);
  const auto stream = current_stream(given.device);
  c10::SmallVector<c10::DataPtr, 2> temporaries; // reused by the stream in its own order: dropped when all is queued
  for (uint64_t nbytes : plan.temporaries) temporaries.push_back(allocate_on(given.device, nbytes));
  c10::SmallVector<uint64_t, 24> args;
  const std::shared_ptr<Recording> recording = device.recording(stream);
  for (const PhiloxState& draw : given.draws) // its numbers are the graph's, and the graph is complete without this op
    TORCH_CHECK(!draw.captured || recording, label, ": the capture ended while this op was drawing random numbers");
  for (const KernelLaunch& kernel : plan.launches) {
    if (kernel.units == 0) continue;
    args.assign(kernel.args.begin(), kernel.args.end());
    for (const Patch& patch : kernel.patches) {
      uint64_t& arg = args[patch.position];
      switch (patch.source) {
        case Source::tensor:
          arg = address_of(*given.tensors[patch.slot], patch.extra);
          break;
        case Source::output:
          arg = address_of(given.outputs[patch.slot], patch.extra);
          break;
        case Source::temporary:
          arg = reinterpret_cast<uint64_t>(temporaries[patch.slot].get()) + patch.extra;
          break;
        default:
          arg = number_argument(patch, given);
      }
    }
    uint32_t finished = 0;
    bringup_launch work = described(kernel, args, &finished);
    if (C10_UNLIKELY(recording != nullptr)) {
      std::vector<Draw> draws;
      for (const auto& [position, source, slot, extra] : kernel.patches) {
        if (source != Source::seed && source != Source::offset) continue;
        const PhiloxState& draw = given.draws[slot];
        if (!draw.captured) device.refuse_capture(stream, "random numbers from outside the capture");
        draws.push_back({position, static_cast<uint32_t>(draw.seed), source == Source::seed, draw.offset});
      }
      if (recording->add(label, kernel.kernel, work, draws)) continue;
      TORCH_CHECK(draws.empty(), label, ": the capture ended while this op was drawing random numbers");
    }
    queue(label, device, kernel, work, stream);
  }
}

void queue(const char* label, Device& device, const KernelLaunch& kernel, bringup_launch& work, int32_t stream) {
  try {
    device.launch(*kernel.kernel, work, stream);
  } catch (const Error& error) {
    if (error.status == BRINGUP_INDEX_ERROR && *work.finished) TORCH_CHECK_INDEX(false, label, ": ", error.what());
    raise(error);
  }
}

GraphPlan::GraphPlan(Plan plan, c10::DeviceIndex device, size_t tensors, size_t numbers)
    : plan_(std::move(plan)), device_(device), tensors_(tensors), numbers_(numbers) {
  plan_.flags |= Plan::kRandom; // as many draws as it names
  if (!plan_.outputs) plan_.outputs.emplace();
  plan_.check("graph", tensors, numbers, plan_.outputs->size());
  for (OutputSpec& spec : *plan_.outputs)
    spec.nbytes = at::detail::computeStorageNbytes(spec.sizes, spec.strides, c10::elementSize(spec.dtype));
  for (const KernelLaunch& launch : plan_.launches)
    for (const Patch& patch : launch.patches)
      if (patch.source == Source::seed || patch.source == Source::offset) draws_ = std::max(draws_, patch.slot + 1);
}

namespace {

// Kernels read memory as it lies. A graph is traced with plain tensors where a caller may give a lazy conjugate or
// negative: gradients come that way. The whole span is copied, so that strides and offsets keep their meaning.
at::Tensor plain_copy(const at::Tensor& tensor) {
  const int64_t span = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), 1);
  const at::Tensor flat = tensor._is_zerotensor()
                              ? at::zeros({span}, tensor.options())
                              : tensor.as_strided({span}, {1}, tensor.storage_offset()).resolve_conj().resolve_neg();
  return flat.as_strided(tensor.sizes(), tensor.strides(), 0);
}

constexpr c10::DispatchKeySet kLazy({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                     c10::DispatchKey::ZeroTensor});

} // namespace

std::vector<at::Tensor> GraphPlan::run(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& numbers,
                                       std::vector<PhiloxState> draws) const {
  TORCH_CHECK_VALUE(tensors.size() == tensors_ && numbers.size() == numbers_, "this graph takes ", tensors_,
                    " tensors and ", numbers_, " numbers, not ", tensors.size(), " and ", numbers.size());
  const c10::Device where(kDeviceType, device_);
  c10::SmallVector<const at::Tensor*, 32> given;
  std::list<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.device() == where, "this graph runs on ", where, ", not on ", tensor.device());
    given.push_back(tensor.key_set().has_any(kLazy) ? &copies.emplace_back(plain_copy(tensor)) : &tensor);
  }
  c10::SmallVector<Number, 4> values;
  for (const at::Tensor& number : numbers) {
    TORCH_CHECK_VALUE(number.is_cpu() && number.dim() == 0, "a number of a graph is a 0-dim tensor on the CPU");
    values.push_back(Number::of(number));
  }
  while (draws.size() < draws_) draws.push_back(generator_for(std::nullopt, device_).reserve());
  std::vector<at::Tensor> outputs;
  for (const OutputSpec& spec : *plan_.outputs) outputs.push_back(new_tensor(device_, spec));
  launch_plan("graph", device_at(device_), plan_, {device_, given, values, outputs, draws});
  return outputs;
}

} // namespace bringup
