"""Resizing, padding, shuffling and grid sampling against PyTorch: modes, scales, memory formats, types, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.lowering.interpreted import call_op, check, find, interpret

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def sample(*shape: int, dtype: torch.dtype = torch.float32, last: bool = False) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    x = torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(0, 99, shape, dtype=dtype)
    return x.to(memory_format=torch.channels_last if len(shape) == 4 else torch.channels_last_3d) if last else x


#: op, dimensions, whether it takes align_corners
RESIZES = [
    *((f"upsample_nearest{d}d", d, False) for d in (1, 2, 3)),
    *((f"_upsample_nearest_exact{d}d", d, False) for d in (1, 2, 3)),
    ("upsample_linear1d", 1, True),
    ("upsample_bilinear2d", 2, True),
    ("upsample_trilinear3d", 3, True),
    ("upsample_bicubic2d", 2, True),
]


def agree(overload: str, *arguments: Any) -> None:
    """As check; in float64, where the CPU itself is the measure, by a tolerance."""
    if any(isinstance(a, torch.Tensor) and a.dtype is torch.float64 for a in arguments):
        expected = call_op(find(overload), arguments)
        for got, cpu in zip(interpret(overload, *arguments), expected if isinstance(expected, tuple) else (expected,)):
            torch.testing.assert_close(got, cpu, rtol=1e-12, atol=1e-12)
    else:
        check(overload, *arguments, factor=8)


def check_resize(name: str, x: torch.Tensor, size: list[int], *rest: Any) -> None:
    agree(f"aten::{name}", x, size, *rest)
    grad = sample(*x.shape[:2], *size, dtype=x.dtype)
    agree(f"aten::{name}_backward", grad, size, list(x.shape), *rest)


#: (name, dims, align_corners as it is passed: not at all where the op has no such argument)
CORNERS = [(name, dims, [align]) for name, dims, aligned in RESIZES if aligned for align in (False, True)]
CORNERS += [(name, dims, []) for name, dims, aligned in RESIZES if not aligned]


@pytest.mark.parametrize(("name", "dims", "corners"), CORNERS, ids=str)
def test_resize(name: str, dims: int, corners: list[bool]) -> None:
    shape = [4, 5, 3][:dims]
    x = sample(1, 2, *shape)
    for size in ([4, 7, 3], [1, 9, 5], [3, 1, 2], [8, 10, 6])[: 2 if dims == 3 else 4]:
        check_resize(name, x, size[:dims], *corners)
    scales = [1.5, 2.3, 0.7][:dims]
    check_resize(name, x, [int(n * s) for n, s in zip(shape, scales)], *corners, *scales)
    check_resize(name, x, shape, *corners, *([1.1] * dims))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"])
def test_resize_types_and_formats(dtype: torch.dtype, name: str) -> None:
    corners = [] if "nearest" in name else [False]
    check_resize(name, sample(2, 3, 5, 6, dtype=dtype), [8, 5], *corners)
    agree(f"aten::{name}", sample(2, 3, 5, 6, dtype=dtype, last=True), [8, 5], *corners)
    agree(f"aten::{name}", sample(2, 3, 5, 12, dtype=dtype)[..., ::2], [8, 5], *corners)


def test_nearest_of_bytes() -> None:
    check("aten::upsample_nearest2d", sample(2, 3, 5, 6, dtype=torch.uint8), [8, 5])
    check("aten::_upsample_nearest_exact2d", sample(2, 3, 5, 6, dtype=torch.uint8), [8, 5])


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64])
@pytest.mark.parametrize("mode", ["reflection", "replication"])
def test_padding(mode: str, dtype: torch.dtype) -> None:
    for shape, pads in (
        ((2, 3, 6), [2, 3]),
        ((3, 6), [5, 0]),
        ((2, 3, 5, 6), [1, 2, 3, 0]),
        ((2, 4, 5), [1, 2, 3, 1]),
        ((1, 2, 4, 3, 5), [1, 2, 1, 2, 3, 1]),
    ):
        name = f"aten::{mode}_pad{len(pads) // 2}d"
        x = sample(*shape, dtype=dtype)
        check(name, x, pads)
        if dtype.is_floating_point:
            grad = sample(*call_op(find(name), [x, pads]).shape, dtype=dtype)
            agree(f"{name}_backward", grad, x, pads)
    if dtype is torch.float32:
        last = sample(2, 3, 8, 9, last=True)
        check(f"aten::{mode}_pad2d", sample(2, 3, 5, 6, last=True), [1, 2, 3, 0], outputs=[last])


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.bool])
def test_constant_padding(dtype: torch.dtype) -> None:
    x = sample(2, 3, 4).to(dtype) if dtype.is_floating_point else sample(2, 3, 4, dtype=torch.int32).to(dtype)
    for pads in ([1, 2], [0, 1, 2, 0], [-1, 2, 1, -1], [1, 0, 0, 0, 0, 3], [], [-1, -1]):
        check("aten::constant_pad_nd", x, pads, 1)
        check("aten::constant_pad_nd", x.transpose(0, 2), pads, 0)
    if dtype.is_floating_point:
        check("aten::constant_pad_nd", sample(2, 3, 4, 5, dtype=dtype, last=True), [1, 2, 2, 1], 0.1)
        check("aten::constant_pad_nd", x, [1, 1], float("-inf"))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("geometry", [([2, 3], [1, 1], [0, 0], [1, 1]), ([3, 2], [2, 1], [1, 2], [2, 3])], ids=str)
def test_columns(dtype: torch.dtype, geometry: Any) -> None:
    for x in (sample(2, 3, 6, 7, dtype=dtype), sample(3, 6, 7, dtype=dtype)):
        check("aten::im2col", x, *geometry)
        columns = torch.ops.aten.im2col(x, *geometry)
        agree("aten::col2im", columns, [6, 7], *geometry)


def test_shuffles() -> None:
    x = sample(2, 12, 3, 4)
    for y in (x, x.to(memory_format=torch.channels_last), x[0], x[None], x.to(torch.int8)):
        check("aten::pixel_shuffle", y, 2, outputs=[torch.ops.aten.pixel_shuffle(y, 2)])
    for y in (sample(2, 3, 6, 4), sample(3, 4, 6), sample(2, 3, 6, 4, last=True)):
        check("aten::pixel_unshuffle", y, 2, outputs=[torch.ops.aten.pixel_unshuffle(y, 2)])
    check("aten::channel_shuffle", x, 3)
    check("aten::channel_shuffle", sample(2, 6, 5), 2)


def near(overload: str, *arguments: Any, tolerance: float = 1e-5) -> None:
    """Agrees with the CPU within a tolerance relative to 1: places and weights are rounded on the way."""
    expected = call_op(find(overload), arguments)
    for got, cpu in zip(interpret(overload, *arguments), expected if isinstance(expected, tuple) else (expected,)):
        torch.testing.assert_close(got, cpu, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("border", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_grid_sampler_2d(mode: int, border: int, align: bool) -> None:
    x, grid = sample(2, 3, 4, 5), sample(2, 3, 4, 2) * 1.3
    near("aten::grid_sampler_2d", x, grid, mode, border, align)
    near(
        "aten::grid_sampler_2d_backward", sample(2, 3, 3, 4), x, grid, mode, border, align, [True, True], tolerance=1e-4
    )
    near("aten::grid_sampler_2d", x.double(), grid.double(), mode, border, align, tolerance=1e-12)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("border", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1])
def test_grid_sampler_3d(mode: int, border: int, align: bool) -> None:
    x, grid = sample(1, 2, 3, 4, 5), sample(1, 2, 3, 2, 3) * 1.3
    near("aten::grid_sampler_3d", x, grid, mode, border, align)
    grad = sample(1, 2, 2, 3, 2)
    near("aten::grid_sampler_3d_backward", grad, x, grid, mode, border, align, [True, True], tolerance=1e-4)


def test_grid_sampler_of_one_gradient() -> None:
    x, grid = sample(2, 3, 4, 5), sample(2, 3, 4, 2)
    image, places = interpret("aten::grid_sampler_2d_backward", sample(2, 3, 3, 4), x, grid, 0, 0, False, [False, True])
    assert image is None
    assert places.isfinite().all()


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("name", ["bilinear", "bicubic", "lanczos"])
def test_antialiasing(name: str, align: bool) -> None:
    op = f"aten::_upsample_{name}2d_aa"
    if not hasattr(torch.ops.aten, f"_upsample_{name}2d_aa"):
        pytest.skip(f"this PyTorch has no {op}")
    x = sample(1, 2, 9, 11)
    for size, scales in (([4, 3], ()), ([20, 11], ()), ([9, 5], ()), ([5, 13], (0.6, 1.2)), ([1, 1], ())):
        near(op, x, size, align, *scales)
        near(f"{op}_backward", sample(1, 2, *size), size, list(x.shape), align, *scales)
    near(op, x.double(), [5, 6], align, tolerance=1e-12)
