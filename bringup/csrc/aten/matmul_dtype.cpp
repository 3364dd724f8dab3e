// Matrix products with a wider result (torch.mm(a, b, out_dtype=…)): only CUDA has them, so here they are composed.
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include "aten/into_out.h"
#include "aten/own_kernels.h"
#include "aten/route.h"

namespace bringup {
namespace {

using at::Tensor;

// Factors in the result's dtype: products of two half numbers are exact in float32, so nothing is lost on the way.
Tensor widened(const Tensor& factor, c10::ScalarType out_dtype) {
  TORCH_CHECK(
      out_dtype == factor.scalar_type() || (at::isReducedFloatingType(factor.scalar_type()) && out_dtype == at::kFloat),
      "out_dtype must be the dtype of the factors, or float32 for float16 and bfloat16; got ", out_dtype, " for ",
      factor.scalar_type());
  return factor.to(out_dtype);
}

Tensor mm(const Tensor& a, const Tensor& b, c10::ScalarType out_dtype) {
  return at::mm(widened(a, out_dtype), widened(b, out_dtype));
}
Tensor bmm(const Tensor& a, const Tensor& b, c10::ScalarType out_dtype) {
  return at::bmm(widened(a, out_dtype), widened(b, out_dtype));
}
Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, c10::ScalarType out_dtype, const at::Scalar& beta,
             const at::Scalar& alpha) {
  return at::addmm(c.to(out_dtype), widened(a, out_dtype), widened(b, out_dtype), beta, alpha);
}
Tensor baddbmm(const Tensor& c, const Tensor& a, const Tensor& b, c10::ScalarType out_dtype, const at::Scalar& beta,
               const at::Scalar& alpha) {
  return at::baddbmm(c.to(out_dtype), widened(a, out_dtype), widened(b, out_dtype), beta, alpha);
}

} // namespace

BRINGUP_OWN_KERNELS() {
  own_kernel("aten::mm.dtype", TORCH_FN(mm), "native");
  own_kernel("aten::mm.dtype_out", TORCH_FN(IntoOut<&mm>::call), "native");
  own_kernel("aten::bmm.dtype", TORCH_FN(bmm), "native");
  own_kernel("aten::bmm.dtype_out", TORCH_FN(IntoOut<&bmm>::call), "native");
  own_kernel("aten::addmm.dtype", TORCH_FN(addmm), "native");
  own_kernel("aten::addmm.dtype_out", TORCH_FN(IntoOut<&addmm>::call), "native");
  own_kernel("aten::baddbmm.dtype", TORCH_FN(baddbmm), "native");
  own_kernel("aten::baddbmm.dtype_out", TORCH_FN(IntoOut<&baddbmm>::call), "native");
}

} // namespace bringup
