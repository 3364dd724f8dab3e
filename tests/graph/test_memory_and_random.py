"""Compiled programs write where eager ones write, share what they share, and draw what they draw."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.graph.comparing import Compile, same


# ---- memory: who writes where, who shares what ----
def test_inputs_are_changed_in_place(compiled: Compile, numbers: Any) -> None:
    def changes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y[1:].mul_(x[:-1])
        x.t().sub_(0.5)
        return x.sum() + y.sum()

    ours, theirs = [numbers(4, 4), numbers(4, 4, seed=1)], [numbers(4, 4), numbers(4, 4, seed=1)]
    addresses = [x.data_ptr() for x in ours]
    run = compiled(changes)
    for _ in range(3):
        same(run(*ours), changes(*theirs))
        same(ours, theirs)
    assert [x.data_ptr() for x in ours] == addresses


def test_a_read_before_and_after_the_change(compiled: Compile, numbers: Any) -> None:
    def reads(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = x * 2
        x.fill_(3.0)
        return before, x + before

    x, y = numbers(5, 3), numbers(5, 3)
    same(compiled(reads)(x), reads(y))
    same(x, y)


def test_an_input_that_is_a_view(compiled: Compile, numbers: Any) -> None:
    """A change through a strided view leaves its neighbours in the storage alone."""

    def changes(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    whole, twin = numbers(6, 6), numbers(6, 6)
    same(compiled(changes)(whole[::2, 1:4]), changes(twin[::2, 1:4]))
    assert torch.equal(whole, twin)


def test_two_inputs_that_share_memory(compiled: Compile, numbers: Any) -> None:
    def changes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    run = compiled(changes)
    whole, twin = numbers(8), numbers(8)
    same(run(whole[:6], whole[2:]), changes(twin[:6], twin[2:]))
    assert torch.equal(whole, twin)
    one, other = numbers(8, seed=3), numbers(8, seed=3)
    same(run(one, one), changes(other, other))


def test_an_output_that_is_a_view_of_an_input(compiled: Compile, numbers: Any) -> None:
    def view(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.t()[1:], x.exp()

    x = numbers(4, 5)
    seen, _ = compiled(view)(x)
    assert seen.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert seen._base is x
    seen.zero_()
    assert x[:, 1:].abs().max().item() == 0
    assert x[:, 0].abs().max().item() > 0


def test_an_input_that_is_returned(compiled: Compile, numbers: Any) -> None:
    def hands_through(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y.add_(1)
        return x, x + 1, y

    x, y = numbers(3), numbers(3, seed=1)
    first, _, third = compiled(hands_through)(x, y)
    assert first is x
    assert third is y


def test_two_views_of_one_intermediate(compiled: Compile, numbers: Any) -> None:
    def views(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x * 2
        return y[0], y.t(), y

    x = numbers(4, 4)
    row, turned, whole = compiled(views)(x)
    same((row, turned, whole), views(x))
    row.fill_(7.0)
    assert bool((turned[:, 0] == 7).all())
    assert bool((whole[0] == 7).all())


def test_one_output_twice(compiled: Compile, numbers: Any) -> None:
    def twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        return y, y

    one, other = compiled(twice)(numbers(4))
    one.zero_()
    assert other.abs().max().item() == 0


def test_outputs_outlive_later_calls(compiled: Compile, numbers: Any) -> None:
    """Memory of a call's results is not taken again by the next call."""
    run = compiled(lambda x: ((x @ x).relu(), x.sum(0)))
    inputs = [numbers(8, 8, seed=n) for n in range(4)]
    results = [run(x) for x in inputs]
    for x, (product, total) in zip(inputs, results):
        same((product, total), ((x @ x).relu(), x.sum(0)))


def test_calls_leave_no_memory_behind(compiled: Compile, numbers: Any, device: str) -> None:
    def deep(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = (x @ x).tanh()
        return x.sum()

    run = compiled(deep)
    x = numbers(64, 64, grad=True)

    def step() -> None:
        run(x).backward()
        x.grad = None

    step(), step()
    module = getattr(torch, torch.device(device).type)
    before = module.memory_allocated()
    for _ in range(5):
        step()
    assert module.memory_allocated() == before


def test_strides_are_those_of_eager(compiled: Compile, numbers: Any) -> None:
    def shapes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.permute(0, 2, 3, 1) * 2, x.contiguous(memory_format=torch.channels_last) + 1, x.transpose(1, 2).exp()

    x = numbers(2, 3, 4, 5)
    for one, other in zip(compiled(shapes)(x), shapes(x)):
        assert one.stride() == other.stride()
        same(one, other)


# ---- random numbers ----
RANDOM: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout twice": lambda x: F.dropout(F.dropout(x, 0.5).relu(), 0.2),
    "rand_like": lambda x: x + torch.rand_like(x),
    "randn": lambda x: x * torch.randn(x.shape, device=x.device),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "in place": lambda x: (x * 2).normal_().add_(x),
    "a noisy relu": lambda x: F.rrelu(x, training=True),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_those_of_eager(name: str, compiled: Compile, numbers: Any) -> None:
    draw, x = RANDOM[name], numbers(6, 33)
    run = compiled(draw)
    torch.manual_seed(7)
    found = [run(x) for _ in range(3)]
    torch.manual_seed(7)
    expected = [draw(x) for _ in range(3)]
    same(found, expected)
    assert not torch.equal(found[0], found[1]), "two calls draw different numbers"
    same(torch.rand(3, device=x.device), _after(7, draw, x))


def _after(seed: int, draw: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """What eager draws next after three calls."""
    torch.manual_seed(seed)
    for _ in range(3):
        draw(x)
    return torch.rand(3, device=x.device)


def test_backward_sees_the_mask_of_forward(compiled: Compile, numbers: Any) -> None:
    x = numbers(50, 40, grad=True)
    run = compiled(lambda x: F.dropout(x, 0.4))
    for _ in range(2):
        x.grad = None
        y = run(x)
        y.sum().backward()
        kept = y.detach() != 0
        assert 0.5 < kept.float().mean().item() < 0.7
        same(x.grad, kept / 0.6)


def test_dropout_in_a_network_trains_as_in_eager(compiled: Compile, device: str) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 3)]
    model = torch.nn.Sequential(*layers).to(device)
    twin = copy.deepcopy(model)
    x = torch.randn(8, 12).to(device)
    for network in (compiled(model), twin):
        torch.manual_seed(5)
        for _ in range(2):
            network(x).square().sum().backward()
    for one, other in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-5)
