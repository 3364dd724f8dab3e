"""Step 5: an operator of our own as a formula, with its gradient; a kernel on the chip."""

import torch

import bringup
from bringup import formulas as f

swish = bringup.pointwise(
    "walk::swish(Tensor self, float beta=1.0) -> Tensor",
    lambda x, beta: x * f.sigmoid(beta * x),
    backward=lambda grad, x, beta: grad * f.sigmoid(beta * x) * (1.0 + beta * x * (1.0 - f.sigmoid(beta * x))),
)

x = torch.linspace(-3, 3, 50, device="heron", requires_grad=True)
swish(x, 2.0).sum().backward()
y = x.detach().cpu().requires_grad_()
(y * torch.sigmoid(2 * y)).sum().backward()
torch.testing.assert_close(x.grad.cpu(), y.grad)
assert not [row.op for row in bringup.fallbacks() if "swish" in row.op]
