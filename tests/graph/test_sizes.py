"""Sizes that change between calls: how often is something compiled, and are the numbers right?"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.graph.comparing import Compile, Net, graphs, same


# ---- sizes that change ----
def kernels_compiled() -> int:
    """How often a compiler was run in this process: what neither memory nor disk had."""
    from bringup.kernel_cache import default_cache

    return default_cache().misses


@pytest.mark.parametrize("gradients", [False, True])
def test_a_batch_of_1_to_64(gradients: bool, compiled: Compile, numbers: Any, device: str) -> None:
    """Two compilations by Dynamo at most, as it treats 1 as special; no kernel is compiled for a second size."""
    model = Net().to(device)
    run = compiled(model, dynamic=True)

    def results(network: Any, batch: int) -> list[torch.Tensor]:
        model.zero_grad()
        x = numbers(batch, 12, seed=batch)
        with torch.set_grad_enabled(gradients):
            y = network(x)
            if gradients:
                y.square().sum().backward()
        return [y.detach(), *(parameter.grad for parameter in model.parameters() if gradients)]

    batches = (64, 2, 3, 5, 8, 17, 33, 63, 1)
    expected = {batch: results(model, batch) for batch in batches}  # eager's own kernels are there, for every size
    counts = []
    for batch in batches:
        found = results(run, batch)
        counts.append(kernels_compiled())
        for one, other in zip(found, expected[batch]):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert graphs() <= 2
    assert counts == counts[:1] * len(batches), dict(zip(batches, counts))


def test_sizes_that_change_become_symbols(compiled: Compile, numbers: Any) -> None:
    """Without being told: static first, dynamic from the second size on."""

    def sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y], 1).reshape(-1, 2).cumsum(0) * x.shape[0] + x.shape[1]

    run = compiled(sums)
    for rows, columns in ((4, 6), (8, 6), (8, 10), (14, 12), (20, 4), (6, 32)):
        x, y = numbers(rows, columns), numbers(rows, 2 * columns, seed=1)
        torch.testing.assert_close(run(x, y), sums(x, y), rtol=1e-5, atol=1e-5)
    assert graphs() <= 3


def test_a_size_that_depends_on_data(compiled: Compile, numbers: Any) -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] * 2

    run = compiled(chosen)
    for seed in range(3):
        x = numbers(30, seed=seed)
        same(run(x), chosen(x))
