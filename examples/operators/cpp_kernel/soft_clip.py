"""Builds soft_clip.cpp and calls the operator in it, forward and backward.

    python examples/operators/cpp_kernel/soft_clip.py

The binary is kept in PyTorch's extension cache (TORCH_EXTENSIONS_DIR), so the second run starts at once. A package
would build the same file in its setup.py with torch.utils.cpp_extension.CppExtension.
"""

from pathlib import Path

import torch
from torch.utils.cpp_extension import load

import bringup

DEVICE = bringup.device().type

load(
    name="soft_clip",
    sources=[str(Path(__file__).with_name("soft_clip.cpp"))],
    extra_cflags=["-O2", "-std=c++20"],
    is_python_module=False,  # the file registers operators, there is nothing to import
)
soft_clip = torch.ops.cpp_kernel.soft_clip


def main() -> None:
    x = torch.linspace(-100, 100, 5, device=DEVICE, requires_grad=True)
    y = soft_clip(x, 10.0)
    y.sum().backward()
    print(y, x.grad)


if __name__ == "__main__":
    main()
