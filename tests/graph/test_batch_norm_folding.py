"""Batch norms become part of weights where that is right, and nowhere else; the error stays the CPU's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bringup
from bringup.graph.export.targets import export_target
from bringup.graph.program import GraphProgram

_kept: list[GraphProgram] = []


@export_target("test_of_folding", folds_batch_norms=True)
def _keep(program: GraphProgram, constants: Sequence[memoryview], out: Path, **options: Any) -> None:
    _kept.append(program)


def trained(norm: Any) -> Any:
    """A norm as after training: nothing that a wrong fold could leave out."""
    torch.manual_seed(1)
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        if tensor is not None:
            nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    return norm


class Twice(nn.Module):
    """What the norm takes is also a result: it must stay."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3), trained(nn.BatchNorm2d(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.conv(x)
        return y, self.norm(y)


class Given(nn.Module):
    """Statistics that come with every call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)

    def forward(self, x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(self.conv(x), mean, var)


Made = tuple[nn.Module, tuple[torch.Tensor, ...], int]
R = torch.randn
#: name → model, inputs, how many norms are folded
N1, N2, N3 = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
CASES: dict[str, Callable[[], Made]] = {
    "convolution": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3), trained(N2(8)), nn.ReLU()),
        (R(1, 3, 9, 9),),
        1,
    ),
    "depthwise, no bias": lambda: (
        nn.Sequential(nn.Conv2d(8, 8, 3, groups=8, bias=False), trained(N2(8))),
        (R(2, 8, 9, 9),),
        1,
    ),
    "linear": lambda: (nn.Sequential(nn.Linear(20, 16), trained(N1(16))), (R(3, 20),), 1),
    "linear, no bias": lambda: (
        nn.Sequential(nn.Linear(20, 6, bias=False), trained(N1(6))),
        (R(3, 20),),
        1,
    ),
    "1d": lambda: (nn.Sequential(nn.Conv1d(3, 8, 3), trained(N1(8))), (R(2, 3, 15),), 1),
    "3d": lambda: (nn.Sequential(nn.Conv3d(2, 4, 2), trained(N3(4))), (R(1, 2, 3, 4, 5),), 1),
    "transposed": lambda: (nn.Sequential(nn.ConvTranspose2d(3, 5, 3), trained(N2(5))), (R(1, 3, 4, 4),), 1),
    "not affine": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), trained(N2(4, affine=False))),
        (R(1, 3, 5, 5),),
        1,
    ),
    "double": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), trained(N2(4))).double(),
        (R(1, 3, 5, 5).double(),),
        1,
    ),
    "transposed groups": lambda: (
        nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2), trained(N2(6))),
        (R(1, 4, 4, 4),),
        0,
    ),
    "half": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), trained(N2(4))).bfloat16(),
        (R(1, 3, 5, 5).bfloat16(),),
        0,
    ),
    "before a convolution": lambda: (
        nn.Sequential(trained(N2(3)), nn.Conv2d(3, 4, 3, padding=1)),
        (R(1, 3, 5, 5),),
        0,
    ),
    "behind a relu": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), trained(N2(4))),
        (R(1, 3, 5, 5),),
        0,
    ),
    "read twice": lambda: (Twice(), (R(1, 2, 5, 5),), 0),
    "statistics are inputs": lambda: (Given(), (R(1, 2, 5, 5), R(3), R(3).abs() + 0.5), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_norms_are_folded_where_that_is_right(name: str, tmp_path: Path, device: str) -> None:
    torch.manual_seed(0)
    model, inputs, count = CASES[name]()
    model.eval()
    bringup.export(model, inputs, target="test_of_folding", out=tmp_path / "unused")
    assert _kept.pop().folded_norms == count
    found = bringup.load(bringup.export(model, inputs, out=tmp_path / "m.bup", fold_batch_norm=True))(*inputs)
    exact = copy.deepcopy(model).double()(*(tensor.double() for tensor in inputs))
    plain = model(*inputs)
    leaves = torch.utils._pytree.tree_leaves
    for ours, theirs, right in zip(leaves(found), leaves(plain), leaves(exact)):
        rounding = torch.finfo(theirs.dtype).eps * right.abs().max()
        # Docs: within three roundings of the largest element, or twice the error of eager.
        limit = max(2 * (theirs - right).abs().max(), 3 * rounding)
        assert (ours - right).abs().max() <= limit


def test_a_driver_keeps_its_bits_unless_asked(tmp_path: Path, device: str) -> None:
    torch.manual_seed(0)
    model, inputs, _ = CASES["convolution"]()
    model.eval()
    x = inputs[0].to(device)
    eager = copy.deepcopy(model).to(device)(x)
    plain = bringup.load(bringup.export(model, inputs, out=tmp_path / "plain.bup"))(x)
    assert torch.equal(plain, eager)
    folded = bringup.load(bringup.export(model, inputs, out=tmp_path / "folded.bup", fold_batch_norm=True))(x)
    assert not torch.equal(folded, eager), "or this test shows nothing"
    torch.testing.assert_close(folded, eager)


def test_training_norms_are_left_alone(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).train()
    bringup.export(model, (R(4, 2, 5, 5),), target="test_of_folding", out=tmp_path / "unused")
    assert _kept.pop().folded_norms == 0
