"""What random programs (tests/fuzz) have found, in a few lines each: eager, compiled, and exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bringup
from tests.graph.comparing import Calls

Function = Callable[..., Any]


def take_from_attention(x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A block of 16 keys falls into parts of 4, of which a guard keeps the first: the others are not memory."""
    kept = x.clone().split(2, 0)[-1].sinc()
    seen = F.scaled_dot_product_attention(kept[None], kept[None], kept[None])
    return kept * 2, torch.take(seen, places)


def attention_of_a_row(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys of a block of 16 that the same kernel has written to memory, where there are 4."""
    x = x.clone()
    row = x[-1:]
    row.neg_()
    return F.scaled_dot_product_attention(row[None], row[None], row[None]), row + 1


PROGRAMS: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "a mean of two kinds of floats": (F.smooth_l1_loss, (torch.ones(1), torch.arange(17.0, dtype=torch.float64))),
    "a norm over one element, from the end": (lambda x: x.norm(dim=-1), (torch.randn(4, 1),)),
    "a norm of another order": (lambda x: x.norm(1, -1), (torch.randn(4, 1),)),
    "a guarded axis in parts": (take_from_attention, (torch.randn(3, 4, 6), torch.tensor([1, 1, 0]))),
    "a guarded axis of a row in memory": (attention_of_a_row, (torch.randn(2, 4, 1),)),
}


def check(found: Any, expected: Any) -> None:
    for ours, theirs in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected))):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_eager_and_compiled(name: str, device: str, backend: str) -> None:
    function, inputs = PROGRAMS[name]
    there = [x.to(device) for x in inputs]
    check(function(*there), function(*inputs))
    torch._dynamo.reset()
    check(torch.compile(function, backend=backend)(*there), function(*inputs))


@pytest.mark.parametrize("name", PROGRAMS)
def test_exported(name: str, tmp_path: Path) -> None:
    function, inputs = PROGRAMS[name]
    bringup.export(Calls(function), inputs, out=tmp_path / "m.bup")
    check(bringup.load(tmp_path / "m.bup")(*inputs), function(*inputs))


def test_the_last_states_of_an_lstm_have_the_shape_of_the_first(tmp_path: Path) -> None:
    model, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    bringup.export(model, (x,), out=tmp_path / "m.bup")
    _, (hidden, cell) = bringup.load(tmp_path / "m.bup")(x)
    assert hidden.shape == cell.shape == (1, 2, 4)


def test_a_remainder_that_no_size_gives(device: str, backend: str) -> None:
    """PyTorch up to 2.12 asserts that a remainder's number is not negative, also while sizes are tried."""
    pool = torch.compile(lambda x: F.avg_pool1d(x, 2), backend=backend, dynamic=True)
    x = torch.randn(3, 2, 8)
    check(pool(x.to(device)), F.avg_pool1d(x, 2))


@pytest.mark.parametrize(
    "function", [lambda x, y: x // y, lambda x, y: F.logsigmoid(x), lambda x, y: 3**x, torch.logaddexp]
)
def test_strides_of_eager_results(function: Function, device: str) -> None:
    """PyTorch's meta kernels give others than its CPU kernels."""
    x, y = torch.randn(6, 4).t(), torch.rand(4, 1) + 1
    assert function(x.to(device), y.to(device)).stride() == function(x, y).stride()


def test_strides_of_what_was_filled_with_zeros(device: str, backend: str) -> None:
    """The meta kernel of PyTorch 2.11 gives others."""
    x = torch.randn(6, 4, device=device).t()
    found = torch.compile(lambda x: x.zero_() + 1, backend=backend)(x)
    assert found.stride() == x.stride()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 2, 0, 3)])
def test_a_view_behind_attention_of_cpu_tensors(order: tuple[int, ...]) -> None:
    """Strides of what PyTorch takes apart are those that the program was traced with."""
    from bringup.graph.decompositions import decompositions

    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    x = torch.randn(2, 3, 4, 5).permute(order)
    ours, theirs = (function(x, x, x)[0] for function in (decompositions()[op], op))
    assert ours.stride() == theirs.stride()
    torch.testing.assert_close(ours, theirs)


def test_index_put_of_an_expanded_tensor_is_refused(device: str) -> None:
    """A declared gap: the CPU warns that it is deprecated."""
    x = torch.zeros((), device=device).expand(3)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        x[torch.tensor([1, 0, 1], device=device)] = -3
