"""What tests of compiled programs share: how results are compared, how many graphs there were, a small network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

Compile = Callable[..., Any]


def same(found: Any, expected: Any) -> None:
    """Bits where nothing is summed, else what another order of summation may change."""
    ours, theirs = tree_leaves(found), tree_leaves(expected)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        if isinstance(other, torch.Tensor):
            assert one.device == other.device
            torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6)
        else:
            assert one == other


def graphs() -> int:
    """How many graphs Dynamo has given to the backend in this test."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


class Calls(torch.nn.Module):
    """A function as a module, for export."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = torch.nn.Linear(12, 20), torch.nn.LayerNorm(20), torch.nn.Linear(20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.gelu(self.norm(self.first(x)))).softmax(-1)
