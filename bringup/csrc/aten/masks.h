// Masks among the indices of an op: x[mask] is x at the places where the mask holds, as integers.
#pragma once

#include "aten/kernel_call.h"

namespace bringup {

// Puts integers in the place of masks on the stack (the host waits for their number). True if that is not needed: the
// call put one number where a mask holds, and its result is on the stack.
bool expand_masks(const KernelOp& op, torch::jit::Stack* stack);

} // namespace bringup
