"""Attention by its lowering: values and gradients against float64, without and with masks, causality and dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from bringup.ir.philox import philox
from bringup.lowering.ops.attention import like
from tests.unit.lowering.interpreted import interpret

SCALE, SEED = 0.3, 5
Tensors = tuple[torch.Tensor, ...]


def tensors(dtype: torch.dtype, heads: int, shared: int, queries: int, keys: int, width: int) -> Tensors:
    """Query, key and value, the last of them transposed."""
    torch.manual_seed(0)
    q, k = torch.randn(2, heads, queries, 5), torch.randn(2, shared, keys, 5)
    v = torch.randn(2, keys, shared, width).transpose(1, 2)
    return tuple(t.to(dtype) for t in (q, k, v))


def by_lowering(inputs: Tensors, grad: torch.Tensor, mask: Any, dropout: float, causal: bool) -> Tensors:
    """The result and the gradients of query, key and value."""
    q, _, v = inputs
    wide = torch.float64 if q.dtype is torch.float64 else torch.float32
    rows = q.shape[:-1]
    empty = [torch.empty(*rows, v.shape[-1], dtype=q.dtype), torch.empty(rows, dtype=wide)]
    empty.append(torch.empty(2 if dropout else 0, dtype=torch.int64))
    given = (*inputs, mask)
    out, sums, drawn = interpret("bringup::attention", *given, dropout, causal, SCALE, outputs=empty, seed=SEED)
    arguments = (grad, *given, out, sums, drawn, dropout, causal, SCALE, False)
    return (out, *interpret("bringup::attention_backward", *arguments, outputs=inputs))


def by_torch(inputs: Tensors, grad: torch.Tensor, dtype: torch.dtype, mask: Any, causal: bool, kept: Any) -> Tensors:
    """The same by PyTorch; ``kept`` is what dropout multiplies the probabilities with."""
    q, k, v = leaves = tuple(t.detach().to(dtype).requires_grad_() for t in inputs)
    if mask is not None and mask.is_floating_point():
        mask = mask.to(dtype)
    if kept is None:
        out = sdpa(q, k, v, mask, 0.0, causal, scale=SCALE, enable_gqa=q.shape[1] != k.shape[1])
    else:
        out = (torch.softmax(q @ k.transpose(-1, -2) * SCALE, -1) * kept.to(dtype)) @ v
    out.backward(grad.to(dtype))
    return (out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None))


def check(
    dtype: torch.dtype = torch.float32,
    heads: int = 2,
    shared: int = 2,
    queries: int = 11,
    keys: int = 67,
    width: int = 3,
    mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
) -> None:
    inputs = tensors(dtype, heads, shared, queries, keys, width)
    grad = torch.randn(2, queries, heads, width).transpose(1, 2).to(dtype)
    kept = None
    if dropout:
        places = np.arange(2 * heads * queries * keys, dtype=np.uint64)
        words = philox(np.uint64(SEED), np.uint64(0), places, 32).reshape(2, heads, queries, keys)
        kept = torch.from_numpy(words.astype("u8") < int((1 - dropout) * 2**32)).double() / (1 - dropout)
    found = by_lowering(inputs, grad, mask, dropout, causal)
    exact = by_torch(inputs, grad, torch.float64, mask, causal, kept)
    own = by_torch(inputs, grad, dtype, mask, causal, kept)
    for name, got, wide, cpu in zip(("out", "query", "key", "value"), found, exact, own):
        assert got.dtype is dtype
        error = (got.double() - wide).abs().max()
        scale = max(wide.abs().max(), grad.double().abs().max())  # a gradient of 0 is a difference of such numbers
        allowed = 3 * (cpu.double() - wide).abs().max() + 8 * torch.finfo(dtype).eps * scale
        assert error <= allowed, f"{name}: error {error}, allowed {allowed}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients(dtype: torch.dtype, causal: bool) -> None:
    check(dtype, keys=67 if dtype is torch.float32 else 9, causal=causal)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (8, 64), (9, 65), (17, 3)])
def test_odd_sizes(queries: int, keys: int) -> None:
    check(queries=queries, keys=keys)


def test_heads_that_share_keys() -> None:
    check(torch.float64, heads=4, shared=2, queries=5, keys=9)


@pytest.mark.parametrize("shape", [(5, 19), (1, 19), (2, 1, 5, 1), (2, 2, 5, 19)])
def test_masks_that_are_added(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    check(queries=5, keys=19, mask=torch.randn(shape))


def test_masks_that_choose_and_a_row_that_sees_nothing() -> None:
    torch.manual_seed(1)
    mask = torch.rand(2, 1, 5, 19) > 0.4
    mask[0, 0, 3] = False
    check(queries=5, keys=19, mask=mask)
    inputs, grad = tensors(torch.float32, 2, 2, 5, 19, 3), torch.ones(2, 2, 5, 3)
    for mask_as_given in (mask, torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))):
        out, query, *_ = by_lowering(inputs, grad, mask_as_given, 0.0, False)
        assert not out[0, :, 3].any()
        assert not query[0, :, 3].any()


def test_dropout_is_drawn_again_for_the_gradients() -> None:
    check(torch.float64, queries=5, keys=19, dropout=0.3)


def test_nan_stays_in_its_row() -> None:
    inputs = tensors(torch.float32, 2, 2, 5, 3, 3)
    inputs[0][0, 1, 4, 2] = float("nan")
    out = by_lowering(inputs, torch.ones(2, 2, 5, 3), None, 0.0, False)[0]
    rows = out.isnan().any(-1)
    assert rows.nonzero().tolist() == [[0, 1, 4]]


def test_the_result_lies_in_memory_as_the_query() -> None:
    query = ("t", 0, 6, (2, 4, 10, 8), (320, 8, 32, 1), 0)  # (2, 10, 4, 8), transposed
    assert like(query, 3) == ("new", 6, (2, 4, 10, 3), (120, 3, 12, 1))
