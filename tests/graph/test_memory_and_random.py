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


def _kept_for_backward(run: Compile, x: torch.Tensor) -> list[tuple[torch.dtype, int]]:
    kept: dict[int, tuple[torch.dtype, int]] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = (tensor.dtype, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run(x)
    return sorted(kept.values(), key=str)


def test_training_keeps_a_key_and_no_mask(compiled: Compile, numbers: Any) -> None:
    x = numbers(40, 30, grad=True)
    assert _kept_for_backward(compiled(lambda x: F.dropout(x * 2, 0.5)), x) == [(torch.int64, 2)]


def test_dropout_of_probability_0_keeps_nothing_twice(compiled: Compile, numbers: Any) -> None:
    """The copy that it makes of relu's result is that result."""
    weight, x = numbers(30, 5), numbers(40, 30, grad=True)
    kept = _kept_for_backward(compiled(lambda x: F.dropout(x.relu(), 0.0) @ weight), x)
    assert [count for _, count in kept if count == x.numel()] == [x.numel()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_keyed_dropout_has_the_bits_of_eager(dtype: torch.dtype, compiled: Compile, device: str) -> None:
    """Gradients too, with strides, infinities and NaN: what is dropped of them is NaN, as in eager PyTorch."""
    values = torch.randn(9, 14)
    values[0, 0], values[3, 5], values[8, 13] = float("nan"), float("inf"), float("-inf")

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.t(), 0.4) * 3

    found = []
    for run in (compiled(f), f):
        x = values.to(device, dtype).requires_grad_()
        torch.manual_seed(11)
        y = run(x)
        y.backward(x.detach().t())
        found.append((y, x.grad))
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("mode", ["trace", "compile"])
def test_modes_that_run_ordinary_ops_draw_the_same(mode: str, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    import bringup

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * 2, 0.5)

    found = []
    for run in (torch.compile(f, backend=bringup.Backend(mode=mode)), f):
        x = torch.ones(50, device=device, requires_grad=True)
        torch.manual_seed(2)
        run(x).sum().backward()
        found.append(x.grad)
    same(*found)
    assert "keyed_dropout" in capsys.readouterr().out


def test_a_mask_that_somebody_sees_stays(compiled: Compile, numbers: Any) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.native_dropout(x, 0.5, True)

    found = []
    for run in (compiled(f), f):
        x = numbers(8, 8, grad=True)
        torch.manual_seed(4)
        y, mask = run(x)
        y.sum().backward()
        found.append((y.detach(), mask, x.grad))
    same(*found)


def test_a_copy_that_somebody_sees_stays(compiled: Compile, numbers: Any) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.exp()
        return y, y.clone()

    one, other = compiled(f)(numbers(5, grad=True))
    with torch.no_grad():
        one.zero_()
    assert other.abs().min() > 0, "the copy is memory of its own"


def test_a_probability_that_changes(compiled: Compile, numbers: Any) -> None:
    def f(x: torch.Tensor, p: float) -> torch.Tensor:
        return F.dropout(x * 2, p)

    run, x = compiled(f), numbers(6, 33, grad=True)
    for p in (0.5, 0.25, 0.125, 0.0, 1.0):
        found = []
        for one in (run, f):
            x.grad = None
            torch.manual_seed(9)
            y = one(x, p)
            y.sum().backward()
            found.append((y.detach(), x.grad))
        same(*found)


# ---- the layout of what comes out of convolutions ----
def _last(*shape: int) -> torch.Tensor:
    format = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(memory_format=format)


@pytest.mark.parametrize(
    ("x", "weight", "how"),
    [
        pytest.param(_last(2, 6, 5, 7), torch.randn(6, 1, 3, 3), {"groups": 6, "padding": 1}, id="depthwise"),
        pytest.param(_last(2, 4, 5, 7), torch.randn(6, 4, 3, 3), {"stride": 2}, id="image last"),
        pytest.param(torch.randn(2, 4, 5, 7), _last(6, 4, 3, 3), {}, id="weight last"),
        pytest.param(_last(2, 4, 5, 7).transpose(2, 3), torch.randn(6, 4, 3, 3), {}, id="neither"),
        pytest.param(_last(1, 2, 3, 4, 5), torch.randn(3, 2, 2, 2, 2), {}, id="three dimensions"),
        pytest.param(_last(2, 4, 5, 7)[:, :, :, 1:], torch.randn(6, 4, 1, 1), {}, id="part of one"),
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_convolutions_keep_channels_last(
    compiled: Compile, device: str, x: torch.Tensor, weight: torch.Tensor, how: dict[str, int], transposed: bool,
    dynamic: bool,
) -> None:  # fmt: skip
    """Traced as contiguous, each image would be turned on its way, and come out in other strides than in eager mode."""
    if transposed:
        weight = weight.transpose(0, 1).contiguous() if how.get("groups", 1) == 1 else weight
    op = getattr(F, f"conv{'_transpose' * transposed}{x.ndim - 2}d")

    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return op(x, weight, **how)

    def steps(value: torch.Tensor) -> list[int]:
        return [stride for stride, extent in zip(value.stride(), value.shape) if extent > 1]

    results = []
    for function in (compiled(layer, dynamic=dynamic), layer):
        image = torch.empty_strided(x.shape, x.stride(), device=device).copy_(x).requires_grad_()
        filters = torch.empty_strided(weight.shape, weight.stride(), device=device).copy_(weight).requires_grad_()
        y = function(image, filters)
        y.backward(torch.ones_like(y))
        results.append((y.detach(), image.grad, filters.grad))
    same(*results)
    ours, theirs = ([steps(value) for value in result] for result in results)
    assert ours == theirs
