"""An image through the layers of ResNet-18: BRINGUP_DRIVERS=upmem python examples/upmem/resnet.py

The weights stay in MRAM. ``--size 64`` takes a smaller image, which is simulated sooner.
"""

import argparse
import time

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions and what goes around them."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        stride = out // channels
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.around: nn.Module = nn.Identity()
        if stride > 1:
            self.around = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """Adds the two ways."""
        return torch.relu(self.body(x) + self.around(x))


def resnet() -> nn.Module:
    """Returns the network: 18 layers with weights, 11.7 million numbers."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for channels, out in ((64, 64), (64, 128), (128, 256), (256, 512)):
        layers += [Block(channels, out), Block(out, out)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=224, help="rows and columns of the image")
size = parser.parse_args().size

torch.manual_seed(0)
model, image = resnet().eval(), torch.randn(1, 3, size, size)
with torch.inference_mode():
    expected = model(image)
    there = model.to("upmem")  # once: each DPU has its part of the weights, or all of them
    torch.upmem.reset_report()
    for which in ("first", "next"):  # the first one compiles
        started = time.perf_counter()
        result = there(image.to("upmem")).cpu()
        print(f"{which} forward: simulated in {time.perf_counter() - started:.1f} s")
torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-5)
print(torch.upmem.report())
