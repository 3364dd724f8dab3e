// Launching what a plan says: addresses, numbers and random draws of one call are filled in, and the driver is called.
#pragma once

#include <ATen/core/Tensor.h>

#include "aten/plan.h"
#include "pytorch/generator.h"
#include "runtime/device.h"

namespace bringup {

// What the launches of a plan are filled in with.
struct Given {
  c10::DeviceIndex device;
  c10::ArrayRef<const at::Tensor*> tensors;
  c10::ArrayRef<Number> numbers;
  c10::ArrayRef<at::Tensor> outputs;
  c10::ArrayRef<PhiloxState> draws; // one per random call
};

// `label` names the op in the error of an index out of range.
void launch_plan(const char* label, Device& device, const Plan& plan, const Given& given);

// A launch as drivers take it, but for what several partitions add.
inline bringup_launch described(const KernelLaunch& kernel, c10::ArrayRef<uint64_t> args, uint32_t* finished) {
  bringup_launch work{};
  work.args = args.data();
  work.arg_count = static_cast<uint32_t>(args.size());
  work.address_count = kernel.address_count;
  work.grid = kernel.units;
  work.flops = kernel.flops;
  work.bytes = kernel.bytes;
  work.finished = finished;
  return work;
}

// Hands it to the driver. An index out of range is this op's if its work ran at once: late reports are of earlier ops.
void queue(const char* label, Device& device, const KernelLaunch& kernel, bringup_launch& work, int32_t stream);

// The value of an argument that is no address.
uint64_t number_argument(const Patch& patch, const Given& given);

at::Tensor new_tensor(c10::DeviceIndex index, const OutputSpec& spec);

// A whole graph, ready to run: the plan's outputs and its arena are new at each run.
class GraphPlan {
 public:
  GraphPlan(Plan plan, c10::DeviceIndex device, size_t tensors, size_t numbers);

  // `draws` that are not given are reserved here, in order.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& numbers,
                              std::vector<PhiloxState> draws) const;

 private:
  Plan plan_;
  c10::DeviceIndex device_;
  size_t tensors_, numbers_;
  uint32_t draws_ = 0; // random calls whose seed and offset the launches use
};

} // namespace bringup
