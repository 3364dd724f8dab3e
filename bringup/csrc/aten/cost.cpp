// What an op costs a described chip: flops by formula for the heavy ops, one per element otherwise, and bytes moved.
#include <unordered_map>

#include "aten/route.h"

namespace bringup {

namespace {

using Tensors = c10::ArrayRef<at::Tensor>;
using Formula = double (*)(Tensors in, Tensors out, bool transposed);

double elements(Tensors tensors) {
  double sum = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && tensor.layout() == c10::kStrided) sum += static_cast<double>(tensor.numel());
  return sum;
}

// `k` is the last dimension of the left factor: 2·k flops per output element.
double matmul(Tensors in, Tensors out, bool) {
  return 2.0 * elements(out.slice(0, 1)) * static_cast<double>(in[0].size(-1));
}
double matmul_with_bias(Tensors in, Tensors out, bool) {
  return 2.0 * elements(out.slice(0, 1)) * static_cast<double>(in[1].size(-1)) + elements(out.slice(0, 1));
}
// The weights of one filter, per element of the side that has a filter per channel: the output, or the input if
// transposed.
double per_filter(const at::Tensor& side, const at::Tensor& weight) {
  return 2.0 * static_cast<double>(side.numel()) * static_cast<double>(weight.numel()) /
         static_cast<double>(weight.size(0));
}
double convolution(Tensors in, Tensors out, bool transposed) { return per_filter(transposed ? in[0] : out[0], in[1]); }
// Gradients of input and weight, each as much work as the forward.
double convolution_backward(Tensors in, Tensors, bool transposed) {
  return 2.0 * per_filter(transposed ? in[1] : in[0], in[2]);
}
double attention(Tensors in, Tensors, bool) { // q·kᵀ and p·v
  return 4.0 * static_cast<double>(in[0].numel()) * static_cast<double>(in[1].size(-2));
}

const std::unordered_map<std::string, Formula>& formulas() {
  static const auto* table = new std::unordered_map<std::string, Formula>{
      {"aten::mm", matmul},
      {"aten::bmm", matmul},
      {"aten::mv", matmul},
      {"aten::dot", matmul},
      {"aten::linear", matmul},
      {"aten::addmm", matmul_with_bias},
      {"aten::baddbmm", matmul_with_bias},
      {"aten::addmv", matmul_with_bias},
      {"aten::convolution", convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::_scaled_dot_product_fused_attention_overrideable", attention}};
  return *table;
}

} // namespace

void charge(Device& device, const OpRecord& op, Tensors in, Tensors out, bool transposed) {
  double bytes = 0;
  int dtype = BRINGUP_FLOAT32;
  for (Tensors side : {in, out})
    for (const at::Tensor& tensor : side)
      if (tensor.defined() && tensor.layout() == c10::kStrided) bytes += static_cast<double>(tensor.nbytes());
  for (const at::Tensor& tensor : out)
    if (tensor.defined()) dtype = dtype_code(tensor.scalar_type());
  const auto formula = formulas().find(op.base_name);
  const double flops =
      formula == formulas().end() ? std::max(elements(in), elements(out)) : formula->second(in, out, transposed);
  translated([&] { device.charge(current_stream(static_cast<c10::DeviceIndex>(device.index)), dtype, flops, bytes); });
}

} // namespace bringup
