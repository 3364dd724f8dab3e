"""Linear and ReLU on UPMEM: BRINGUP_DRIVERS=upmem python examples/upmem/linear_relu.py"""

import torch
from torch import nn

import bringup

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).eval()
x = torch.randn(32, 64)
expected = model(x)

fast = bringup.offload(model, device="upmem", ops=["linear", "relu"], min_flops=0)  # model and tensors stay here
torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-5)
print(bringup.offload.report(fast), end="\n\n")

resident = bringup.offload.restore(fast).to("upmem")  # or all of it there
torch.upmem.reset_report()
torch.testing.assert_close(resident(x.to("upmem")).cpu(), expected, rtol=1e-4, atol=1e-5)
print(torch.upmem.report())
