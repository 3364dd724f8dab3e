// Ops that have neither a CPU kernel nor a composite one under their own name: convolution, attention.
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorIterator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/i0.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include <cmath>

#include "aten/own_kernels.h"
#include "aten/route.h"

namespace bringup {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr c10::DispatchKeySet kDevice(c10::DispatchKey::PrivateUse1);

// ---- convolution: the CPU chooses its own algorithm ----

void convolution_overrideable(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static const auto target = find_op("aten::convolution");
  route_to(op_record(target.schema()), target, c10::DispatchKey::CPU, stack);
}

void convolution_backward_overrideable(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  // (grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask): the CPU's
  // op also wants the sizes of the bias, after the weight.
  const size_t first = stack->size() - op.schema().arguments().size();
  const Tensor weight = (*stack)[first + 2].toTensor();
  const bool transposed = (*stack)[first + 6].toBool();
  const int64_t groups = (*stack)[first + 8].toInt();
  const std::vector<int64_t> bias_sizes = {transposed ? weight.size(1) * groups : weight.size(0)};
  stack->insert(stack->begin() + static_cast<int64_t>(first) + 3, c10::IValue(bias_sizes));
  static const auto target = find_op("aten::convolution_backward");
  route_to(op_record(target.schema()), target, c10::DispatchKey::CPU, stack);
}

// ---- attention: compiled kernels where they would take it, else the math composite ----

bool has_attention_kernels(const Tensor& tensor) {
  static const auto op = find_op("bringup::attention");
  return translated([&] { return device_at(tensor.device().index()).runs_kernels(); }) &&
         op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
}

// Compiled kernels keep their blocks in scratch of a constant size. Sizes may be symbolic: torch.compile asks, too.
bool fits_attention_kernels(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
                            bool gqa) {
  constexpr int64_t most_features = 512;
  for (const Tensor* tensor : {&query, &key, &value})
    if (tensor->dim() != 4 || tensor->sym_numel() == 0 || tensor->layout() != c10::kStrided ||
        tensor->device() != query.device() || tensor->scalar_type() != query.scalar_type() ||
        tensor->sym_size(0) != query.sym_size(0) || tensor->sym_size(3) > most_features)
      return false;
  const auto type = query.scalar_type();
  if (type != at::kFloat && type != at::kDouble && type != at::kHalf && type != at::kBFloat16) return false;
  const auto heads = query.sym_size(1), key_heads = key.sym_size(1), keys = key.sym_size(2);
  if (mask) {
    if (mask->device() != query.device() || mask->sym_numel() == 0) return false;
    const std::array<c10::SymInt, 4> scores = {query.sym_size(0), heads, query.sym_size(2), keys};
    if (!at::is_expandable_to(mask->sym_sizes(), c10::SymIntArrayRef(scores))) return false; // the composite says why
  }
  const bool same_heads = heads == key_heads, shared_heads = gqa && heads % key_heads == 0;
  return key_heads == value.sym_size(1) && keys == value.sym_size(2) && query.sym_size(3) == key.sym_size(3) &&
         (same_heads || shared_heads);
}

int64_t fused_sdp_choice(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
                         double, bool, std::optional<double>, bool gqa) {
  constexpr auto math = static_cast<int64_t>(at::SDPBackend::math);
  return has_attention_kernels(query) && at::globalContext().userEnabledOverrideableSDP() &&
                 fits_attention_kernels(query, key, value, mask, gqa)
             ? static_cast<int64_t>(at::SDPBackend::overrideable)
             : math;
}

double scale_of(const Tensor& query, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
}

// The kernels' ops (bringup/lowering/ops/attention.py): what dropout drew comes back as the seed and offset of the
// call, from which the backward pass draws the same again.
std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> fused_attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias, double dropout,
    bool causal, bool, std::optional<double> scale) {
  TORCH_CHECK(dropout >= 0 && dropout <= 1, "dropout probability has to be between 0 and 1, but got ", dropout);
  const auto none = at::empty({0}, query.options().dtype(at::kLong));
  static auto op = find_op("bringup::attention")
                       .typed<std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&,
                                                                 const OptionalTensor&, double, bool, double)>();
  auto [out, logsumexp, drawn] =
      op.redispatch(kDevice, query, key, value, bias, dropout, causal, scale_of(query, scale));
  // Two 0-dim tensors, as PyTorch's meta kernel says: compiled graphs keep them for the backward pass.
  const bool drew = drawn.numel() == 2;
  const Tensor seed = drew ? drawn.select(0, 0) : at::empty({}, none.options());
  const Tensor offset = drew ? drawn.select(0, 1) : seed;
  return {out, logsumexp, none, none, query.sym_size(2), key.sym_size(2), seed, offset, none};
}

using FourTensors = std::tuple<Tensor, Tensor, Tensor, Tensor>;

FourTensors fused_attention_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                                     const Tensor& bias, std::array<bool, 4> wanted, const Tensor& output,
                                     const Tensor& logsumexp, const Tensor&, const Tensor&, c10::SymInt, c10::SymInt,
                                     double dropout, bool causal, const Tensor& seed, const Tensor& offset,
                                     std::optional<double> scale) {
  const auto mask = bias.defined() ? OptionalTensor(bias) : std::nullopt;
  const Tensor drawn = dropout > 0 ? at::stack({seed, offset}) : at::empty({0}, query.options().dtype(at::kLong));
  static auto op =
      find_op("bringup::attention_backward")
          .typed<FourTensors(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                             const Tensor&, const Tensor&, const Tensor&, double, bool, double, bool)>();
  return op.redispatch(kDevice, grad, query, key, value, mask, output, logsumexp, drawn, dropout, causal,
                       scale_of(query, scale), wanted[3] && bias.defined());
}

// What kaiser_window asks a stub for: i0(beta sqrt(1 - x²)) / i0(beta), where x goes from -1 to 1.
void kaiser_window(at::TensorIteratorBase& iter, int64_t length, double beta) {
  const Tensor &window = iter.tensor(0), &numbers = iter.tensor(1); // 0 … length - 1
  const double middle = static_cast<double>(length - 1) / 2;
  const Tensor x = (numbers.to(at::toOpMathType(numbers.scalar_type())) - middle) / middle;
  window.copy_(at::i0((1 - x * x).sqrt() * beta) / at::i0(at::full({}, beta, x.options())));
}

} // namespace

void own_neural_ops() {
  own_kernel("aten::convolution_overrideable", c10::KernelFunction::makeFromBoxedFunction<&convolution_overrideable>());
  own_kernel("aten::convolution_backward_overrideable",
             c10::KernelFunction::makeFromBoxedFunction<&convolution_backward_overrideable>());
  own_kernel("aten::_fused_sdp_choice", TORCH_FN(fused_sdp_choice));
  own_kernel("aten::_scaled_dot_product_fused_attention_overrideable", TORCH_FN(fused_attention));
  own_kernel("aten::_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(fused_attention_backward));
}

} // namespace bringup

namespace at::native { // what PyTorch's composites ask by a stub and not by an op
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &bringup::fused_sdp_choice)
REGISTER_PRIVATEUSE1_DISPATCH(kaiser_window_stub, &bringup::kaiser_window)
} // namespace at::native
