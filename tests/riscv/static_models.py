"""PyTorch models as StaticPrograms, by way of an export target that keeps what it gets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import bringup
from bringup.graph.bare_metal.static_program import StaticProgram, static_program
from bringup.graph.export.targets import export_target
from bringup.graph.program import GraphProgram
from bringup.ir.dtypes import Array

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]
_kept: list[StaticProgram] = []


@export_target("static_models")
def _keep(program: GraphProgram, constants: Sequence[memoryview], out: Path, **options: Any) -> None:
    _kept.append(static_program(program, [memoryview(bytes(one)) for one in constants]))


def program_of_model(model: torch.nn.Module, *arguments: torch.Tensor) -> StaticProgram:
    """The program of a model, before any pass."""
    bringup.export(model.eval(), arguments, target="static_models", out="unused")
    return _kept.pop()


def flat(tensor: torch.Tensor) -> Array:
    """A tensor's memory as the interpreter takes it."""
    contiguous = tensor.detach().contiguous()
    if contiguous.dtype is torch.bfloat16:
        contiguous = contiguous.view(torch.uint16)
    return np.ascontiguousarray(contiguous.numpy().reshape(-1))


class Residual(nn.Module):
    """A block with normalisation and a way around it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(channels, channels, 3, padding=1), nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        nn.init.uniform_(self.norm.weight, 0.5, 2)
        nn.init.uniform_(self.norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.two(torch.relu(self.norm(self.one(x)))))


class Attention(nn.Module):
    """One head, with a mask, between two normalisations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / x.shape[-1] ** 0.5
        mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).tril()
        return self.after(x + torch.softmax(scores.masked_fill(~mask, -1e9), -1) @ self.v(x))


class Words(nn.Module):
    """Numbers of words in, the largest score and its place out."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(11, 6), nn.Linear(6, 5)

    def forward(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.out(self.table(words)).max(-1)


class PoolOfTwo(nn.Module):
    """A convolution that is pooled and also an output of its own: it may not vanish into the pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.conv(x))
        return torch.max_pool2d(y, 2), y


def _images(*layers: nn.Module, channels: int, size: tuple[int, int], batch: int = 1) -> Made:
    return nn.Sequential(*layers), (torch.randn(batch, channels, *size),)


#: name → (model, example inputs); small, and each about one thing that a pass rearranges.
MODELS: dict[str, Callable[[], Made]] = {
    "mlp": lambda: (nn.Sequential(nn.Linear(30, 17), nn.ReLU(), nn.Linear(17, 5)), (torch.randn(1, 30),)),
    "mlp_batch": lambda: (nn.Sequential(nn.Linear(41, 12), nn.Tanh(), nn.Linear(12, 3)), (torch.randn(11, 41),)),
    "cnn": lambda: _images(
        *(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(24, 10)),
        channels=1,
        size=(14, 15),
    ),
    "padded": lambda: _images(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU6(), channels=3, size=(7, 9), batch=2),
    "leftovers": lambda: _images(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True), channels=2, size=(7, 5)
    ),
    "windows": lambda: _images(
        nn.Conv2d(2, 7, 3, padding=1), nn.MaxPool2d((3, 2)), nn.ReLU(), channels=2, size=(10, 9), batch=2
    ),
    "overlapping": lambda: _images(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(3, stride=2), channels=2, size=(11, 10)),
    "padded_maximum": lambda: _images(
        nn.Conv2d(1, 2, 1), nn.MaxPool2d(3, stride=2, padding=1), channels=1, size=(6, 6)
    ),
    "average": lambda: _images(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.AvgPool2d(2), channels=2, size=(8, 10)),
    "strided": lambda: _images(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.Conv2d(4, 3, 2, stride=(3, 1)), channels=2, size=(9, 8)
    ),
    "dilated": lambda: _images(nn.Conv2d(2, 3, 3, dilation=2, padding=2), channels=2, size=(8, 9)),
    "groups": lambda: _images(
        nn.Conv2d(6, 9, 3, groups=3), nn.ReLU(), nn.Conv2d(9, 9, 3, groups=9, padding=1), channels=6, size=(6, 8)
    ),
    "pointwise": lambda: _images(
        nn.Conv2d(4, 8, 1), nn.Hardswish(), nn.Conv2d(8, 8, 3, groups=8, stride=2), channels=4, size=(7, 7)
    ),
    "whole_image": lambda: _images(
        nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2), channels=1, size=(6, 6)
    ),
    "upwards": lambda: _images(nn.ConvTranspose2d(3, 2, 3, stride=2), nn.Sigmoid(), channels=3, size=(4, 5)),
    "sequence": lambda: (
        nn.Sequential(nn.Conv1d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 2, 5)),
        (torch.randn(2, 3, 30),),
    ),
    "residual": lambda: (Residual(4), (torch.randn(1, 4, 6, 7),)),
    "pool_of_two": lambda: (PoolOfTwo(), (torch.randn(1, 2, 8, 9),)),
    "attention": lambda: (Attention(12), (torch.randn(2, 7, 12),)),
    "words": lambda: (Words(), (torch.tensor([[3, 0, 10, 7]]),)),
    "halves": lambda: (nn.Sequential(nn.Linear(9, 8), nn.GELU()).to(torch.bfloat16), (torch.randn(3, 9).bfloat16(),)),
    "doubles": lambda: (nn.Sequential(nn.Linear(9, 8), nn.Softplus()).double(), (torch.randn(3, 9).double(),)),
}


class Together(nn.Module):
    """All models as one: exporting them one by one takes longer."""

    def __init__(self, models: dict[str, nn.Module], counts: list[int]) -> None:
        super().__init__()
        self.models, self.counts = nn.ModuleDict(models), counts

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results: list[torch.Tensor] = []
        for model, count in zip(self.models.values(), self.counts):
            made = model(*inputs[:count])
            results += [made] if isinstance(made, torch.Tensor) else made
            inputs = inputs[count:]
        return tuple(results)


@functools.lru_cache(maxsize=1)
def together() -> tuple[Together, tuple[torch.Tensor, ...], StaticProgram]:
    """MODELS, their example inputs, and the program of all of them."""
    torch.manual_seed(0)
    made = {name: make() for name, make in MODELS.items()}
    model = Together({name: one for name, (one, _) in made.items()}, [len(inputs) for _, inputs in made.values()])
    arguments = tuple(tensor for _, inputs in made.values() for tensor in inputs)
    return model, arguments, program_of_model(model, *arguments)
