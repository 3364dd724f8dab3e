"""Matrix products as models have them (one, a batch, a chain, with a bias) on scalar and vector cores.

python examples/riscv/matmul.py
"""

from __future__ import annotations

from collections.abc import Callable

import torch

import bringup

Function = Callable[..., torch.Tensor]


def chained(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Two products: the one between them never leaves the guest."""
    return a @ b @ c


def with_bias(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Bias and ReLU are part of the product's kernel."""
    return torch.relu(torch.addmm(bias, a, b))


PATTERNS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "mm": (torch.mm, [(24, 32), (32, 40)]),
    "bmm": (torch.bmm, [(4, 12, 16), (4, 16, 20)]),
    "matmul, broadcast": (torch.matmul, [(3, 8, 16), (16, 24)]),
    "chained": (chained, [(16, 24), (24, 32), (32, 8)]),
    "bias and relu": (with_bias, [(16, 32), (32, 24), (24,)]),
}


def instructions(function: Function, tensors: list[torch.Tensor], vector: int) -> int:
    """Runs it in the emulator, compares with eager, and says how many instructions that took."""
    torch._dynamo.reset()
    backend = bringup.Backend(target="riscv", vector=vector)
    result = torch.compile(function, backend=backend, dynamic=False)(*tensors)
    torch.testing.assert_close(result, function(*tensors))
    return backend.reports()[0].instructions


def main() -> None:
    torch.manual_seed(0)
    print(f"{'':18} {'shapes':32} {'scalar':>8} {'VLEN 128':>9} {'VLEN 512':>9}")
    for name, (function, shapes) in PATTERNS.items():
        tensors = [torch.randn(shape) for shape in shapes]
        scalar, short, long = (instructions(function, tensors, vector) for vector in (0, 128, 512))
        print(f"{name:18} {str(shapes)[1:-1]:32} {scalar:8,} {short:9,} {long:9,}")


if __name__ == "__main__":
    main()
