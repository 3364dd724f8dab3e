"""Outputs of pointwise ops without PyTorch's meta kernel: sizes, strides and types as TensorIterator has them."""

from __future__ import annotations

import random

import pytest
import torch

from bringup.lowering.output_layout import broadcast, iterator_strides, promoted_output
from bringup.lowering.scalar_types import BY_CODE, CODE_OF

CODES = {getattr(torch, dtype.name): code for dtype, code in CODE_OF.items()}


def layout(draw: random.Random, sizes: list[int]) -> torch.Tensor:
    """A tensor of some sizes, dimensions left out or repeated, permuted, with steps."""
    ahead = draw.randrange(len(sizes) + 1) if draw.random() < 0.3 else 0
    shape = [1 if draw.random() < 0.2 else size for size in sizes[ahead:]]
    order = draw.sample(range(len(shape)), len(shape))
    steps = [draw.choice((1, 1, 1, 2)) for _ in shape]
    base = torch.empty([shape[d] * steps[d] for d in order])
    view = base.permute([order.index(d) for d in range(len(shape))])
    return view[tuple(slice(None, None, step) for step in steps)] if shape else view


def test_strides_are_those_of_tensor_iterator() -> None:
    draw = random.Random(1)
    for _ in range(2000):
        sizes = [draw.choice((1, 2, 3, 5)) for _ in range(draw.randrange(5))]
        tensors = [layout(draw, sizes) for _ in range(draw.choice((1, 2, 3)))]
        expected = {1: torch.neg, 2: torch.add, 3: torch.addcmul}[len(tensors)](*tensors)
        found = broadcast(*(t.shape for t in tensors))
        assert found == tuple(expected.shape)
        strides = iterator_strides(found, [(tuple(t.shape), t.stride()) for t in tensors])
        several = [d for d, size in enumerate(found) if size != 1]
        assert [strides[d] for d in several] == [expected.stride(d) for d in several], [
            (tuple(t.shape), t.stride()) for t in tensors
        ]


def test_types_promote_as_in_torch() -> None:
    draw = random.Random(2)
    for _ in range(500):
        kinds = [draw.choice(list(CODES)) for _ in range(2)]
        shapes = [draw.choice(((), (3,))) for _ in range(2)]
        a, b = (torch.empty(shape, dtype=kind) for shape, kind in zip(shapes, kinds))
        try:
            expected = torch.result_type(a, b)
        except RuntimeError:
            continue
        described = [("t", n, CODES[t.dtype], tuple(t.shape), t.stride(), 2) for n, t in enumerate((a, b))]
        try:
            ((_, code, _, _),) = promoted_output(*described)
        except RuntimeError:  # uint16 and int8 have no common type in torch
            with pytest.raises(RuntimeError):
                torch.promote_types(a.dtype, b.dtype)
            continue
        assert BY_CODE[code].name == str(expected).removeprefix("torch."), (a, b)


def test_shapes_that_do_not_fit_are_refused_in_torchs_words() -> None:
    with pytest.raises(RuntimeError) as expected:
        torch.empty(2, 3) + torch.empty(4, 3)
    with pytest.raises(RuntimeError) as found:
        broadcast((2, 3), (4, 3))
    assert str(found.value) in str(expected.value)
