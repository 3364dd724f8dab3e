"""Sizes that change between calls: how often is something compiled, and are the numbers right?"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from bringup.lowering.call import Call, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.registry import DEFINITIONS, lowering
from tests.graph.comparing import Compile, Net, graphs, same


# ---- sizes that change ----
def kernels_compiled() -> int:
    """How often a compiler was run in this process: what neither memory nor disk had."""
    from bringup.compile.kernel_cache import default_cache

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
        for one, other in zip(found, expected[batch]):  # on the CPU: comparing compiles kernels, too
            torch.testing.assert_close(one.cpu(), other.cpu(), rtol=1e-5, atol=1e-5)
    assert graphs() <= 2
    assert counts == counts[:1] * len(batches), dict(zip(batches, counts))


def test_grouped_convolutions_of_any_batch(compiled: Compile, numbers: Any, device: str) -> None:
    """Two channels in each group: they are not depthwise ones, although their number is known and the batch is not."""
    layer = torch.nn.Conv2d(4, 6, 3, groups=2, padding=1).to(device)
    run = compiled(layer, dynamic=True)
    for batch in (2, 3, 7):
        x = numbers(batch, 4, 9, 9)
        torch.testing.assert_close(run(x), layer(x), rtol=1e-5, atol=1e-5)


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


@pytest.fixture
def times_or_minus() -> Iterator[Any]:
    """An op whose lowering looks at a number only if there are many rows: x × number, but −x for a number of 2."""
    library = torch.library.Library("asked", "DEF")
    library.define("times_or_minus(Tensor x, Tensor number) -> Tensor")
    library.impl("times_or_minus", lambda x, number: torch.empty_like(x), "Meta")

    @lowering("asked::times_or_minus")
    def times_or_minus(call: Call, x: Tensor, number: Number) -> None:
        if x.shape[0] > 8 and number.equals(2):
            elementwise(call, [call.outs[0]], [x], lambda a: -a, [None])
        else:
            elementwise(call, [call.outs[0]], [x, number], lambda a, b: a * b, [None, None])

    yield torch.ops.asked.times_or_minus
    del DEFINITIONS["asked::times_or_minus", "lowering"]
    library._destroy()


def test_a_number_that_only_other_sizes_ask_for(
    times_or_minus: Any, compiled: Compile, numbers: Any, backend: str
) -> None:
    if backend != "bringup":
        pytest.skip("the op has no kernel but its lowering")
    run = compiled(lambda x, number: times_or_minus(x + 1, number), dynamic=True)
    for rows, number in ((4, 3.0), (4, 2.0), (16, 2.0), (16, 3.0), (4, 5.0), (16, 5.0), (16, 2.0)):
        x = numbers(rows, 3)
        factor = -1 if rows > 8 and number == 2 else number
        same(run(x, torch.tensor(number)), (x + 1) * factor)
    assert graphs() == 1


def test_graphs_that_are_gone_are_no_templates(compiled: Compile, numbers: Any) -> None:
    from bringup.graph.compile import templates

    def forget() -> None:
        torch._dynamo.reset()
        gc.collect()

    for n in range(3):
        run = compiled(lambda x, n=n: [torch.exp, torch.sin, torch.cos][n](x + 1), dynamic=True)
        run(numbers(3 + n, 4))
        del run
        forget()
    gone = [one for known in templates._templates.values() for one in known if one() is None]
    assert len(gone) <= 1, "the last one, until another is remembered"


@pytest.mark.parametrize("channels", [(4, 3), (4, 1), (6, 2)])
def test_groups_of_a_transposed_convolution(compiled: Compile, numbers: Any, channels: tuple[int, int]) -> None:
    """Kernels made ahead for small sizes are made for sizes that the graph can have: 2 groups divide the channels."""
    run = compiled(lambda x, w: F.conv_transpose2d(x, w, groups=2), dynamic=True)
    for height in (5, 1, 8):
        x, weight = numbers(2, channels[0], height, 6), numbers(*channels, 3, 3, seed=1)
        expected = F.conv_transpose2d(x.cpu(), weight.cpu(), groups=2)
        torch.testing.assert_close(run(x, weight).cpu(), expected, rtol=1e-5, atol=1e-5)
