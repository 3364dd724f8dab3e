"""Pooling and its gradients against PyTorch: windows, ceil_mode, dilation, divisors, NaN, memory formats, types."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.unit.lowering.interpreted import check

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
LAYOUTS = ["contiguous", "channels_last", "sliced", "unbatched"]


def sample(*shape: int, dtype: torch.dtype = torch.float32, layout: str = "contiguous") -> torch.Tensor:
    torch.manual_seed(sum(shape))
    x = torch.randint(-20, 20, shape).to(dtype)  # with equal elements
    if layout == "channels_last":
        return x.to(memory_format=torch.channels_last if len(shape) == 4 else torch.channels_last_3d)
    if layout == "sliced":
        return torch.cat([x, x], -1)[..., ::2]
    return x[0] if layout == "unbatched" else x


#: kernel, stride, padding, dilation, ceil_mode
MAXIMA: list[tuple[Any, ...]] = [
    ([2, 2], [], [0, 0], [1, 1], False),
    ([3, 3], [2, 2], [1, 1], [1, 1], False),
    ([3, 2], [2, 3], [1, 1], [1, 1], True),
    ([3, 3], [1, 1], [1, 1], [2, 2], False),
    ([2, 3], [2, 1], [1, 0], [3, 2], True),
    ([3], [2], [1], [1], True),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", MAXIMA, ids=str)
def test_max_pool2d(layout: str, case: tuple[Any, ...]) -> None:
    x = sample(2, 3, 9, 10, layout=layout)
    check("aten::max_pool2d_with_indices", x, *case)
    _, indices = torch.ops.aten.max_pool2d_with_indices(x, *case)
    kernel, stride, *rest = case
    grad = sample(*indices.shape)
    check("aten::max_pool2d_with_indices_backward", grad, x, kernel, stride or kernel, *rest, indices)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8])
def test_types(dtype: torch.dtype) -> None:
    x = sample(2, 2, 6, 7, dtype=dtype)
    check("aten::max_pool2d_with_indices", x, [3, 3], [2, 2], [1, 1])
    if dtype.is_floating_point:
        y, indices = torch.ops.aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
        check("aten::max_pool2d_with_indices_backward", y, x, [3, 3], [2, 2], [1, 1], [1, 1], False, indices)
        check("aten::adaptive_max_pool2d", x, [3, 3])
        check("aten::_adaptive_avg_pool2d", x, [4, 3])
        check("aten::_adaptive_avg_pool2d_backward", sample(2, 2, 4, 3, dtype=dtype), x)
        check("aten::avg_pool2d_backward", y, x, [3, 3], [2, 2], [1, 1], False, False, None)
    if dtype is not torch.uint8:
        check("aten::avg_pool2d", x, [3, 3], [2, 2], [1, 1], False, False)


def test_max_of_nan_and_infinity() -> None:
    x = sample(1, 2, 8, 8)
    x[0, 0, 2, 3] = x[0, 0, 3, 3] = x[0, 1, 7, 7] = math.nan
    x[0, 0, 5:] = -math.inf
    check("aten::max_pool2d_with_indices", x, [3, 3], [2, 2], [1, 1])
    check("aten::adaptive_max_pool2d", x, [3, 5])


@pytest.mark.parametrize("layout", ["contiguous", "unbatched", "channels_last"])
def test_pool3d(layout: str) -> None:
    x = sample(1, 2, 5, 6, 7, layout=layout)
    for kernel, stride, padding, dilation, ceil in (
        ([2, 2, 2], [], [0, 0, 0], [1, 1, 1], False),
        ([3, 2, 3], [2, 1, 2], [1, 1, 1], [1, 1, 2], True),
    ):
        check("aten::max_pool3d_with_indices", x, kernel, stride, padding, dilation, ceil)
        _, indices = torch.ops.aten.max_pool3d_with_indices(x, kernel, stride, padding, dilation, ceil)
        grad, stride = sample(*indices.shape), stride or kernel
        if layout != "channels_last":  # the CPU wants contiguous
            back = "aten::max_pool3d_with_indices_backward"
            check(back, grad, x, kernel, stride, padding, dilation, ceil, indices)
        for include, divisor in ((True, None), (False, None), (True, 5)):
            check("aten::avg_pool3d", x, kernel, stride, padding, ceil, include, divisor)
            grad = torch.ops.aten.avg_pool3d(x, kernel, stride, padding, ceil, include, divisor)
            check("aten::avg_pool3d_backward", grad, x, kernel, stride, padding, ceil, include, divisor)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("divisor", [None, 7])
def test_avg_pool2d(layout: str, include: bool, divisor: int | None) -> None:
    x = sample(2, 3, 9, 10, layout=layout)
    for kernel, stride, padding, ceil in (
        ([2, 2], [2, 2], [0, 0], False),
        ([3, 2], [2, 3], [1, 1], True),
        ([4, 3], [1, 1], [2, 1], False),
        ([2, 2], [3, 3], [1, 1], True),
    ):
        check("aten::avg_pool2d", x, kernel, stride, padding, ceil, include, divisor)
        grad = torch.ops.aten.avg_pool2d(x, kernel, stride, padding, ceil, include, divisor)
        check("aten::avg_pool2d_backward", grad, x, kernel, stride, padding, ceil, include, divisor)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [[1, 1], [3, 5], [4, 7], [9, 10], [12, 13]])
def test_adaptive2d(layout: str, size: list[int]) -> None:
    x = sample(2, 3, 9, 10, layout=layout)
    check("aten::_adaptive_avg_pool2d", x, size)
    check("aten::adaptive_max_pool2d", x, size)
    y, indices = torch.ops.aten.adaptive_max_pool2d(x, size)
    check("aten::_adaptive_avg_pool2d_backward", y, x)
    check("aten::adaptive_max_pool2d_backward", y, x, indices)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_adaptive_dtypes(dtype: torch.dtype) -> None:
    """Windows that share elements add up in float32; NaN and infinities stay where they are; one large odd plane."""
    x = sample(1, 2, 17, 13, dtype=dtype)
    x[0, 0, 3, 4], x[0, 1, 8, 8] = math.nan, math.inf
    for size in ([5, 4], [2, 13], [20, 3]):
        check("aten::_adaptive_avg_pool2d", x, size)
        check("aten::adaptive_max_pool2d", x, size)
        check("aten::_adaptive_avg_pool2d_backward", sample(1, 2, *size, dtype=dtype), x)
    check("aten::_adaptive_avg_pool2d", sample(1, 1, 131, 97, dtype=dtype), [3, 2])
    check("aten::_adaptive_avg_pool2d", x[:0], [5, 4])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_of_windows_that_do_not_meet(layout: str, dtype: torch.dtype) -> None:
    """Elements that no window has get 0."""
    x = sample(2, 3, 9, 10, layout=layout).to(dtype)
    windows = (([2, 2], [], None), ([2, 1], [3, 2], 5), ([1, 1], [4, 4], None), ([3, 2], [3, 3], -2))
    for kernel, stride, divisor in windows:
        grad = torch.ops.aten.avg_pool2d(x, kernel, stride) * 1.5
        check("aten::avg_pool2d_backward", grad, x, kernel, stride, [0, 0], False, True, divisor)
    y = torch.ops.aten.avg_pool2d(x, [2, 2], [2, 2], [0, 0], True)
    check("aten::avg_pool2d_backward", y, x, [2, 2], [2, 2], [0, 0], True, True, None)


@pytest.mark.parametrize("size", [[1, 1, 1], [2, 3, 7], [6, 3, 2]])
def test_adaptive3d(size: list[int]) -> None:
    x = sample(1, 2, 5, 6, 7)
    check("aten::_adaptive_avg_pool3d", x, size)
    check("aten::adaptive_max_pool3d", x, size)
    y, indices = torch.ops.aten.adaptive_max_pool3d(x, size)
    check("aten::_adaptive_avg_pool3d_backward", y, x)
    check("aten::adaptive_max_pool3d_backward", y, x, indices)


@pytest.mark.parametrize("layout", ["contiguous", "unbatched", "sliced"])
def test_unpool(layout: str) -> None:
    x = sample(2, 3, 8, 6, layout=layout)
    y, indices = torch.ops.aten.max_pool2d_with_indices(x, [2, 2])
    check("aten::max_unpool2d", y, indices, [8, 6])
    check("aten::max_unpool2d", y, indices, [9, 8])
    x = sample(2, 3, 4, 4, 6, layout=layout)
    y, indices = torch.ops.aten.max_pool3d_with_indices(x, [2, 2, 2])
    check("aten::max_unpool3d", y, indices, [4, 4, 6], [2, 2, 2], [0, 0, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fractional(dtype: torch.dtype) -> None:
    for shape, kernel, size in (
        ((2, 3, 9, 10), [2, 3], [4, 5]),
        ((3, 9, 10), [2, 2], [1, 5]),
        ((2, 2, 6, 7, 8), [2, 2, 3], [3, 4, 3]),
    ):
        d = len(kernel)
        x = sample(*shape, dtype=dtype)
        samples = torch.rand(shape[0] if len(shape) > d + 1 else 1, shape[-d - 1], d, dtype=dtype)
        check(f"aten::fractional_max_pool{d}d", x, kernel, size, samples)
        y, indices = getattr(torch.ops.aten, f"fractional_max_pool{d}d")(x, kernel, size, samples)
        check(f"aten::fractional_max_pool{d}d_backward", y, x, kernel, size, indices, outputs=[x])
