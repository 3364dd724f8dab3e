"""Convolutions as packed contractions: patches gathered while packing, with padding, strides, dilation and groups."""

from __future__ import annotations

import pytest

from bringup.ir.dtypes import Array, DType, bfloat16, float32, float64
from bringup.targets.c.target import CTarget
from tests.unit.targets.c_contract_cases import HOST, assert_same_bits, conv_kernel, numbers
from tests.unit.targets.test_c_contract import NARROW

#: images, groups, channels in, height, width, channels out, kernel height and width, padding
SHAPES = [
    (2, 1, 3, 9, 11, 5, 3, 3, 1, 1),
    (1, 2, 5, 7, 38, 14, 3, 2, 0, 2),
    (3, 1, 1, 4, 4, 2, 1, 1, 0, 0),
    (1, 1, 2, 5, 5, 3, 3, 3, 2, 2),
]


def images(
    layout: str, shape: tuple[int, ...], stride: int, dilation: int, dtype: DType
) -> tuple[dict[str, Array], dict[str, int]]:
    nb, g, ci, h, w, co, kh, kw, ph, pw = shape
    oh, ow = ((n + 2 * p - dilation * (k - 1) - 1) // stride + 1 for n, k, p in ((h, kh, ph), (w, kw, pw)))
    image, weight = ((0, 1, 2, 3, 4),) * 2 if layout == "nchw" else ((0, 3, 4, 1, 2), (0, 1, 3, 4, 2))
    arrays = {
        "x": numbers((nb, g, ci, h, w), dtype, 1, image),
        "f": numbers((g, co, ci, kh, kw), dtype, 2, weight),
        "y": numbers((nb, g, co, oh, ow), dtype, 3, image),
    }
    sizes = {"nb": nb, "g": g, "ci": ci, "h": h, "w": w, "co": co, "oh": oh, "ow": ow, "kh": kh, "kw": kw}
    return arrays, {**sizes, "ph": ph, "pw": pw}


def check(
    layout: str,
    kind: str,
    stride: int = 1,
    dilation: int = 1,
    dtype: DType = float32,
    target: CTarget = HOST,
    shapes: list[tuple[int, ...]] = SHAPES,
) -> None:
    text = conv_kernel(stride, dilation, layout, kind, dtype.name)
    for shape in shapes:
        arrays, sizes = images(layout, shape, stride, dilation, dtype)
        assert_same_bits(text, arrays, sizes, target=target, parts=2)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_forward(layout: str, stride: int, dilation: int) -> None:
    check(layout, "forward", stride, dilation)


@pytest.mark.parametrize(("layout", "stride"), [("nchw", 1), ("nhwc", 1), ("nchw", 2)])
def test_weight_gradient(layout: str, stride: int) -> None:
    check(layout, "weight", stride)


@pytest.mark.parametrize("dtype", [float64, bfloat16])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_types(layout: str, dtype: DType) -> None:
    check(layout, "forward", dtype=dtype)


@pytest.mark.parametrize("target", NARROW, ids=str)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_vector_widths(layout: str, target: CTarget) -> None:
    check(layout, "forward", target=target, shapes=SHAPES[:2])


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_cut_sums(layout: str) -> None:
    """100 channels × 9 taps are more than one block of k: the second block starts in the middle of a channel."""
    check(layout, "forward", shapes=[(1, 1, 100, 5, 6, 13, 3, 3, 1, 1)])


@pytest.mark.parametrize(("layout", "kind"), [("nchw", "forward"), ("nhwc", "forward"), ("nchw", "weight")])
def test_no_images_and_no_channels(layout: str, kind: str) -> None:
    check(layout, kind, shapes=[(0, 1, 2, 4, 4, 3, 3, 3, 1, 1), (1, 1, 0, 4, 4, 3, 3, 3, 1, 1)])


def test_small_images_fill_vectors_across_rows_and_images() -> None:
    check("nchw", "forward", shapes=[(6, 1, 4, 3, 3, 20, 3, 3, 1, 1)])
