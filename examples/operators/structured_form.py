"""Builds structured_form.cpp: from then on softshrink on the device runs the kernel in that file.

python examples/operators/structured_form.py
"""

from pathlib import Path

import torch
from torch.utils.cpp_extension import load

import bringup

DEVICE = bringup.device().type

load(
    name="structured_form",
    sources=[str(Path(__file__).with_suffix(".cpp"))],
    extra_cflags=["-O2", "-std=c++20"],
    is_python_module=False,
)
calls = torch.ops.structured_form.calls


def main() -> None:
    x = torch.linspace(-1, 1, 5, device=DEVICE, requires_grad=True)
    y = torch.nn.functional.softshrink(x)
    y.sum().backward()
    print(y, x.grad, f"kernel calls: {calls()}")


if __name__ == "__main__":
    main()
