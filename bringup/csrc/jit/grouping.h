// Finds the parts of a TorchScript graph that a device can run, and puts each into a bringup::CompilationGroup.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace bringup {

struct JitSettings {
  // Overload ("aten::add.Tensor") → why it is not grouped; empty for one that is. Others have no lowering.
  std::unordered_map<std::string, std::string> ops;
  size_t min_group_size; // views and lists do not count
  int device;            // where groups of CPU tensors run
  int first_device, device_count;
};

// What bringup.jit.enable said last; null after disable. The JIT calls the pass while they are set.
std::shared_ptr<const JitSettings> jit_settings();
void set_jit_settings(std::shared_ptr<const JitSettings> settings);

c10::Symbol group_kind(); // bringup::CompilationGroup
c10::Symbol group_id();   // its attribute: which Group of python/compilation_group.cpp runs it

void make_groups(std::shared_ptr<torch::jit::Graph>& graph, const JitSettings& settings);

// For every node, those of blocks after their owner: why it is in no group. Empty where it could be.
std::vector<std::string> why_not_grouped(const std::shared_ptr<torch::jit::Graph>& graph, const JitSettings& settings);

} // namespace bringup
