"""Convolutions and their gradients against PyTorch: geometry, groups, memory formats, types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from bringup.ir.simplify import simplify
from bringup.lowering.registry import LOWERINGS, OUTPUTS
from bringup.lowering.resolve import lower
from bringup.targets.c.contract import contraction
from bringup.targets.c.target import CTarget
from tests.unit.lowering.interpreted import _CODES, _Described, assert_close_to_exact, find, interpret

FORWARD, BACKWARD = "aten::convolution_overrideable", "aten::convolution_backward_overrideable"
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def sample(*shape: int, dtype: torch.dtype = torch.float32, last: bool = False) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    x = torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(-9, 9, shape, dtype=dtype)
    return x.to(memory_format=torch.channels_last) if last else x


def described(overload: str, arguments: Sequence[Any]) -> list[torch.Tensor | None]:
    """What the op says its outputs are."""
    codes = {code: dtype for dtype, code in _CODES.items()}
    found = OUTPUTS[overload](*_Described(find(overload), arguments).arguments)
    return [None if o is None else torch.empty_strided(o[2], o[3], dtype=codes[o[1]]) for o in found]


def check_forward(x: torch.Tensor, w: torch.Tensor, bias: bool, *geometry: Any) -> torch.Tensor:
    stride, padding, dilation, transposed, extra, groups = geometry
    b = sample(w.shape[1] * groups if transposed else w.shape[0], dtype=x.dtype) if bias else None
    arguments = (x, w, b, stride, padding, dilation, transposed, extra, groups)
    expected = torch.ops.aten.convolution(*arguments)
    exact = torch.ops.aten.convolution(*(a.double() if isinstance(a, torch.Tensor) else a for a in arguments))
    outputs = described(FORWARD, arguments)
    (found,) = interpret(FORWARD, *arguments, outputs=outputs)
    assert found.shape == expected.shape
    if not found.is_floating_point():
        assert torch.equal(found, expected)
        return found
    scale = float(x.abs().max() * w.abs().max()) * (w[0].numel() ** 0.5)
    assert_close_to_exact(FORWARD, found, expected, exact, 4, scale)
    return found


def check_backward(
    x: torch.Tensor, w: torch.Tensor, *geometry: Any, mask: Sequence[bool] = (True, True, True)
) -> list[torch.Tensor]:
    grad = torch.ops.aten.convolution(x, w, None, *geometry)
    grad = sample(*grad.shape, dtype=x.dtype).to(memory_format=torch.preserve_format)
    doubled = [t.double() for t in (grad, x, w)]
    sizes = [w.shape[1] * geometry[5] if geometry[3] else w.shape[0]]
    exact = torch.ops.aten.convolution_backward(*doubled, sizes, *geometry, list(mask))
    expected = torch.ops.aten.convolution_backward(grad, x, w, sizes, *geometry, list(mask))
    arguments = (grad, x, w, *geometry, list(mask))
    outputs = described(BACKWARD, arguments)
    assert [o is not None for o in outputs] == list(mask)
    found = interpret(BACKWARD, *arguments, outputs=outputs)
    for got, cpu, wide in zip(found, expected, exact):
        if got is not None:
            scale = float(grad.abs().max()) * float(max(x.abs().max(), w.abs().max())) * (grad[0].numel() ** 0.5)
            assert_close_to_exact(BACKWARD, got, cpu, wide, 4, scale)
    return found


#: (input, weight, stride, padding, dilation, transposed, output padding, groups)
CASES = [
    ((2, 3, 7, 8), (5, 3, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    ((2, 3, 7, 8), (5, 3, 3, 2), [2, 3], [1, 0], [1, 1], False, [0, 0], 1),
    ((2, 3, 7, 8), (5, 3, 3, 2), [1, 1], [0, 0], [2, 1], False, [0, 0], 1),
    ((2, 3, 9, 8), (4, 3, 3, 3), [2, 1], [2, 3], [2, 3], False, [0, 0], 1),
    ((2, 3, 7, 8), (5, 3, 1, 1), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    ((2, 3, 7, 8), (5, 3, 1, 1), [2, 2], [0, 0], [1, 1], False, [0, 0], 1),
    ((2, 3, 1, 8), (5, 3, 1, 3), [1, 2], [0, 1], [1, 1], False, [0, 0], 1),
    ((2, 6, 7, 8), (4, 3, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 2),
    ((2, 4, 7, 8), (4, 1, 3, 3), [1, 2], [1, 1], [1, 1], False, [0, 0], 4),
    ((2, 4, 7, 8), (8, 1, 3, 1), [1, 1], [1, 0], [1, 1], False, [0, 0], 4),
    ((2, 4, 7, 8), (4, 1, 1, 1), [1, 1], [0, 0], [1, 1], False, [0, 0], 4),
    ((1, 3, 12, 12), (4, 3, 5, 5), [5, 5], [0, 0], [1, 1], False, [0, 0], 1),
    ((2, 3, 9), (4, 3, 3), [2], [1], [1], False, [0], 1),
    ((1, 2, 5, 6, 7), (4, 2, 3, 2, 3), [1, 2, 1], [1, 0, 1], [1, 1, 2], False, [0, 0, 0], 1),
    ((2, 3, 5, 6), (3, 4, 3, 3), [1, 1], [1, 1], [1, 1], True, [0, 0], 1),
    ((2, 3, 5, 6), (3, 4, 3, 2), [2, 3], [1, 0], [1, 1], True, [1, 2], 1),
    ((2, 3, 5, 6), (3, 4, 3, 2), [2, 2], [1, 1], [2, 3], True, [1, 0], 1),
    ((2, 3, 5, 6), (3, 4, 1, 1), [1, 1], [0, 0], [2, 2], True, [1, 1], 1),
    ((2, 4, 5, 6), (4, 3, 3, 3), [2, 1], [1, 1], [1, 1], True, [0, 0], 2),
    ((2, 4, 5, 6), (4, 1, 3, 3), [2, 2], [1, 1], [1, 1], True, [1, 1], 4),
    ((1, 3, 4, 4), (3, 2, 5, 5), [5, 5], [1, 0], [1, 1], True, [0, 3], 1),
    ((2, 3, 5), (3, 4, 4), [2], [1], [1], True, [0], 1),
    ((1, 2, 3, 4, 3), (2, 3, 2, 3, 2), [2, 1, 2], [0, 1, 0], [1, 1, 1], True, [1, 0, 0], 1),
]


#: channels_last is of 4 or 5 dimensions.
LAID_OUT = [(case, layout) for case in CASES for layout in ("contiguous", "sliced")]
LAID_OUT += [(case, "channels_last") for case in CASES if len(case[0]) > 3]


@pytest.mark.parametrize(("case", "layout"), LAID_OUT, ids=str)
def test_geometry(case: Any, layout: str) -> None:
    shape, filters, *geometry = case
    x, w = sample(*shape), sample(*filters)
    if layout == "channels_last":
        last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        x, w = x.to(memory_format=last), w.to(memory_format=last)
    elif layout == "sliced":
        x, w = torch.cat([x, x], -1)[..., ::2], torch.cat([w, w], 1)[:, : w.shape[1]]
    found = check_forward(x, w, True, *geometry)
    if layout == "channels_last" and min(found.shape) > 1:
        assert found.is_contiguous(memory_format=last)
    check_backward(x, w, *geometry)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_types(dtype: torch.dtype, groups: int) -> None:
    x, w = sample(2, 6, 6, 7, dtype=dtype), sample(6, 6 // groups, 3, 3, dtype=dtype)
    check_forward(x, w, dtype.is_floating_point, [1, 1], [1, 1], [1, 1], False, [0, 0], groups)
    if dtype.is_floating_point:
        check_forward(x, w, False, [2, 1], [1, 1], [1, 1], True, [0, 0], groups)
        check_backward(x, w, [1, 2], [1, 1], [1, 1], False, [0, 0], groups)


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, False), (False, False, True)])
def test_gradients_that_are_asked_for(mask: tuple[bool, ...]) -> None:
    check_backward(sample(2, 3, 5, 5), sample(4, 3, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask=mask)


@pytest.mark.parametrize("case", [case for case in CASES if case[0][1] != case[-1]], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_every_contraction_is_packed(case: Any, last: bool) -> None:
    """Dense images of either format, forward and backward, have the form that the C target packs."""
    shape, filters, *geometry = case
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(shape), torch.contiguous_format)
    x, w = (sample(*n).to(memory_format=layout if last else torch.contiguous_format) for n in (shape, filters))
    grad = torch.ops.aten.convolution(x, w, None, *geometry)
    for op, arguments in ((FORWARD, (x, w, None, *geometry)), (BACKWARD, (grad, x, w, *geometry, [True, True, False]))):
        described_arguments = _Described(find(op), arguments).arguments
        call = lower(op, LOWERINGS[op], described_arguments, OUTPUTS[op](*described_arguments))
        for launch in call.launches:
            assert contraction(simplify(launch.kernel), CTarget(vector_bytes=64)) is not None
