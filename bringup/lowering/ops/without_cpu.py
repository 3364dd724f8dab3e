"""Ops that PyTorch has no CPU kernel for, nor a composition: what runs on a device where a call gets no kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bringup.lowering.composed import composed_everywhere


@composed_everywhere("aten::_masked_scale")
def masked_scale(self: Tensor, mask: Tensor, scale: float) -> Tensor:
    """What a dropout's backward does with its mask."""
    return self * mask.to(self.dtype) * scale


@composed_everywhere("aten::_fused_rms_norm_backward")
def rms_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of RMS norm; of halves in float32, as the kernel computes them."""
    wide = torch.float32 if input.dtype in (torch.float16, torch.bfloat16) else input.dtype
    outer = list(range(input.ndim - len(normalized_shape)))
    inner = list(range(len(outer), input.ndim))
    normed, grad = input.to(wide) * rstd.to(wide), grad_out.to(wide)
    dx = dw = None
    if output_mask[0]:
        scaled = grad if weight is None else grad * weight.to(wide)
        dx = (scaled - normed * (scaled * normed).mean(inner, keepdim=True)) * rstd.to(wide)
    if output_mask[1] and weight is not None:
        dw = grad * normed
        dw = (dw.sum(outer) if outer else dw).to(weight.dtype)
    return None if dx is None else dx.to(input.dtype), dw
