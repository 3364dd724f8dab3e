// The list of hot ops (see hot.cpp) and the narrow headers they need.
#pragma once

#include <ATen/ops/_adaptive_avg_pool2d_ops.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/amax_ops.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/avg_pool2d_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bitwise_and_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/clamp_ops.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/cumsum_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/logical_not_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/max_pool2d_with_indices_backward_ops.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/min_ops.h>
#include <ATen/ops/minimum_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/tril_ops.h>
#include <ATen/ops/triu_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>

// clang-format off
#define BRINGUP_HOT_OPS(_) \
  _(abs) _(add_Tensor) _(add__Tensor) _(add_Scalar) _(sub_Tensor) _(sub__Tensor) _(mul_Tensor) _(mul__Tensor) \
  _(mul_Scalar) _(div_Tensor) _(div__Tensor) _(neg) _(reciprocal) _(exp) _(log) _(sqrt) _(rsqrt) _(sin) _(cos) \
  _(tanh) _(sigmoid) _(relu) _(relu_) _(gelu) _(silu) _(pow_Tensor_Scalar) _(clamp) _(threshold_backward) \
  _(sigmoid_backward) _(tanh_backward) _(gelu_backward) _(silu_backward) _(mm) _(addmm) _(bmm) _(baddbmm) _(sum) \
  _(sum_dim_IntList) _(mean) _(mean_dim) _(max) _(min) _(argmax) _(amax) _(_softmax) _(_log_softmax) \
  _(_softmax_backward_data) _(_log_softmax_backward_data) _(nll_loss_forward) _(nll_loss_backward) \
  _(native_layer_norm) _(native_layer_norm_backward) _(native_batch_norm) _(native_batch_norm_backward) \
  _(embedding) _(embedding_dense_backward) _(eq_Scalar) _(eq_Tensor) _(ne_Scalar) _(lt_Scalar) _(gt_Scalar) \
  _(le_Scalar) _(ge_Scalar) _(lt_Tensor) _(gt_Tensor) _(logical_not) _(bitwise_and_Tensor) _(where_self) \
  _(masked_fill_Scalar) _(index_select) _(gather) _(zero_) _(fill__Scalar) _(addcmul_) _(addcdiv_) _(lerp__Scalar) \
  _(max_pool2d_with_indices) _(max_pool2d_with_indices_backward) _(avg_pool2d) _(_adaptive_avg_pool2d) _(cumsum) \
  _(tril) _(triu) _(maximum) _(minimum)
// clang-format on
