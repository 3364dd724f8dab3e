"""One call of every op on the autocast lists CUDA uses, by list.

`low` makes tensors of the autocast dtype, `full` makes float32 ones.
The names are those of torch/include/ATen/autocast_mode.h; test_amp.py checks that none is missing here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Make = Callable[..., torch.Tensor]
aten = torch.ops.aten
N = 4


def _cell(function: Callable[..., Any], full: Make, gates: int, hidden: Any) -> Any:
    return function(full(N, N), hidden, full(gates * N, N), full(gates * N, N), full(gates * N), full(gates * N))


def _labels(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long, device=x.device)


#: float32 in, the autocast dtype out
LOWER: dict[str, Callable[[Make], Any]] = {
    "_convolution.deprecated": lambda full: aten._convolution.deprecated(
        full(1, 3, 6, 6), full(2, 3, 3, 3), full(2), [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, True, True
    ),
    "_convolution": lambda full: aten._convolution.default(
        full(1, 3, 6, 6), full(2, 3, 3, 3), full(2), [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, True, True, True
    ),
    "conv1d": lambda full: torch.conv1d(full(1, 3, 6), full(2, 3, 3), full(2)),
    "conv2d": lambda full: torch.conv2d(full(1, 3, 6, 6), full(2, 3, 3, 3), full(2)),
    "conv3d": lambda full: torch.conv3d(full(1, 3, 6, 6, 6), full(2, 3, 3, 3, 3), full(2)),
    "conv_tbc": lambda full: torch.conv_tbc(full(6, 2, 3), full(3, 3, 4), full(4)),
    "conv_transpose1d": lambda full: torch.conv_transpose1d(full(1, 3, 6), full(3, 2, 3)),
    "conv_transpose2d.input": lambda full: torch.conv_transpose2d(full(1, 3, 6, 6), full(3, 2, 3, 3)),
    "conv_transpose3d.input": lambda full: torch.conv_transpose3d(full(1, 3, 4, 4, 4), full(3, 2, 3, 3, 3)),
    "convolution": lambda full: torch.convolution(
        full(1, 3, 6, 6), full(2, 3, 3, 3), full(2), [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    ),
    "prelu": lambda full: torch.prelu(full(N), full(1)),
    "addmm": lambda full: torch.addmm(full(N, N), full(N, N), full(N, N)),
    "addmv": lambda full: torch.addmv(full(N), full(N, N), full(N)),
    "addr": lambda full: torch.addr(full(N, N), full(N), full(N)),
    "matmul": lambda full: torch.matmul(full(2, N, N), full(N, N)),
    "einsum": lambda full: torch.einsum("bkhd,bqhd->bqkh", full(1, 2, 3, 4), full(1, 5, 3, 4)),
    "mm": lambda full: torch.mm(full(N, N), full(N, N)),
    "mv": lambda full: torch.mv(full(N, N), full(N)),
    "linalg_vecdot": lambda full: torch.linalg.vecdot(full(N, N), full(N, N)),
    "linear": lambda full: functional.linear(full(N, N), full(2, N), full(2)),
    "addbmm": lambda full: torch.addbmm(full(N, N), full(2, N, N), full(2, N, N)),
    "baddbmm": lambda full: torch.baddbmm(full(2, N, N), full(2, N, N), full(2, N, N)),
    "bmm": lambda full: torch.bmm(full(2, N, N), full(2, N, N)),
    "chain_matmul": lambda full: aten.chain_matmul([full(N, N), full(N, N), full(N, N)]),
    "linalg_multi_dot": lambda full: torch.linalg.multi_dot([full(N, N), full(N, N), full(N, N)]),
    "lstm_cell": lambda full: _cell(torch.lstm_cell, full, 4, (full(N, N), full(N, N))),
    "gru_cell": lambda full: _cell(torch.gru_cell, full, 3, full(N, N)),
    "rnn_tanh_cell": lambda full: _cell(torch.rnn_tanh_cell, full, 1, full(N, N)),
    "rnn_relu_cell": lambda full: _cell(torch.rnn_relu_cell, full, 1, full(N, N)),
    "scaled_dot_product_attention": lambda full: functional.scaled_dot_product_attention(
        full(1, 2, 4, 8), full(1, 2, 4, 8), full(1, 2, 4, 8)
    ),
}

#: On the lists, but only CUDA has a kernel: the right dtype or an error that names the op.
CUDA_KERNELS: dict[str, Callable[[Make], Any]] = {
    "_thnn_fused_lstm_cell": lambda full: aten._thnn_fused_lstm_cell(full(N, 4 * N), full(N, 4 * N), full(N, N)),
    "_thnn_fused_gru_cell": lambda full: aten._thnn_fused_gru_cell(full(N, 3 * N), full(N, 3 * N), full(N, N)),
    "_scaled_dot_product_flash_attention": lambda full: aten._scaled_dot_product_flash_attention(
        full(1, 2, 4, 8), full(1, 2, 4, 8), full(1, 2, 4, 8)
    ),
}

#: the autocast dtype in, float32 out
FLOAT32: dict[str, Callable[[Make], Any]] = {
    **{
        name: lambda low, name=name: getattr(torch, name)(low(N).abs().clamp(0.1, 0.9))
        for name in ("acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan".split())
    },
    "pow.Tensor_Scalar": lambda low: torch.pow(low(N).abs(), 1.7),
    "pow.Tensor_Tensor": lambda low: torch.pow(low(N).abs(), low(N)),
    "pow.Scalar": lambda low: torch.pow(1.7, low(N)),
    "softplus": lambda low: functional.softplus(low(N)),
    "layer_norm": lambda low: functional.layer_norm(low(N, N), (N,)),
    "native_layer_norm": lambda low: torch.native_layer_norm(low(N, N), (N,), None, None, 1e-5),
    "rms_norm": lambda low: functional.rms_norm(low(N, N), (N,)),
    "group_norm": lambda low: functional.group_norm(low(1, N, N), 2),
    "frobenius_norm.dim": lambda low: aten.frobenius_norm.dim(low(N, N), [0, 1]),
    "nuclear_norm": lambda low: torch.nuclear_norm(low(N, N)),
    "nuclear_norm.dim": lambda low: torch.nuclear_norm(low(N, N), (0, 1)),
    "cosine_similarity": lambda low: functional.cosine_similarity(low(N, N), low(N, N)),
    "poisson_nll_loss": lambda low: functional.poisson_nll_loss(low(N), low(N).abs()),
    "cosine_embedding_loss": lambda low: functional.cosine_embedding_loss(low(N, N), low(N, N), low(N).sign()),
    "nll_loss": lambda low: functional.nll_loss(low(N, N), _labels(low(1), N)),
    "nll_loss2d": lambda low: functional.nll_loss(low(1, N, 2, 2), _labels(low(1), 1, 2, 2)),
    "hinge_embedding_loss": lambda low: functional.hinge_embedding_loss(low(N), low(N).sign()),
    "kl_div": lambda low: functional.kl_div(low(N), low(N).abs(), reduction="sum"),
    "l1_loss": lambda low: functional.l1_loss(low(N), low(N)),
    "smooth_l1_loss": lambda low: functional.smooth_l1_loss(low(N), low(N)),
    "huber_loss": lambda low: functional.huber_loss(low(N), low(N)),
    "mse_loss": lambda low: functional.mse_loss(low(N), low(N)),
    "margin_ranking_loss": lambda low: functional.margin_ranking_loss(low(N), low(N), low(N).sign()),
    "multilabel_margin_loss": lambda low: functional.multilabel_margin_loss(low(N, N), _labels(low(1), N, N)),
    "soft_margin_loss": lambda low: functional.soft_margin_loss(low(N), low(N).sign()),
    "triplet_margin_loss": lambda low: functional.triplet_margin_loss(low(N, N), low(N, N), low(N, N)),
    "multi_margin_loss": lambda low: functional.multi_margin_loss(low(N, N), _labels(low(1), N)),
    "binary_cross_entropy_with_logits": lambda low: functional.binary_cross_entropy_with_logits(
        low(N), low(N).sigmoid()
    ),
    "dist": lambda low: torch.dist(low(N), low(N)),
    "pdist": lambda low: torch.pdist(low(N, N)),
    "cdist": lambda low: torch.cdist(low(N, N), low(N, N)),
    "renorm": lambda low: torch.renorm(low(N, N), 2, 0, 1.0),
    "logsumexp": lambda low: torch.logsumexp(low(N, N), 1),
    "upsample_nearest1d": lambda low: aten.upsample_nearest1d(low(1, 2, 4), [8]),
    "_upsample_nearest_exact1d": lambda low: aten._upsample_nearest_exact1d(low(1, 2, 4), [8]),
    "upsample_nearest2d": lambda low: aten.upsample_nearest2d(low(1, 2, 4, 4), [8, 8]),
    "_upsample_nearest_exact2d": lambda low: aten._upsample_nearest_exact2d(low(1, 2, 4, 4), [8, 8]),
    "upsample_nearest3d": lambda low: aten.upsample_nearest3d(low(1, 2, 4, 4, 4), [8, 8, 8]),
    "_upsample_nearest_exact3d": lambda low: aten._upsample_nearest_exact3d(low(1, 2, 4, 4, 4), [8, 8, 8]),
    "upsample_linear1d": lambda low: aten.upsample_linear1d(low(1, 2, 4), [8], False),
    "upsample_bilinear2d": lambda low: aten.upsample_bilinear2d(low(1, 2, 4, 4), [8, 8], False),
    "_upsample_bilinear2d_aa": lambda low: aten._upsample_bilinear2d_aa(low(1, 2, 4, 4), [8, 8], False),
    "upsample_trilinear3d": lambda low: aten.upsample_trilinear3d(low(1, 2, 4, 4, 4), [8, 8, 8], False),
    "upsample_bicubic2d": lambda low: aten.upsample_bicubic2d(low(1, 2, 4, 4), [8, 8], False),
    "_upsample_bicubic2d_aa": lambda low: aten._upsample_bicubic2d_aa(low(1, 2, 4, 4), [8, 8], False),
    "norm.Scalar": lambda low: torch.norm(low(N), 2),
    "norm.ScalarOpt_dim": lambda low: torch.norm(low(N, N), 2, dim=1),
}

#: the autocast dtype in, float32 out, unless the call names a dtype itself
FLOAT32_UNLESS_ASKED: dict[str, Callable[..., Any]] = {
    "prod": lambda low, **dtype: torch.prod(low(N), **dtype),
    "prod.dim_int": lambda low, **dtype: torch.prod(low(N, N), 1, **dtype),
    "softmax.int": lambda low, **dtype: torch.softmax(low(N, N), 1, **dtype),
    "log_softmax.int": lambda low, **dtype: torch.log_softmax(low(N, N), 1, **dtype),
    "cumprod": lambda low, **dtype: torch.cumprod(low(N), 0, **dtype),
    "cumsum": lambda low, **dtype: torch.cumsum(low(N), 0, **dtype),
    "linalg_vector_norm": lambda low, **dtype: torch.linalg.vector_norm(low(N), **dtype),
    "linalg_matrix_norm": lambda low, **dtype: torch.linalg.matrix_norm(low(N, N), 1, **dtype),
    "linalg_matrix_norm.str_ord": lambda low, **dtype: torch.linalg.matrix_norm(low(N, N), "fro", **dtype),
    "sum": lambda low, **dtype: torch.sum(low(N), **dtype),
    "sum.dim_IntList": lambda low, **dtype: torch.sum(low(N, N), 1, **dtype),
}


def _index_put(first: Make, second: Make) -> torch.Tensor:
    target = first(N)
    return torch.index_put(target, [torch.arange(2, device=target.device)], second(2))


def _scatter_add(first: Make, second: Make) -> torch.Tensor:
    target = first(N)
    return torch.scatter_add(target, 0, torch.arange(N, device=target.device), second(N))


#: the widest dtype of the inputs comes out
PROMOTE: dict[str, Callable[[Make, Make], Any]] = {
    "addcdiv": lambda first, second: torch.addcdiv(first(N), second(N), second(N)),
    "addcmul": lambda first, second: torch.addcmul(first(N), second(N), second(N)),
    "atan2": lambda first, second: torch.atan2(first(N), second(N)),
    "bilinear": lambda first, second: torch.bilinear(first(2, N), second(2, N), second(3, N, N), first(3)),
    "cross": lambda first, second: torch.cross(first(3), second(3), dim=0),
    "dot": lambda first, second: torch.dot(first(N), second(N)),
    "vdot": lambda first, second: torch.vdot(first(N), second(N)),
    "grid_sampler": lambda first, second: torch.grid_sampler(
        first(1, 2, 4, 4), second(1, 3, 3, 2).clamp(-1, 1), 0, 0, False
    ),
    "index_put": _index_put,
    "tensordot": lambda first, second: torch.tensordot(first(N, N), second(N, N), 1),
    "scatter_add": _scatter_add,
    "cat": lambda first, second: torch.cat([first(N), second(N)]),
    "stack": lambda first, second: torch.stack([first(N), second(N)]),
}
