// Masks among the indices of an op: PyTorch's own expansion, by nonzero(), and its shortcut for x[mask] = number.
#include "aten/masks.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/TensorAdvancedIndexingUtils.h>
#include <ATen/ops/masked_fill.h>

#include "aten/route.h"

namespace bringup {

bool expand_masks(const KernelOp& op, torch::jit::Stack* stack) {
  auto argument = [&](size_t position) -> c10::IValue& {
    return (*stack)[stack->size() - op.rules.arguments.size() + position];
  };
  c10::IValue& list = argument(1);
  bool masks = false;
  for (const c10::IValue& index : list.toListRef())
    masks |= index.isTensor() && index.toTensor().defined() &&
             (index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte);
  const at::Tensor self = argument(0).toTensor();
  if (!masks || self.device().type() != kDeviceType || !device_at(self.device().index()).runs_kernels()) return false;

  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto indices = map_tensors(list, [](const at::Tensor& index) { return index; }).toOptionalTensorList();
  TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(), "too many indices for tensor of dimension ",
                    self.dim(), " (got ", indices.size(), ")");
  const bool puts = op.rules.arguments.size() > 3 && !op.record.schema.arguments().back().is_out();
  if (puts && !argument(3).toBool()) { // accumulate
    const at::Tensor value = argument(2).toTensor();
    if (const auto [fits, mask] = at::native::canDispatchToMaskedFill(self, indices, value); fits) {
      const at::Scalar number = value.item();
      const at::Tensor result = op.in_place ? self.masked_fill_(mask, number) : self.masked_fill(mask, number);
      torch::jit::drop(*stack, op.rules.arguments.size());
      stack->push_back(result);
      return true;
    }
  }
  list = at::native::toListOfOptionalTensors(at::native::expandTensors(self, indices, /*ensure_same_device=*/true));
  return false;
}

} // namespace bringup
