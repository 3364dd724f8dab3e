"""Sums, products, truth and extrema, along any dimensions of any layout, against PyTorch's CPU."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
import torch

from tests.unit.lowering.interpreted import check

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def sample(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers with ties; small integers, so that products do not all overflow."""
    torch.manual_seed(sum(shape))
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0 if dtype in (torch.uint8, torch.bool) else -3, 4, shape).to(dtype)


LAYOUTS = {
    "dense": lambda dtype: sample((4, 35, 5), dtype),
    "transposed": lambda dtype: sample((4, 35, 5), dtype).permute(2, 0, 1),
    "strided": lambda dtype: sample((8, 35, 10), dtype)[::2, :, ::3],
    "expanded": lambda dtype: sample((4, 1, 5), dtype).expand(4, 3, 5),
    "channels_last": lambda dtype: sample((2, 3, 5, 7), dtype).to(memory_format=torch.channels_last),
}
DIMS = ([0], [-1], [0, 2], [1], None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_long_columns_and_single_rows(dtype: torch.dtype) -> None:
    """Pieces of columns, what they leave over, and rows of one element, for which nothing is folded."""
    for shape in ((8192, 3), (9001, 2), (1, 1000), (1, 3, 1)):
        x = sample(shape, dtype)
        if dtype.is_floating_point and shape[0] == 1:
            x[..., 0] = math.nan
        for dims in ([0], None):
            check("aten::sum.dim_IntList", x, dims, True)
        check("aten::amax", x, [0])
        check("aten::max.dim", x, 0)
        check("aten::argmin", x, 0)
        if dtype.is_floating_point and shape[0] == 1:
            check("aten::_softmax", x.float(), 0, False)
            check("aten::mean.dim", x, [0])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_dims_and_layouts(layout: str, dtype: torch.dtype) -> None:
    x = LAYOUTS[layout](dtype)
    for dims in DIMS:
        check("aten::sum.dim_IntList", x, dims, True)
        check("aten::amax", x, dims or [], False)
    for dim in range(x.ndim):
        check("aten::max.dim", x, dim, dim == 1)
        check("aten::argmin", x, dim, False)
        check("aten::prod.dim_int", x, dim, False)
    for overload in ("sum", "prod", "max", "all", "argmax"):
        check(f"aten::{overload}", x)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_every_type(dtype: torch.dtype) -> None:
    x = sample((3, 40), dtype)
    for overload in ("sum", "prod", "max", "min", "all", "any", "argmax", "argmin", "count_nonzero"):
        if dtype is not torch.bool or not overload.startswith("arg"):
            check(f"aten::{overload}", x)
    for overload in ("amax", "amin", "all.dims", "any.dims", "sum.dim_IntList", "nansum"):
        check(f"aten::{overload}", x, [1], True)
    for overload in ("max.dim", "min.dim", "all.dim", "any.dim"):
        check(f"aten::{overload}", x, 1, False)
    check("aten::aminmax", x, 0)
    check("aten::count_nonzero.dim_IntList", x, [0])
    if dtype is not torch.bool:
        with suppress(NotImplementedError):  # older PyTorch has no trace of halves on the CPU
            check("aten::trace", sample((5, 7), dtype))
    if dtype.is_floating_point:
        check("aten::mean", x)
        check("aten::mean.dim", x, [0])


FLOAT_RESULTS = (torch.float64, torch.float32, torch.float16)
RESULTS = [
    (name, dtype) for name in ("sum.dim_IntList", "prod.dim_int", "nansum", "mean.dim") for dtype in FLOAT_RESULTS
]
RESULTS += [(name, torch.int64) for name in ("sum.dim_IntList", "prod.dim_int", "nansum")]  # a mean is a float


@pytest.mark.parametrize(("overload", "dtype"), RESULTS)
def test_dtype_argument(overload: str, dtype: torch.dtype) -> None:
    for given in (torch.int32, torch.float32, torch.bool):
        if given is torch.float32 and overload == "nansum" and not dtype.is_floating_point:
            continue
        dim = 1 if overload == "prod.dim_int" else [1]
        check(f"aten::{overload}", sample((3, 40), given), dim, False, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_nan_wins_and_first_counts(dtype: torch.dtype) -> None:
    for values in (
        [1, math.nan, 3, math.nan],
        [2, 5, 5, 2],
        [math.inf, -math.inf, math.inf],
        [-math.inf] * 3,
        [math.nan],
        [0.0, -0.0],
    ):
        x = torch.tensor(values, dtype=dtype)
        for overload in ("max.dim", "min.dim"):
            check(f"aten::{overload}", x, 0)
        for overload in ("argmax", "argmin", "max", "min", "aminmax", "sum", "nansum", "any", "all"):
            check(f"aten::{overload}", x)


def test_positions_are_logical_in_any_layout() -> None:
    x = torch.tensor([[1, 9, 3], [9, 9, 0]])
    for view in (x, x.t(), x.t().contiguous().t(), x.flip(0)):
        check("aten::argmax", view)
        check("aten::argmin", view)
        check("aten::argmax", view, None, True)


def test_nothing_and_one() -> None:
    for shape, dim in (((0,), 0), ((0, 3), 0), ((3, 0), 1), ((2, 0, 3), 1)):
        x = torch.zeros(shape)
        check("aten::sum.dim_IntList", x, [dim])
        check("aten::prod.dim_int", x, dim)
        check("aten::all.dim", x, dim)
        check("aten::any.dim", x, dim)
        check("aten::mean.dim", x, [dim])
        check("aten::count_nonzero.dim_IntList", x, [dim])
    one = torch.tensor(3.0)
    for overload in ("sum", "mean", "prod", "max", "argmax", "all", "count_nonzero"):
        check(f"aten::{overload}", one)
    check("aten::max.dim", one, 0)
    check("aten::sum.dim_IntList", one, [0], True)
    check("aten::sum.dim_IntList", sample((3, 0)), [0])
    for overload in ("all.dims", "any.dims"):
        check(f"aten::{overload}", sample((2, 3)), [])
        check(f"aten::{overload}", sample((2, 3)), None)


LONG = {
    "one row": sample((270_001,)),
    "few rows": sample((3, 70_001)),
    "columns": sample((70_001, 5)),
    "transposed": sample((300, 400)).t(),
    "rows with gaps": sample((300, 801))[:, ::2],
    "short rows with gaps": sample((40_001, 3))[:, :2],
    "two dimensions": sample((64, 6, 1100)).transpose(0, 1),
}


@pytest.mark.parametrize("layout", LONG)
def test_long_rows_are_cut(layout: str) -> None:
    x = LONG[layout]
    for overload in ("sum", "max", "argmax", "aminmax", "all", "mean"):
        check(f"aten::{overload}", x)
    over = [0, 2] if x.ndim == 3 else [x.shape.index(max(x.shape))]
    check("aten::sum.dim_IntList", x, over)
    if x.ndim < 3:
        check("aten::max.dim", x, over[0])
    ties = x.round()
    check("aten::argmax", ties)
    check("aten::argmin", ties)
