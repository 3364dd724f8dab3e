"""A foreach op of many tensors costs what its tensors cost, not what their pairs do; overlaps are still found."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

KINDS = ("own", "views")


def tensors(count: int, kind: str, device: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Parameters and gradients: each with a storage of its own, or all of them parts of one buffer."""
    if kind == "own":
        return tuple([torch.ones(2, device=device) for _ in range(count)] for _ in range(2))
    rows = torch.ones(2 * count, 2, device=device).unbind()
    return list(rows[:count]), list(rows[count:])


def cost(call: Callable[[], object]) -> float:
    """Processor seconds of the fastest of some calls."""
    call()
    times = []
    for _ in range(7):
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
    return min(times)


@pytest.mark.parametrize("kind", KINDS)
def test_the_cost_grows_with_the_number_of_tensors(kind: str, device: str) -> None:
    costs = []
    for count in (500, 1500):
        weights, gradients = tensors(count, kind, device)
        costs.append(cost(lambda: torch._foreach_add_(weights, gradients, alpha=-0.5)))  # noqa: B023
    assert costs[1] <= 8 * costs[0], costs  # pair by pair: 19 times as much, and 14 times where they are views


@pytest.mark.parametrize("kind", KINDS)
def test_overlaps_among_many_are_found(kind: str, device: str) -> None:
    weights, gradients = tensors(100, kind, device)
    gradients[50] = weights[50]  # the same memory: element by element, that does no harm
    torch._foreach_add_(weights, gradients)
    assert all(weight.cpu().tolist() == [2.0, 2.0] for weight in weights)
    line = torch.zeros(3, device=device)
    with pytest.raises(RuntimeError, match=r"overlap|same memory|written-to"):
        torch._foreach_add_([*weights, line[:2]], [*gradients, line[1:]])
