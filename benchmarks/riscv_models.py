"""The models of benchmarks/riscv.py: two with bars in instructions, and six more, of the shapes that models come in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Self-attention with its norm and its residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, tokens, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        added: torch.Tensor = self.out(y.transpose(1, 2).reshape(n, tokens, width))
        return x + added


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for narrow, wide in pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 10)),
    )


def strided_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * 8 * 8, 10)),
    )


def separable_block() -> nn.Module:
    """Depthwise, then pointwise, each with batch norm and ReLU6, as in MobileNet; the statistics are not trivial."""
    block = nn.Sequential(
        *(nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU6()),
        *(nn.Conv2d(16, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()),
    )
    for norm in (block[1], block[4]):
        assert isinstance(norm, nn.BatchNorm2d)
        for tensor in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
            assert tensor is not None
            nn.init.uniform_(tensor, 0.5, 1.5)
    return block


@dataclass(frozen=True)
class Workload:
    """A model, its input, the most instructions it may need by bits of a vector (0: scalar), and what limits it."""

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    limits: tuple[str, str]
    """What limits it: on scalar cores, and with vectors."""
    bars: Mapping[int, int] = field(default_factory=dict)
    int8: bool = False

    def build(self) -> tuple[nn.Module, torch.Tensor]:
        """The model with its weights, and an input: the same each time."""
        torch.manual_seed(0)
        model = self.model().eval().requires_grad_(False)
        x = torch.randn(self.shape)
        if self.int8:
            import bringup

            model = bringup.quantize(model, [(torch.randn(self.shape),) for _ in range(8)])
        return model, x


_ONCE = "every weight is used once: a load and a multiply-add are two of its instructions for each product"
_STREAM = (
    "every weight is used once: a vector load for each vector multiply-add; ten outputs fill no vector of 256 bits"
)
WORKLOADS = (
    Workload("mlp", lambda: mlp(784, 128, 10), (1, 784), (_ONCE, _STREAM), {0: 230_000, 128: 13_000, 256: 7_000}),
    Workload(
        "cnn",
        cnn,
        (1, 1, 28, 28),
        (
            "multiply-adds: a tile of 4 × 4 sums needs 8 loads for 16 of them; sums of the first layer are only 9 long",
            "multiply-adds over rows with their ends, which nobody reads; pooling wants every second element",
        ),
        {0: 290_000, 128: 30_000, 256: 20_000},
    ),
    Workload("mlp, odd sizes", lambda: mlp(37, 53, 11), (1, 37), (_ONCE, _STREAM)),
    Workload(
        "mlp, batch 3",
        lambda: mlp(784, 128, 10),
        (3, 784),
        ("multiply-adds; three rows share each load of a weight", "vector loads: rows share a vector of weights"),
    ),
    Workload(
        "cnn, stride 2",
        strided_cnn,
        (1, 3, 32, 32),
        (
            "multiply-adds, and copies of the images with zeros around them",
            "multiply-adds; every second element of a row is used, and ten outputs fill no vector",
        ),
    ),
    Workload(
        "depthwise block",
        separable_block,
        (1, 16, 14, 14),
        (
            "sums are short (9 and 16 products), and norm, clamp and store follow each; no depthwise weight serves two",
            "multiply-adds over rows with their ends, which nobody reads, and taking these out again",
        ),
    ),
    Workload(
        "attention",
        lambda: Attention(32, 2),
        (1, 16, 32),
        (
            "multiply-adds, and 512 exponentials of softmax at about 80 instructions",
            "small products: 16 tokens, heads of 16; rows of 16 fill no long vector",
        ),
    ),
    Workload(
        "cnn, int8",
        cnn,
        (1, 1, 28, 28),
        (
            "a multiply and an add where floats have one instruction, and 64-bit arithmetic for each result",
            "pooling and requantizing; products of 8 bits add up in 32: sums fill four times the registers of weights",
        ),
        int8=True,
    ),
)
