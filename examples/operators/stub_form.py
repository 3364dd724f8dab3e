"""Builds stub_form.cpp: from then on torch.logit on the device runs the kernel in that file.

python examples/operators/stub_form.py
"""

from pathlib import Path

import torch
from torch.utils.cpp_extension import load

import bringup

DEVICE = bringup.device().type

load(
    name="stub_form",
    sources=[str(Path(__file__).with_suffix(".cpp"))],
    extra_cflags=["-O2", "-std=c++20"],
    is_python_module=False,
)
calls = torch.ops.stub_form.calls


def main() -> None:
    x = torch.tensor([0.0, 0.25, 0.5, 1.0], device=DEVICE, requires_grad=True)
    y = torch.logit(x, eps=1e-3)
    y.sum().backward()
    print(y, x.grad, f"kernel calls: {calls()}")


if __name__ == "__main__":
    main()
