"""A gradient of your own around device ops: ``torch.autograd.Function``, in both of its styles.

    python examples/operators/autograd_function.py

Use it where the operator is a composition of ops that exist, and only the gradient is special (cheaper, more
accurate, or different on purpose). It defines no new operator, so it needs no schema and no kernel.
"""

import torch

import bringup

DEVICE = bringup.device().type


class SoftClip(torch.autograd.Function):
    """``forward`` computes, ``setup_context`` keeps what the gradient needs; torch.func can transform it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, limit: float) -> torch.Tensor:
        return x / (1 + x.abs() / limit)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        x, limit = inputs
        ctx.save_for_backward(x)
        ctx.limit = limit

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (1 + x.abs() / ctx.limit) ** 2, None


class StraightThroughRound(torch.autograd.Function):
    """The older style: ``forward`` gets the context. Rounds, and lets the gradient pass as if it had not."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, step: float) -> torch.Tensor:
        return (x / step).round() * step

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def main() -> None:
    x = torch.linspace(-100, 100, 5, device=DEVICE, requires_grad=True)
    y = SoftClip.apply(x, 10.0)
    z = StraightThroughRound.apply(y, 0.5)
    z.sum().backward()
    print(y, z, x.grad)


if __name__ == "__main__":
    main()
