"""A small network learns to tell two spirals apart, then runs as a bare-metal RISC-V program.

python examples/riscv/mlp.py
python examples/riscv/mlp.py --vector 0 --out project      # scalar code, and a project for make
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn

import bringup


def spirals(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on two arms, and which arm each is on."""
    arm = torch.arange(count) % 2
    turn = torch.rand(count) * 2 * math.pi + 0.5
    angle = turn + arm * math.pi
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], 1) / 7
    return points + 0.01 * torch.randn_like(points), arm


def trained(steps: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(steps):
        points, arm = spirals(256)
        loss = nn.functional.cross_entropy(model(points), arm)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def main(vector: int, steps: int, out: str) -> None:
    torch.set_num_threads(1)  # layers are so small that threads would wait for each other: 40 times slower
    model = trained(steps)
    points, arm = spirals(64)
    backend = bringup.Backend(target="riscv", vector=vector, name="spirals")
    with torch.no_grad():
        on_guest = torch.compile(model, backend=backend)(points)
        expected = model(points)
    torch.testing.assert_close(on_guest, expected)
    right = (on_guest.argmax(1) == arm).float().mean()
    print(f"{right:.0%} of {len(points)} points are classified right by the guest")
    print(backend.report())
    if out:
        bringup.export(model, (points[:1],), target="riscv", out=out, vector=vector, name="spirals")
        print(f"a project is in {out}: make -C {out} run")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vector", type=int, default=256, help="bits of a vector register; 0: scalar code")
    parser.add_argument("--steps", type=int, default=500, help="steps of training")
    parser.add_argument("--out", default="", help="write a project to this folder")
    main(**vars(parser.parse_args()))
