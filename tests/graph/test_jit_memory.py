"""The TorchScript pass and memory that others see: writes, views, inputs that come through, tensors of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import bringup.jit
from tests.graph.scripting import fresh, groups_of, never_op_by_op, optimized

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript is deprecated as a whole


@pytest.fixture(autouse=True)
def disabled_afterwards() -> Iterator[None]:
    yield
    bringup.jit.disable()


# ---- memory that others see ----
def writes_between(x: Tensor) -> Tensor:
    y = x * 2
    x.add_(1)
    return (y + x) * y


def writes_through_a_view(x: Tensor) -> Tensor:
    y = torch.sin(x) + 1
    first = y.view(-1)[0:2]
    z = y * 3
    first.mul_(2)
    return y * z + torch.relu(z)


def writes_what_it_returns(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sin(x) + 1
    z = y.t()
    y.mul_(2)
    return y, torch.relu(z) * 2


def gives_a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sin(x) * 2
    return y.view(-1), (y + 1) * 2


def writes_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.add_(1).relu_()
    return y.sigmoid_() - x


def writes_into_a_slice(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[0] = torch.sin(x[0]) + 1
    y[1].copy_(torch.cos(x[1]) * 2)
    return torch.tanh(y) + 1


def writes_a_list(x: Tensor) -> Tensor:
    parts = [x + 1]
    parts.append(torch.sin(x) * 2)
    whole = torch.cat(parts) * 2
    parts.pop(0)
    parts[0] = x + parts[0]
    x.zero_()
    return whole[: x.size(0)] + torch.cat(parts)


@pytest.mark.parametrize("place", ["cpu", "sim"])
@pytest.mark.parametrize(
    "function",
    [
        writes_between,
        writes_through_a_view,
        writes_what_it_returns,
        gives_a_view,
        writes_in_place,
        writes_into_a_slice,
        writes_a_list,
    ],
)
def test_writes_and_views_mean_what_they_meant(function: Callable[..., Any], place: str) -> None:
    bringup.jit.enable(driver="sim", min_group_size=1)
    scripted = optimized(function, torch.randn(3, 3, device=place))
    assert groups_of(scripted)
    ops = [op for group in groups_of(scripted) for op in group]
    assert not [op for op in ops if op.endswith("_")]


def keeps_its_dtype(x: Tensor) -> Tensor:
    y = x * 2
    y.logical_not_()
    z = x.to(torch.bfloat16) * 2
    z += x + 0.3
    return y.mean() + (z * 3).sum()


def writes_to_what_came_through(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.type_as(x * 2)
    y += 2
    z = torch.dropout(x, 0.5, False)
    z.mul_(3)
    return y, (z + 1) * 2


def gives_its_argument(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    y = torch.sin(x) * 2
    wide = y.expand(2, 3, 3).type_as(x)
    return y[0], y.type_as(x), x.t().type_as(y), wide, wide + 1


@pytest.mark.parametrize("place", ["cpu", "sim"])
def test_an_argument_that_leaves_shares_memory(place: str) -> None:
    """type_as that converts nothing returns its argument, which its schema does not say."""

    def shared(outputs: Any) -> list[tuple[Any, int]]:
        places = [one.untyped_storage().data_ptr() for one in (x, *outputs)]
        return [(one.stride(), places.index(one.untyped_storage().data_ptr())) for one in outputs]

    x = torch.randn(3, 3, device=place)
    bringup.jit.enable(driver="sim", min_group_size=1)
    scripted = optimized(gives_its_argument, x)
    assert shared(scripted(x)) == shared(gives_its_argument(x))
    assert ["sin", "mul"] in groups_of(scripted)


IN_PLACE: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = [
    lambda y, at, mask: y.cumsum_(0),
    lambda y, at, mask: y.cumprod_(1),
    lambda y, at, mask: y.masked_fill_(mask, 1),
    lambda y, at, mask: y.masked_scatter_(mask, y + 1),
    lambda y, at, mask: y.tril_(),
    lambda y, at, mask: y.index_add_(0, at, y[:2]),
    lambda y, at, mask: y.index_copy_(0, at, y[:2] * 2),
    lambda y, at, mask: y.index_fill_(0, at, 3),
    lambda y, at, mask: y.scatter_(0, at[None], 2),
    lambda y, at, mask: y.addmm_(y[:, :2], y[:2]),
    lambda y, at, mask: y.renorm_(2, 0, 1.0) if y.is_floating_point() else y.t_(),
    lambda y, at, mask: y.copy_(mask),
    lambda y, at, mask: y.add_(mask),
    lambda y, at, mask: y.zero_(),
]


@pytest.mark.parametrize("place", ["cpu", "sim"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_what_is_in_place_keeps_its_strides_and_dtype(dtype: torch.dtype, place: str) -> None:
    """Out of place cumsum is contiguous and widens integers, and so do others."""
    bringup.jit.enable(driver="sim", min_group_size=1)
    x = (torch.randn(6, 4, device=place) * 9).to(dtype).t()
    others = torch.tensor([2, 0], device=place), torch.arange(6, device=place) % 2 == 0
    for write in IN_PLACE:

        def function(
            x: Tensor, at: Tensor, mask: Tensor, write: Callable[[Tensor, Tensor, Tensor], Tensor] = write
        ) -> Tensor:
            return write(x * 2, at, mask)

        traced = torch.jit.trace(function, (x, *others), check_trace=False)
        for _ in range(3):
            ours = traced(x, *others)
        theirs = function(x, *others)
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride()), traced.graph
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("place", ["cpu", "sim"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_what_a_composite_op_writes(dtype: torch.dtype, place: str) -> None:
    """A vector times a matrix ends with squeeze_, which changes the shape of a tensor that has been traced."""
    bringup.jit.enable(driver="sim")
    x, y = torch.ones(6, dtype=dtype, device=place), torch.ones(4, 6, dtype=dtype, device=place)
    scripted = optimized(product_of_a_vector, x, y)
    assert groups_of(scripted)


def product_of_a_vector(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.mT) * 2


def picks(x: Tensor) -> Tensor:
    return x[:, torch.tensor([2, 0], device=x.device)] + 1


@pytest.mark.parametrize("place", ["cpu", "sim"])
@pytest.mark.parametrize("function", [keeps_its_dtype, writes_to_what_came_through, picks])
def test_ops_mean_what_they_meant(function: Callable[..., Any], place: str) -> None:
    """In place the dtype stays; type_as and dropout may return their argument; an index may be missing."""
    bringup.jit.enable(driver="sim", min_group_size=1)
    optimized(function, torch.randn(3, 3, device=place))


def test_in_place_on_a_value_nobody_else_sees_is_grouped() -> None:
    bringup.jit.enable(driver="sim")
    assert groups_of(optimized(writes_in_place, torch.randn(4))) == [["mul", "add", "relu", "sigmoid", "sub"]]


def test_a_view_that_leaves_shares_memory() -> None:
    bringup.jit.enable(driver="sim")

    def of(scripted: Any, x: Tensor) -> bool:
        viewed, y = scripted(x)
        viewed.zero_()
        return bool((y == 0).all())

    def pair(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.sin(x) * 2
        return y.view(-1), y

    scripted = optimized(pair, torch.randn(2, 2))
    assert groups_of(scripted) == [["sin", "mul"]]
    assert of(scripted, torch.randn(2, 2))


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.dropout(x), torch.relu(self.dropout(x)) + 1


def test_an_input_that_comes_through_is_itself() -> None:
    bringup.jit.enable(driver="sim", min_group_size=1)
    x = torch.randn(4)
    scripted = torch.jit.trace(Dropped().eval(), x)
    for _ in range(3):
        through, other = scripted(x)
    assert through.data_ptr() == x.data_ptr()
    torch.testing.assert_close(other, torch.relu(x) + 1)
    assert never_op_by_op(scripted)


# ---- CPU tensors ----
def of_cpu(x: Tensor, weight: Tensor) -> Tensor:
    return (x * weight).relu() + 1


def test_cpu_tensors_are_read_at_every_call() -> None:
    """Writes that no version counter sees: through NumPy, through .data, through memory that other tensors share."""
    bringup.jit.enable(driver="sim")
    numbers = numpy.zeros(4, dtype=numpy.float32)
    x, weight = torch.from_numpy(numbers), torch.ones(4)
    scripted = fresh(of_cpu)
    for n in range(6):
        numbers[:] = n
        if n > 3:
            weight.data.mul_(3)
        assert torch.equal(scripted(x, weight), of_cpu(x, weight)), n
    assert never_op_by_op(scripted)
    same = torch.jit.trace(lambda x: (x * weight).relu() + 1, (x,))
    for n in range(5):
        weight.data.add_(n)  # now it is a constant of the graph
        assert torch.equal(same(x), of_cpu(x, weight)), n


def test_cpu_tensors_of_any_layout() -> None:
    bringup.jit.enable(driver="sim")
    for x in (
        torch.randn(6, 8)[1::2, ::3],
        torch.randn(3, 1).expand(3, 3),
        torch.randn(8).unfold(0, 3, 1),
        torch.randn(3, 0),
    ):
        weight = torch.randn(x.shape[1]).flip(0)
        scripted = fresh(of_cpu)
        for _ in range(4):
            assert torch.equal(scripted(x, weight), of_cpu(x, weight))
        assert never_op_by_op(scripted)


def test_an_argument_on_the_cpu_that_comes_through() -> None:
    from bringup.jit.compile_group import for_cpu_tensors

    x = torch.randn(3)
    result, through = for_cpu_tensors(lambda x: [x + 1, x], torch.device("sim"))(x)
    assert through is x
    assert torch.equal(result, x + 1)
