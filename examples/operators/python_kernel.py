"""A new operator whose kernel is Python: schema, kernel for the device, fake kernel.

    python examples/operators/python_kernel.py

Use this form to try an operator out, or where one call does a lot of work: a call into Python costs a few
microseconds. The kernel is written in other device ops, so it runs wherever those run.
"""

import torch

import bringup

DEVICE = bringup.device().type  # "sim", or the driver this process uses

# The schema: what the operator takes and returns. A kernel is chosen by the device of the arguments.
library = torch.library.Library("python_kernel", "DEF")
library.define("soft_clip(Tensor x, float limit) -> Tensor")


def soft_clip(x: torch.Tensor, limit: float) -> torch.Tensor:
    """x / (1 + |x| / limit): the identity near 0, never beyond ±limit."""
    if limit <= 0:
        raise ValueError(f"soft_clip: limit must be above 0, got {limit}")
    return x / (1 + x.abs() / limit)


# PrivateUse1 is PyTorch's key for our device, whatever its name is.
library.impl("soft_clip", soft_clip, "PrivateUse1")
library.impl("soft_clip", soft_clip, "CPU")


# The fake kernel says shape, strides and dtype without touching data: for torch.compile, torch.export and "meta".
@torch.library.register_fake("python_kernel::soft_clip", lib=library)
def soft_clip_fake(x: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.empty_like(x)


def main() -> None:
    x = torch.linspace(-100, 100, 5)
    y = torch.ops.python_kernel.soft_clip(x.to(DEVICE), 10.0)
    print(y)
    torch.testing.assert_close(y.cpu(), torch.ops.python_kernel.soft_clip(x, 10.0))


if __name__ == "__main__":
    main()
