"""Reading and writing by index: every layout, duplicates in order, and indices out of range."""

from __future__ import annotations

import pytest
import torch

from tests.unit.lowering.interpreted import check, interpret

X = torch.randn(5, 6, 7)
LAYOUTS = [X, X.transpose(0, 2).contiguous().transpose(0, 2), torch.randn(10, 12, 7)[::2, ::2]]


@pytest.mark.parametrize("x", LAYOUTS, ids=["contiguous", "transposed", "strided"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather_and_select(x: torch.Tensor, dim: int) -> None:
    index = torch.randint(0, 5, (3, 4, 2))
    check("aten::gather", x, dim, index)
    check("aten::index_select", x, dim, torch.tensor([0, 3, 3, 1]))
    check("aten::index_select", x, dim, torch.tensor([0, 3], dtype=torch.int32))
    check("aten::index_select", x, dim, torch.tensor([], dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.float64, torch.uint8])
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (4, 5)).to(dtype)
    index = torch.randint(0, 4, (4, 5))
    check("aten::gather", x, 0, index)
    check("aten::scatter.src", x, 0, index, x.flip(0))
    check("aten::cat", [x, x.t().contiguous().t(), torch.empty(0, dtype=dtype)], 0)
    if dtype is not torch.bool:
        check("aten::scatter_add", x, 0, index, x.flip(0))
        check("aten::index_add", x, 0, torch.tensor([1, 1, 0]), x[:3])


def test_0_dim() -> None:
    x = torch.tensor(3.0)
    check("aten::gather", x, 0, torch.tensor(0))
    check("aten::index_select", x, 0, torch.tensor(0))
    check("aten::take", X, torch.tensor(-1))


@pytest.mark.parametrize("bad", [-1, 5, 1 << 40])
def test_out_of_range(bad: int) -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        interpret("aten::gather", X, 0, torch.full((1, 1, 1), bad))
    with pytest.raises(IndexError, match="out of bounds"):
        interpret("aten::embedding", torch.randn(5, 3), torch.tensor([0, bad]))


def test_advanced_indexing() -> None:
    i, j = torch.tensor([0, -1, 2]), torch.tensor([[1], [0]])
    for indices in ([i], [None, i], [None, None, i], [i, j], [None, i, j], [i, None, j], [i, j, i]):
        check("aten::index.Tensor", X, indices)
    check("aten::index.Tensor", LAYOUTS[1], [None, i, j])


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put(accumulate: bool) -> None:
    i, j = torch.tensor([0, -1, 2, 0]), torch.tensor([[1], [0]])
    check("aten::index_put", X, [i], torch.randn(4, 6, 7), accumulate)
    check("aten::index_put", X, [None, i], torch.randn(()), accumulate)
    check("aten::index_put", X, [i, None, j], torch.randn(2, 4, 6), accumulate)
    check("aten::index_put", X, [i, j, i], torch.randn(2, 4), accumulate)
    check("aten::put", X, i, torch.randn(4), accumulate)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_scatter(dim: int) -> None:
    index = torch.randint(0, 5, (5, 4, 3))
    source = torch.randn(5, 6, 7)
    check("aten::scatter_add", X, dim, index, source)
    check("aten::scatter.value", X, dim, index, 2.5)
    check("aten::scatter.reduce", X, dim, index, source, "multiply")
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        for include in (True, False):
            check("aten::scatter_reduce.two", X, dim, index, source, reduce, include)
            check("aten::scatter_reduce.two", (X * 9).int(), dim, index, (source * 9).int(), reduce, include)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_index_slices(dim: int) -> None:
    index = torch.tensor([3, 0, 3])
    source = torch.randn([3 if d == dim else n for d, n in enumerate(X.shape)])
    check("aten::index_add", X, dim, index, source, 2.0)
    check("aten::index_copy", X, dim, torch.tensor([3, 0, 2]), source)
    check("aten::index_fill.int_Scalar", X, dim, index, 7.5)
    check("aten::index_fill.int_Tensor", X, dim, index, torch.tensor(7.5))
    for reduce in ("prod", "mean", "amax", "amin"):
        for include in (True, False):
            check("aten::index_reduce", X, dim, index, source, reduce, include)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding_backward(dtype: torch.dtype) -> None:
    words = torch.tensor([[1, 4, 1], [0, 1, 4]])
    grad = torch.randn(2, 3, 8).to(dtype)
    for padding in (-1, 4):
        for scaled in (False, True):
            check("aten::embedding_dense_backward", grad, words, 6, padding, scaled, factor=8)
    check("aten::embedding_dense_backward", grad[:0], words[:0], 6, -1, False)  # no words: zeros


def test_movement() -> None:
    for x in LAYOUTS:
        check("aten::flip", x, [0, -1])
        check("aten::roll", x, [2], [1])
        check("aten::roll", x, [-1, 3], [0, 2])
        check("aten::repeat", x, [2, 1, 3, 2])
        for dim in (0, 1, -1):
            check("aten::cat", [x, x.flip(0), x.double()], dim)
    check("aten::roll", X, [5], [])
    check("aten::flip", torch.randn(()), [])
    check("aten::unfold_backward", torch.randn(4, 3, 5), [4, 9], 1, 5, 2)
    check("aten::unfold_backward", torch.randn(4, 2, 2), [4, 9], 1, 2, 5)
