"""The pieces of batch norm over several processes: CUDA has kernels for them, the CPU has none. ``SyncBatchNorm``."""

from __future__ import annotations

import torch
from torch import Tensor

from bringup.lowering.composed import composed_everywhere


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _folded(x: Tensor) -> list[int]:
    """All dimensions but the channels."""
    return [d for d in range(x.ndim) if d != 1]


def _across(x: Tensor, of_channels: Tensor) -> Tensor:
    """A tensor [c] against the channels of x."""
    return of_channels.view([-1, *(1 for _ in range(x.ndim - 2))])


@composed_everywhere("aten::batch_norm_stats")
def stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation of this process's channels."""
    variance, mean = torch.var_mean(input.to(_wide(input.dtype)), _folded(input), correction=0)
    return mean, (variance + eps).rsqrt()


@composed_everywhere("aten::batch_norm_gather_stats_with_counts")
def gather_stats(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Those of all processes, from a row [c] of each; the running statistics are updated in place."""
    count = counts.to(mean.dtype).view(-1, 1)
    total = count.sum()
    middle = (mean * count).sum(0) / total
    spread = invstd.pow(-2) - eps + (mean - middle).square()
    variance = (spread * count).sum(0) / total
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(middle.to(running_mean.dtype), alpha=momentum)
    if running_var is not None:
        unbiased = variance * (total / (total - 1))
        running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
    return middle, (variance + eps).rsqrt()


@composed_everywhere("aten::batch_norm_elemt")
def normalize(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    """The output, by the statistics of all processes."""
    y = (input.to(mean.dtype) - _across(input, mean)) * _across(input, invstd)
    if weight is not None:
        y = y * _across(input, weight)
    if bias is not None:
        y = y + _across(input, bias)
    return y.to(input.dtype)


@composed_everywhere("aten::batch_norm_backward_reduce")
def backward_sums(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Sums of this process: of the gradient, and of the gradient times what the mean was taken from."""
    grad, off = grad_out.to(mean.dtype), input.to(mean.dtype) - _across(input, mean)
    sum_dy, sum_dy_xmu = grad.sum(_folded(input)), (grad * off).sum(_folded(input))
    narrow = mean.dtype if weight is None else weight.dtype
    return (
        sum_dy if input_g else None,
        sum_dy_xmu if input_g else None,
        (sum_dy_xmu * invstd).to(narrow) if weight_g else None,
        sum_dy.to(narrow) if bias_g else None,
    )


@composed_everywhere("aten::batch_norm_backward_elemt")
def backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """The gradient of the input, by the sums of all processes."""
    total = count.sum()
    off = (input.to(mean.dtype) - _across(input, mean)) * _across(input, invstd.square() * sum_dy_xmu / total)
    grad = (grad_out.to(mean.dtype) - _across(input, sum_dy / total) - off) * _across(input, invstd)
    return (grad if weight is None else grad * _across(input, weight)).to(input.dtype)
