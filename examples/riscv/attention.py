"""A transformer's block on a bare-metal RISC-V core: norm, causal attention, MLP, each with its residual.

python examples/riscv/attention.py
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import bringup


class Block(nn.Module):
    """As in GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, tokens, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, tokens, width))
        return x + self.mlp(x)


def main(vector: int, tokens: int) -> None:
    torch.manual_seed(0)
    block, x = Block(32, 2).eval(), torch.randn(1, tokens, 32)
    backend = bringup.Backend(target="riscv", vector=vector, name="block")
    with torch.no_grad():
        result = torch.compile(block, backend=backend)(x)
        torch.testing.assert_close(result, block(x))
    print(backend.report())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vector", type=int, default=256, help="bits of a vector register; 0: scalar code")
    parser.add_argument("--tokens", type=int, default=16)
    main(**vars(parser.parse_args()))
