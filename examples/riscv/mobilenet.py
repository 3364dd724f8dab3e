"""A CNN of MobileNetV2's shape (inverted residuals, depthwise convolutions, ReLU6) with limits on RAM and flash.

python examples/riscv/mobilenet.py
python examples/riscv/mobilenet.py --page report.html      # where the instructions go, as a picture
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import bringup


def convolution(inside: int, outside: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inside, outside, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outside), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Wider by a pointwise layer, filtered by a depthwise one, narrow again."""

    def __init__(self, inside: int, outside: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = inside * expand
        self.adds = stride == 1 and inside == outside
        self.layers = nn.Sequential(
            convolution(inside, wide, 1),
            convolution(wide, wide, 3, stride, groups=wide),
            nn.Sequential(nn.Conv2d(wide, outside, 1, bias=False), nn.BatchNorm2d(outside)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return x + y if self.adds else y


def mobilenet(classes: int) -> nn.Module:
    model = nn.Sequential(
        convolution(3, 8, 3, stride=2),
        InvertedResidual(8, 8, 1, expand=2),
        InvertedResidual(8, 16, 2, expand=4),
        InvertedResidual(16, 16, 1, expand=4),
        convolution(16, 64, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )
    return model.eval()


def main(vector: int, side: int, page: str) -> None:
    torch.manual_seed(0)
    model, image = mobilenet(10), torch.randn(1, 3, side, side)
    limits = {"ram": "256K", "flash": "64K"}
    backend = bringup.Backend(target="riscv", vector=vector, name="mobilenet", **limits)
    with torch.no_grad():
        result = torch.compile(model, backend=backend)(image)
        torch.testing.assert_close(result, model(image), rtol=1e-4, atol=1e-5)
    print(backend.report())
    if page:
        print(f"the chart is in {backend.reports()[0].save(page)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vector", type=int, default=256, help="bits of a vector register; 0: scalar code")
    parser.add_argument("--side", type=int, default=32, help="pixels of an image's side")
    parser.add_argument("--page", default="", help="write the report to this file, as .html, .json or text")
    main(**vars(parser.parse_args()))
