// Launches on partitioned memory: where each operand has to lie, what that costs, and the moves that it takes.
#pragma once

#include "aten/launch.h"

namespace bringup {

// As launch_plan. Every kernel runs in one of three ways, the one that costs the least: shared out along an axis of its
// grid, on all partitions alike (replicated operands), or on partition 0 alone, which is always possible.
void launch_over_partitions(const char* label, Device& device, const Plan& plan, const Given& given);

} // namespace bringup
