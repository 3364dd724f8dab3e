"""Fills, sequences, triangles, searches and elementwise losses against PyTorch's CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from bringup.ir.arguments import bind_sizes
from bringup.ir.interpret import run
from bringup.ir.verify import verify
from bringup.lowering.registry import LOWERINGS
from bringup.lowering.resolve import lower
from bringup.lowering.symbolic import hint_of
from tests.unit.lowering.interpreted import check, interpret

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
CODES = {torch.float32: 6, torch.float64: 7, torch.bfloat16: 15, torch.int64: 4, torch.int32: 3}


def test_fills_and_copies() -> None:
    for dtype in DTYPES:
        x = torch.ones(3, 4, dtype=dtype)
        for view in (x, x.t(), x[:, ::2]):
            check("aten::clone", view)
            check("aten::zero", view, outputs=[torch.empty_like(view)])  # meta kernels differ in its strides
            check("aten::fill.Scalar", view, 1)
            check("aten::fill.Tensor", view, torch.tensor(1, dtype=torch.int32))
            check("aten::zeros_like", view)
            check("aten::ones_like", view)
            check("aten::full_like", view, 1)
    check("aten::full_like", torch.ones(3, dtype=torch.int64), 2.5, torch.float32)


@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangles(name: str) -> None:
    for x in (torch.randn(4, 6), torch.randn(2, 3, 5, 4), torch.randn(5, 4).t(), torch.ones(3, 3, dtype=torch.bool)):
        for diagonal in (0, 1, -2, 9):
            check(f"aten::{name}", x, diagonal)


def numbers(overload: str, values: tuple[Any, ...], dtype: torch.dtype, count: int) -> torch.Tensor:
    """A factory by its lowering; PyTorch's own would need a device argument."""
    floats = [float(v) for v in values if isinstance(v, (int, float))]
    arguments = [("s", n, None, v, 0) for n, v in enumerate(values)]
    call = lower(overload, LOWERINGS[overload], arguments, [("new", CODES[dtype], (count,), (1,))])
    assert {slot for slot, _, _ in call.trace.scalar_guards} == set(range(len(floats)))
    (launch,) = call.launches
    verify(launch.kernel)
    out = torch.zeros(count, dtype=dtype)
    stored = out.view(torch.uint16) if dtype == torch.bfloat16 else out
    sizes = {size.name: hint_of(n) for size, n in zip(launch.kernel.sizes, launch.sizes)}
    arrays = {launch.kernel.buffers[0].name: stored.numpy()}
    params = {p.name: values[n.slot] for p, n in zip(launch.kernel.params, launch.params)}  # type: ignore[union-attr]
    params = {p.name: params[p.name] if p.dtype.is_float else int(params[p.name]) for p in launch.kernel.params}
    run(launch.kernel, arrays, bind_sizes(launch.kernel, arrays, sizes), params)
    return out


def test_arange_serves_only_its_numbers() -> None:
    for dtype in CODES:
        for start, end, step in ((0, 7, 1), (2, 11, 3), (5, -4, -2)):
            expected = torch.arange(start, end, step, dtype=dtype)
            assert torch.equal(numbers("aten::arange.start_out", (start, end, step), dtype, len(expected)), expected)
    tenths = torch.arange(0.0, 1.0, 0.1)
    assert torch.equal(numbers("aten::arange.start_step", (0.0, 1.0, 0.1), torch.float32, 10), tenths)
    assert torch.equal(numbers("aten::arange.out", (6,), torch.int64, 6), torch.arange(6))
    nothing = lower("aten::arange.out", LOWERINGS["aten::arange.out"], [("s", 0, None, 0, 0)], [("new", 4, (0,), (1,))])
    assert list(nothing.trace.scalar_guards) == [(0, "eq", 0)]


def test_even_steps() -> None:
    for dtype in (torch.float32, torch.float64, torch.int64):
        for steps in (0, 1, 2, 7, 8):
            check("aten::linspace", -3, 10, steps, dtype)
    for dtype in (torch.float32, torch.float64):
        check("aten::logspace", -1.0, 2.0, 7, 10.0, dtype)


def test_eye() -> None:
    call = lower("aten::eye.m_out", LOWERINGS["aten::eye.m_out"], [3, 5], [("new", 6, (3, 5), (5, 1))])
    out = torch.zeros(3, 5)
    (launch,) = call.launches
    sizes = {size.name: hint_of(n) for size, n in zip(launch.kernel.sizes, launch.sizes)}
    arrays = {launch.kernel.buffers[0].name: out.numpy()}
    run(launch.kernel, arrays, bind_sizes(launch.kernel, arrays, sizes), {})
    assert torch.equal(out, torch.eye(3, 5))


@pytest.mark.parametrize("right", [False, True])
def test_searches(right: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        edges = torch.tensor([1, 3, 3, 5, 9], dtype=dtype)
        values = torch.randint(-1, 12, (4, 6)).to(dtype)
        check("aten::bucketize.Tensor", values, edges, False, right)
        check("aten::bucketize.Tensor", values.t(), edges, True, right)
        check("aten::searchsorted.Tensor", edges, values, False, right)
        rows = torch.randint(0, 9, (4, 37)).to(dtype).sort(-1).values
        check("aten::searchsorted.Tensor", rows, values, False, right)
        mixed = rows.flip(-1).contiguous()
        order = torch.arange(36, -1, -1).expand(4, 37).contiguous()
        check("aten::searchsorted.Tensor", mixed, values, False, right, None, order)
        check("aten::searchsorted.Scalar", edges, 3, False, right)
    nan = torch.tensor([0.5, float("nan"), 20.0])
    check("aten::bucketize.Tensor", nan, torch.tensor([1.0, 2.0, float("nan")]), False, right)
    check("aten::bucketize.Tensor", nan, torch.empty(0), False, right)
    check("aten::bucketize.Scalar", 2.5, torch.tensor([1.0, 2.0, 3.0]), False, right)


def test_isin() -> None:
    x, tests = torch.randint(0, 9, (3, 7)), torch.tensor([[1, 2], [5, 7]])
    for invert in (False, True):
        check("aten::isin.Tensor_Tensor", x, tests, False, invert)
        check("aten::isin.Tensor_Scalar", x, 3, False, invert)
        check("aten::isin.Scalar_Tensor", 5, tests, False, invert)
    check("aten::isin.Tensor_Tensor", x.float(), torch.empty(0), False, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8])
def test_isin_of_many(dtype: torch.dtype) -> None:
    """Sorted and bisected: extremes, NaN (equal to nothing), both zeros, other types and layouts."""
    few = torch.arange(-40, 40).to(dtype)
    many = few.repeat(16)[torch.randperm(1280)]
    if dtype.is_floating_point:
        few[:4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
        many[5], many[7] = float("nan"), float("inf")
    many[many == 3] = 4
    for invert in (False, True):
        check("aten::isin.Tensor_Tensor", few, many, False, invert)
        check("aten::isin.Tensor_Tensor", few.view(8, 10), many.view(32, 40).t(), False, invert)
    check("aten::isin.Scalar_Tensor", 3, many, False, False)
    check("aten::isin.Tensor_Tensor", few[:0], many, False, False)
    check("aten::isin.Tensor_Tensor", torch.arange(-50, 50), many, False, False)
    check("aten::isin.Tensor_Tensor", few, torch.full((1100,), 7, dtype=dtype), False, False)


@pytest.mark.parametrize("shape", [(2, 3, 9, 11), (1, 8, 70, 1), (2, 9, 8, 8), (3, 1, 65, 2)])
def test_copies_to_few_channels(shape: tuple[int, ...]) -> None:
    """The longest loop goes inside where the innermost is short; every element still goes where it belongs."""
    x = torch.randn(shape)
    for given in (x, x.bfloat16(), x.mul(100).to(torch.int8)):
        there = torch.empty_like(given, memory_format=torch.channels_last)
        assert torch.equal(interpret("aten::neg", given, outputs=[there])[0], -given)
        back = torch.empty(shape, dtype=given.dtype)
        assert torch.equal(interpret("aten::neg", there.copy_(given), outputs=[back])[0], -given)
    check("aten::add.Tensor", x.permute(0, 2, 3, 1), torch.randn(shape[1]))
    check("aten::mul.Tensor", torch.randn(80, 5)[:, :3], torch.randn(80, 1))


@pytest.mark.parametrize("n", [1, 1023, 1024, 1025, 3000])
def test_masked_scatter_in_blocks(n: int) -> None:
    """Blocks of 1,024: none, some and all of an element's block are taken; NaN and infinities are moved as they are."""
    x, source = torch.randn(n), torch.randn(n + 5)
    source[0], x[-1] = math.nan, math.inf
    for mask in (torch.rand(n) > 0.5, torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)):
        check("aten::masked_scatter", x, mask, source)
    half = torch.rand(n, 2) > 0.5
    check("aten::masked_scatter", torch.randn(2, n).t(), half, torch.randn(2 * n))
    check("aten::masked_scatter", torch.arange(2 * n).view(n, 2), half[:, :1], torch.arange(4 * n).view(2, -1).t())


LOSSES: list[tuple[str, tuple[Any, ...]]] = [
    ("mse_loss", ()),
    ("smooth_l1_loss", (0.7,)),
    ("huber_loss", (0.7,)),
    ("soft_margin_loss", ()),
]


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize(("name", "rest"), LOSSES)
def test_losses_and_their_gradients(name: str, rest: tuple[Any, ...], reduction: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x, target = torch.randn(5, 8).to(dtype), torch.randn(5, 8).to(dtype)
        close(f"aten::{name}", x, target, reduction, *rest)
        close(f"aten::{name}", x.t(), target.t(), reduction, *rest)
        grad = torch.randn(5, 8).to(dtype) if reduction == 0 else torch.tensor(1.5, dtype=dtype)
        close(f"aten::{name}_backward", grad, x, target, reduction, *rest)


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_cross_entropies(reduction: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x, target, weight = (torch.rand(5, 8).to(dtype) for _ in range(3))
        x[0, :2] = torch.tensor([0.0, 1.0])
        grad = weight if reduction == 0 else torch.tensor(1.5, dtype=dtype)
        for given in (None, weight):
            close("aten::binary_cross_entropy", x, target, given, reduction)
            close("aten::binary_cross_entropy_backward", grad, x, target, given, reduction)
            logits = torch.randn(5, 8).to(dtype)
            close("aten::binary_cross_entropy_with_logits", logits, target, given, None, reduction)
            close("aten::binary_cross_entropy_with_logits", logits, target, None, given, reduction)


def close(overload: str, *arguments: Any) -> None:
    """As ``check``; float64 has no better reference than itself (and the CPU has some constants of float32 in it)."""
    if arguments[0].dtype != torch.float64:
        check(overload, *arguments)
        return
    space, _, name = overload.partition("::")
    expected = getattr(getattr(torch.ops, space), name)(*arguments)
    torch.testing.assert_close(interpret(overload, *arguments)[0], expected, rtol=1e-8, atol=1e-15)
