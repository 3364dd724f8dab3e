"""A new operator as a Python function with type hints: ``torch.library.custom_op``, a device kernel, a gradient.

    python examples/operators/custom_op.py

This is the form to start with. The schema is read from the hints; kernels, fake kernel and gradient are added to
the function by decorators; ``torch.library.opcheck`` tests that they fit together.
"""

import torch

import bringup

DEVICE = bringup.device().type


# Without device_types the function below is the kernel of every device that has none of its own.
@torch.library.custom_op("custom_op::soft_clip", mutates_args=())
def soft_clip(x: torch.Tensor, limit: float) -> torch.Tensor:
    return x / (1 + x.abs() / limit)


# A kernel for one device type. A chip with a function of its own for this calls it here.
@soft_clip.register_kernel(DEVICE)
def soft_clip_on_device(x: torch.Tensor, limit: float) -> torch.Tensor:
    scale = x.abs()
    scale.mul_(1 / limit).add_(1)
    return x.div(scale)


@soft_clip.register_fake
def soft_clip_fake(x: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.empty_like(x)


def setup_context(ctx, inputs, output) -> None:
    x, limit = inputs
    ctx.save_for_backward(x)
    ctx.limit = limit


# The gradient: device ops again, so that it can be differentiated once more.
def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad / (1 + x.abs() / ctx.limit) ** 2, None


soft_clip.register_autograd(backward, setup_context=setup_context)


def main() -> None:
    x = torch.linspace(-100, 100, 5, device=DEVICE, requires_grad=True)
    y = soft_clip(x, 10.0)
    y.sum().backward()
    print(y, x.grad)


if __name__ == "__main__":
    main()
