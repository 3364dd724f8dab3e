"""What a graph computes twice is computed once, with the same bits; what only looks the same is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import bringup


def kernels(backend: bringup.Backend) -> list[str]:
    """The names of all kernels that the graphs launch."""
    structures = [graph.structures[0] for graph in backend.graphs]
    return [call.kernel.name for structure in structures for call in structure.variant.kernel_calls]


def compare(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool | None = None) -> list[str]:
    """Bits of the compiled function against eager mode's, inputs included; gives the names of the kernels."""
    backend = bringup.Backend()
    run = torch.compile(function, backend=backend, dynamic=dynamic)
    with torch.no_grad():
        for _ in range(2):
            ours, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
            torch.manual_seed(3)
            found = run(*ours)
            torch.manual_seed(3)
            expected = function(*theirs)
            torch.testing.assert_close([*found, *ours], [*expected, *theirs], rtol=0, atol=0, equal_nan=True)
    return kernels(backend)


@pytest.fixture
def bags(device: str, numbers: Any) -> list[torch.Tensor]:
    """Two tables, of which one has a NaN; the words of five bags, of which one is empty, and where those begin."""
    tables = [numbers(17, 3), numbers(17, 3, seed=1)]
    tables[1][4] = float("nan")
    words = torch.tensor([3, 0, 16, 4, 4, 9, 1], device=device)
    return [*tables, words, torch.tensor([0, 2, 2, 5, 6], device=device)]


def embed(table: torch.Tensor, words: torch.Tensor, offsets: torch.Tensor, **how: Any) -> torch.Tensor:
    return F.embedding_bag(words, table, offsets, mode="sum", **how)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_bags_of_words_are_found_once(bags: list[torch.Tensor], dynamic: bool) -> None:
    def both(a: torch.Tensor, b: torch.Tensor, words: torch.Tensor, offsets: torch.Tensor) -> list[torch.Tensor]:
        return [embed(a, words, offsets), embed(b, words.flip(0), offsets)]

    assert sum("bag_of_word" in name for name in compare(both, *bags, dynamic=dynamic)) == 1


def test_not_across_a_write_to_an_input(bags: list[torch.Tensor]) -> None:
    def changed(a: torch.Tensor, b: torch.Tensor, words: torch.Tensor, offsets: torch.Tensor) -> list[torch.Tensor]:
        first = embed(a, words, offsets)
        offsets[1:].add_(1)
        return [first, embed(b, words, offsets)]

    assert sum("bag_of_word" in name for name in compare(changed, *bags)) == 2


def test_results_that_the_caller_gets_stay_apart(bags: list[torch.Tensor]) -> None:
    def owners(a: torch.Tensor, b: torch.Tensor, words: torch.Tensor, offsets: torch.Tensor) -> list[torch.Tensor]:
        results = [torch.embedding_bag(table, words, offsets) for table in (a, b)]
        return [result[1] for result in results] + [result[0] for result in results]

    compare(owners, *bags)
    with torch.no_grad():
        found = torch.compile(owners, backend="bringup")(*bags)
    assert found[0].data_ptr() != found[1].data_ptr()


def test_equal_ops_with_other_numbers_or_draws(numbers: Any) -> None:
    def draws(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.rand_like(x).cumsum(0), torch.rand_like(x).cumsum(0), (x * 2).cumsum(0), (x * 3).cumsum(0)]

    compare(draws, numbers(5, 7))


def test_one_of_two_equal_values_is_changed_later(numbers: Any) -> None:
    def changes(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        one, other = x.cumsum(0), x.cumsum(0)
        one[::2] += y[::2]
        x.sort(1)
        return [one.softmax(1), other.softmax(1), x.cumsum(0) + other]

    compare(changes, numbers(5, 7), numbers(5, 7, seed=1))


@pytest.mark.parametrize("padding", [None, 4])
@pytest.mark.parametrize("dynamic", [False, True])
def test_training_keeps_the_bags_of_words_once(device: str, numbers: Any, padding: int | None, dynamic: bool) -> None:
    """Of words in a matrix each layer makes its own offsets; with padding the sizes of bags differ between layers."""
    torch.manual_seed(0)
    layers = [torch.nn.EmbeddingBag(9, 3, mode="mean", padding_idx=padding).to(device) for _ in range(3)]
    words = torch.randint(9, (3, 5, 4), generator=torch.Generator().manual_seed(1)).to(device)
    backend = bringup.Backend()

    factors = numbers(5, 3)

    def loss(words: torch.Tensor) -> torch.Tensor:
        return torch.stack([layer(words[n]) * factors for n, layer in enumerate(layers)]).sum()

    gradients = []
    for function in (torch.compile(loss, backend=backend, dynamic=dynamic), loss):
        function(words).backward()
        gradients.append([layer.weight.grad for layer in layers])
        for layer in layers:
            layer.weight.grad = None
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    names = kernels(backend)
    assert sum("bag_of_word" in name for name in names) == (1 if padding is None else 3), names
