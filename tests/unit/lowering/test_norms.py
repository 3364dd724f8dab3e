"""Layer, group, RMS and batch normalisation, forward and backward, against PyTorch's CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.unit.lowering.interpreted import assert_close_to_exact, call_op, find, interpret

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
EPS = 1e-5


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape).to(dtype) + 1


def agree(overload: str, *arguments: Any, mutated: Sequence[int] = (), factor: float = 4.0) -> None:
    """The outputs, and the arguments that the op writes to, are those of the CPU; statistics may have another type
    than the CPU's (float32 instead of a half: what the meta kernels say)."""

    def copy(change: Any) -> list[Any]:
        return [change(a).clone() if isinstance(a, torch.Tensor) else a for a in arguments]

    def wide(t: torch.Tensor) -> torch.Tensor:
        return t.double() if t.is_floating_point() else t

    ours, cpu, exact = copy(lambda t: t), copy(lambda t: t), copy(wide)
    # A clone may be laid out otherwise.
    ours = [a if not isinstance(a, torch.Tensor) or n in mutated else arguments[n] for n, a in enumerate(ours)]
    op = find(overload)
    found = [*interpret(overload, *ours), *(ours[n] for n in mutated)]
    expected = [*call_op(op, cpu), *(cpu[n] for n in mutated)]
    reference = [*call_op(op, exact), *(exact[n] for n in mutated)]
    for got, one, true in zip(found, expected, reference):
        if one is None or one.numel() == 0:
            continue
        assert got.shape == one.shape
        tensors = [a for a in arguments if isinstance(a, torch.Tensor) and a.numel()]
        terms = max(a.numel() for a in tensors) / got.numel()
        scale = max(float(a.abs().max()) for a in tensors) * max(terms, 4) ** 0.5
        scale *= 8 if got.dtype is torch.float64 else 1  # there is nothing more exact to compare with
        assert_close_to_exact(overload, got, one.to(got.dtype), true, factor, scale)


LAYOUTS = {
    "dense": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "inner transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_layer_norm(dtype: torch.dtype, layout: str) -> None:
    x = LAYOUTS[layout](sample(4, 5, 37, dtype=dtype))
    for shape in ([37], [5, 37], [4, 5, 37]):
        w, b = sample(*shape, dtype=dtype), sample(*shape, dtype=dtype) * 2
        for parameters in ((w, b), (w, None), (None, None)):
            agree("aten::native_layer_norm", x, shape, *parameters, EPS)
        agree_backward("aten::native_layer_norm", x, shape, w, b)


def agree_backward(overload: str, x: torch.Tensor, shape: Any, w: torch.Tensor, b: torch.Tensor) -> None:
    _, mean, rstd = call_op(find(overload), [x, shape, w, b, EPS])
    grad = sample(*x.shape, dtype=x.dtype).flip(0) - 1
    for mask in ([True, True, True], [False, True, False], [True, False, False], [False, False, True]):
        agree(f"{overload}_backward", grad, x, shape, mean, rstd, w, b, mask)
    agree(f"{overload}_backward", grad, x, shape, mean, rstd, None, None, [True, False, False])


def test_layer_norm_mixed_and_empty() -> None:
    x = sample(3, 40, dtype=torch.bfloat16)
    agree("aten::native_layer_norm", x, [40], sample(40), sample(40), EPS)
    agree("aten::native_layer_norm", sample(0, 7), [7], sample(7), sample(7), EPS)
    mean = torch.zeros(0, 1)
    none, w = sample(0, 7), sample(7)
    agree("aten::native_layer_norm_backward", none, none, [7], mean, mean, w, w, [True] * 3)
    many = sample(9000, 5)  # the rows are cut for the gradients of the weights
    agree_backward("aten::native_layer_norm", many, [5], sample(5), sample(5))


@pytest.mark.parametrize("dtype", FLOATS)
def test_rms_norm(dtype: torch.dtype) -> None:
    for x in (sample(4, 37, dtype=dtype), sample(37, 4, dtype=dtype).t()):
        w = sample(37, dtype=dtype)
        for eps in (EPS, None):
            y, rstd = interpret("aten::_fused_rms_norm", x, [37], w, eps)
            leaf, weight = x.double().requires_grad_(), w.double().requires_grad_()
            used = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps if eps is None else eps
            true = torch.nn.functional.rms_norm(leaf, [37], weight, used)
            torch.testing.assert_close(y, true.to(dtype).detach())
        grad = sample(4, 37, dtype=dtype).flip(0)
        true.backward(grad.double())
        metas = [torch.empty_like(x), torch.empty_like(w)]
        found = interpret("aten::_fused_rms_norm_backward", grad, x, [37], rstd, w, [True, True], outputs=metas)
        for got, reference in zip(found, (leaf.grad, weight.grad)):
            torch.testing.assert_close(got, reference.to(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_group_norm(dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    x = sample(3, 6, 5, 7, dtype=dtype).to(memory_format=memory_format)
    w, b = sample(6, dtype=dtype), sample(6, dtype=dtype) * 2
    for group in (1, 2, 6):
        sizes = (3, 6, 35, group)
        for parameters in ((w, b), (None, None)):
            agree("aten::native_group_norm", x, *parameters, *sizes, EPS)
        _, mean, rstd = torch.native_group_norm(x, w, b, *sizes, EPS)
        grad = (sample(3, 6, 5, 7, dtype=dtype).flip(0) - 1).to(memory_format=memory_format)
        for mask in ([True, True, True], [False, True, False], [True, False, False]):
            if memory_format is torch.channels_last and not all(mask):
                continue  # a crash of PyTorch's
            agree("aten::native_group_norm_backward", grad, x, mean, rstd, w, *sizes, mask, factor=8)
        if memory_format is torch.contiguous_format:
            only = [True, False, False]
            agree("aten::native_group_norm_backward", grad, x, mean, rstd, None, *sizes, only, factor=8)


def test_group_norm_without_space() -> None:
    agree("aten::native_group_norm", sample(3, 8), sample(8), sample(8), 3, 8, 1, 2, EPS)


SHAPES = {
    "vectors": lambda dtype: sample(9, 5, dtype=dtype),
    "images": lambda dtype: sample(3, 5, 4, 6, dtype=dtype),
    "channels_last": lambda dtype: sample(3, 5, 4, 6, dtype=dtype).to(memory_format=torch.channels_last),
    "cut": lambda dtype: sample(9000, 2, dtype=dtype),
}


#: Halves are computed in float32: where a long reduction is cut is the same.
BATCHES = [(dtype, shape) for dtype in FLOATS for shape in SHAPES if shape != "cut" or dtype.itemsize > 2]


@pytest.mark.parametrize(("dtype", "shape"), BATCHES)
def test_batch_norm(dtype: torch.dtype, shape: str) -> None:
    x = SHAPES[shape](dtype)
    # With a half input PyTorch wants either all parameters of it or all float32.
    w, b, mean, var = (sample(x.shape[1] + n)[n:].abs() + 0.5 for n in range(4))
    if dtype is torch.float64:
        w, b, mean, var = w.double(), b.double(), mean.double(), var.double()
    for training in (True, False):
        for name in ("native_batch_norm", "_native_batch_norm_legit"):
            agree(f"aten::{name}", x, w, b, mean, var, training, 0.2, EPS, mutated=[3, 4] if training else [])
        agree("aten::native_batch_norm", x, None, None, mean, var, training, 0.2, EPS)
    agree("aten::native_batch_norm", x, w, None, None, None, True, 0.2, EPS)
    agree("aten::_native_batch_norm_legit.no_stats", x, w, b, True, 0.2, EPS)
    agree("aten::_native_batch_norm_legit_no_training", x, w, b, mean, var, 0.2, EPS)
    for training in (True, False):
        agree("aten::_native_batch_norm_legit_functional", x, w, b, mean, var, training, 0.2, EPS)

    grad = sample(*x.shape, dtype=dtype).flip(0) - 1
    grad = grad.to(memory_format=torch.channels_last) if shape == "channels_last" else grad
    _, save_mean, save_invstd = torch.native_batch_norm(x, w, b, mean.clone(), var.clone(), True, 0.2, EPS)
    for train in (True, False):
        for mask in ([True, True, True], [True, False, False], [False, True, True], [True, False, True]):
            saved = (mean, var, save_mean, save_invstd, train, EPS, mask)
            agree("aten::native_batch_norm_backward", grad, x, w, *saved, factor=8)
        saved = (mean, var, save_mean, save_invstd, train, EPS, [True, False, False])
        agree("aten::native_batch_norm_backward", grad, x, None, *saved, factor=8)
    reserve = torch.zeros(0, dtype=torch.uint8)
    saved = (mean, var, save_mean, save_invstd, True, EPS, [True, True, True], reserve)
    agree("aten::batch_norm_backward", grad, x, w, *saved, factor=8)
