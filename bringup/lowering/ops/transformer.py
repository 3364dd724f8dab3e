"""PyTorch's fused transformer layer for inference, made of the device's own ops.

``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` call these ops in eval mode without gradients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from bringup.lowering.registry import composed


def _hidden(mask: Tensor, kind: int | None, shape: tuple[int, int, int]) -> Tensor:
    """True where a position must not be seen, as [batch, head, query, key]: of a mask of queries × keys (0), of padded
    keys (1), or of both (2)."""
    batch, queries, keys = shape
    hidden = mask.to(torch.bool)
    if kind == 1:
        return hidden.view(batch, 1, 1, keys)
    return hidden if hidden.ndim == 4 else hidden.view(-1, 1, queries, keys)


@composed("aten::_native_multi_head_attention")
def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of all heads with its projections, and the weights if they are wanted."""
    batch, queries, keys = query.shape[0], query.shape[1], key.shape[1]
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    q, k, v = (
        functional.linear(x, weight, bias).unflatten(-1, (num_head, -1)).transpose(1, 2)
        for x, weight, bias in zip((query, key, value), weights, biases)
    )
    hidden = None if mask is None else _hidden(mask, mask_type, (batch, queries, keys))
    seen = torch.empty(0, dtype=query.dtype, device=query.device)
    if need_weights:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        seen = (scores if hidden is None else scores.masked_fill(hidden, -math.inf)).softmax(-1)
        heads = seen @ v
        seen = seen.mean(1) if average_attn_weights else seen
    else:
        heads = functional.scaled_dot_product_attention(q, k, v, None if hidden is None else hidden.logical_not())
    together = heads.transpose(1, 2).reshape(batch, queries, embed_dim)
    return functional.linear(together, proj_weight, proj_bias), seen


@composed("aten::_transformer_encoder_layer_fwd")
def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Attention and two linear layers, each with a way around it, normalised before or after."""

    def first_norm(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attended(x: Tensor) -> Tensor:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return multi_head_attention(x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type)[0]

    def fed_forward(x: Tensor) -> Tensor:
        inner = functional.linear(x, ffn_weight_1, ffn_bias_1)
        return functional.linear(functional.gelu(inner) if use_gelu else inner.relu(), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attended(first_norm(src))
        return x + fed_forward(second_norm(x))
    x = first_norm(src + attended(src))
    return second_norm(x + fed_forward(x))


@composed("aten::_nested_tensor_from_mask_left_aligned")
def becomes_nested(t: Tensor, mask: Tensor) -> bool:
    """Whether ``nn.TransformerEncoder`` may leave padding out by a nested tensor, which the device does not have."""
    return False
