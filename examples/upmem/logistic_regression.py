"""Training on UPMEM: BRINGUP_DRIVERS=upmem python examples/upmem/logistic_regression.py"""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
y = (x @ torch.randn(8) > 0).float()
dx, dy = x.to("upmem"), y.to("upmem")
model = nn.Linear(8, 1).to("upmem")
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
losses = []
for _ in range(15):
    optimizer.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(dx).squeeze(1), dy)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}")
assert losses[-1] < 0.5 * losses[0]
