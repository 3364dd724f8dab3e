"""Matrix products against PyTorch: types, layouts, sizes of 0 and 1, factors that are special."""

from __future__ import annotations

import math

import pytest
import torch

from tests.unit.lowering.interpreted import check, interpret

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTS = [torch.int8, torch.uint8, torch.int32, torch.int64]


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(-99 if dtype.is_signed else 0, 99, shape, dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS + INTS)
def test_types(dtype: torch.dtype) -> None:
    a, b, c = sample(5, 37, dtype=dtype), sample(37, 6, dtype=dtype), sample(6, dtype=dtype)
    check("aten::mm", a, b)
    check("aten::bmm", a.expand(2, 5, 37), sample(2, 37, 4, dtype=dtype))
    check("aten::addmm", c, a, b, 2, 3)
    check("aten::addmv", sample(5, dtype=dtype), a, sample(37, dtype=dtype), 2, 3)
    check("aten::dot", sample(37, dtype=dtype), sample(74, dtype=dtype)[::2])
    check("aten::vdot", sample(37, dtype=dtype), sample(37, dtype=dtype))
    check("aten::addr", sample(5, 6, dtype=dtype), sample(5, dtype=dtype), c, 2, 3)


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 17])
@pytest.mark.parametrize("columns", [1, 2, 33])
@pytest.mark.parametrize("weight", ["plain", "transposed", "sliced"])
def test_layouts(rows: int, columns: int, weight: str) -> None:
    a = sample(rows, 40)
    b = {
        "plain": sample(40, columns),
        "transposed": sample(columns, 40).t(),
        "sliced": sample(80, 2 * columns)[::2, ::2],
    }[weight]
    check("aten::mm", a, b)
    check("aten::mm", sample(40, rows).t(), b)
    check("aten::addmm", sample(rows, 1), a, b)


def test_vectors() -> None:
    check("aten::mv", sample(7, 65), sample(65))
    check("aten::mv", sample(65, 7).t(), sample(130)[::2])
    check("aten::addmv", sample(), sample(7, 65), sample(65), 0.5, 2.0)
    check("aten::mv", sample(7, 0), sample(0))
    check("aten::dot", sample(0), sample(0))


def test_batches() -> None:
    a, b, c = sample(3, 5, 11), sample(3, 11, 4), sample(3, 5, 4)
    check("aten::bmm", a, b.transpose(1, 2).contiguous().transpose(1, 2))
    check("aten::bmm", a[:, :1], b[:, :, :1])
    check("aten::baddbmm", c[:, :1], a, b, 0.5, 2.0)
    check("aten::baddbmm", c[0], a, b)
    check("aten::addbmm", c[0], a, b, 0.5, 2.0)
    check("aten::addbmm", c[0, 0], a, b, 0, 1)


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_nothing(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    check("aten::mm", sample(m, k), sample(k, n))
    check("aten::addmm", sample(n), sample(m, k), sample(k, n), 2.0, 1.0)
    check("aten::bmm", sample(2, m, k), sample(2, k, n))
    check("aten::addbmm", sample(m, n), sample(0, m, k), sample(0, k, n))


def test_beta_zero_ignores_nan() -> None:
    a, b = sample(4, 5), sample(5, 6)
    nan = torch.full((4, 6), math.nan)
    check("aten::addmm", nan, a, b, 0, 1)
    check("aten::baddbmm", nan[None], a[None], b[None], 0.0, 1.0)
    check("aten::addmv", nan[:, 0], a, b[:, 0], 0, 2)
    check("aten::addr", nan, a[:, 0], b[0], 0, 2)
    a[1, 2] = math.inf
    check("aten::mm", a, b)
    check("aten::addmm", nan, a, b)


@pytest.mark.parametrize("use_gelu", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_activation(use_gelu: bool, dtype: torch.dtype) -> None:
    a, b, c = sample(5, 7, dtype=dtype), sample(7, 6, dtype=dtype), sample(6, dtype=dtype)
    found = interpret("aten::_addmm_activation", c, a, b, 1, 1, use_gelu)[0]
    expected = torch.ops.aten._addmm_activation(c, a, b, use_gelu=use_gelu)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_halves_in_float32(dtype: torch.dtype) -> None:
    a, b, c = sample(2, 5, 40, dtype=dtype), sample(2, 40, 6, dtype=dtype), sample(2, 5, 6)
    exact = a.double() @ b.double()
    scaled = c[0] + 2 * exact[0]
    for name, found, expected in (
        ("mm", interpret("aten::mm.dtype", a[0], b[0], torch.float32), exact[0]),
        ("bmm", interpret("aten::bmm.dtype", a, b, torch.float32), exact),
        ("addmm", interpret("aten::addmm.dtype", c[0], a[0], b[0], torch.float32, 1, 2, outputs=[c[0]]), scaled),
        ("baddbmm", interpret("aten::baddbmm.dtype", c, a, b, torch.float32, 2, 1, outputs=[c]), 2 * c + exact),
    ):
        assert found[0].dtype is torch.float32, name
        torch.testing.assert_close(found[0].double(), expected.double(), rtol=1e-5, atol=1e-5)


def test_integers_that_wrap() -> None:
    check("aten::mm", sample(3, 50, dtype=torch.int8), sample(50, 3, dtype=torch.int8))
    big = torch.full((2, 2), 2**62, dtype=torch.int64)
    check("aten::mm", big, big + 1)
    check("aten::_int_mm", sample(32, 32, dtype=torch.int8), sample(32, 16, dtype=torch.int8))
    check("aten::addr", torch.tensor([[True, False]]), torch.tensor([True]), torch.tensor([False, True]))
