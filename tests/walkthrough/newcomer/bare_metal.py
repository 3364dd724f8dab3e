"""Step 7: a model as a program for a RISC-V core without an operating system, run in the emulator."""

import sys

import torch

import bringup

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
x = torch.randn(1, 16)
backend = bringup.Backend(target="riscv", vector=256)
with torch.no_grad():
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
print(backend.report())
bringup.export(model, (x,), target="riscv", vector=256, out=sys.argv[1])
