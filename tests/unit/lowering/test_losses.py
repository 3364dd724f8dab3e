"""nll_loss and the margin losses, forward and backward, against PyTorch's CPU."""

from __future__ import annotations

import pytest
import torch

from bringup.ir.arguments import InterpretError
from tests.unit.lowering.interpreted import check, interpret

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
REDUCTIONS = (0, 1, 2)


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape).to(dtype)


def classes(*shape: int, count: int) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randint(0, count, shape)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_nll_loss(dtype: torch.dtype, reduction: int) -> None:
    flat = (sample(9, 5, dtype=dtype), classes(9, count=5))
    turned = (sample(5, 9, dtype=dtype).t(), classes(9, count=5))
    one = (sample(5, dtype=dtype), torch.tensor(3))
    plane = (sample(3, 5, 4, 2, dtype=dtype), classes(3, 4, 2, count=5))
    last = (plane[0].to(memory_format=torch.channels_last), plane[1])
    none = (sample(0, 5, dtype=dtype), classes(0, count=5))
    for (x, target), name in ((flat, ""), (turned, ""), (one, ""), (plane, "2d"), (last, "2d"), (none, "")):
        for weight in (None, sample(5, dtype=dtype).abs()):
            for ignored in (-100, 3):
                arguments = (x, target, weight, reduction, ignored)
                check(f"aten::nll_loss{name}_forward", *arguments)
                out, total = getattr(torch.ops.aten, f"nll_loss{name}_forward")(*arguments)
                if total.isnan() or x.numel() == 0:
                    continue
                rest = (torch.ones_like(out) * 2, *arguments, total)
                if x is not last[0]:
                    check(f"aten::nll_loss{name}_backward", *rest)
                    continue
                # PyTorch's CPU has no channels_last gradient.
                (found,) = interpret("aten::nll_loss2d_backward", *rest)
                rest = (rest[0], x.contiguous(), *rest[2:])
                torch.testing.assert_close(found, torch.ops.aten.nll_loss2d_backward(*rest))


def test_a_wrong_class_is_an_index_error() -> None:
    with pytest.raises((IndexError, InterpretError)):
        interpret("aten::nll_loss_forward", sample(2, 3), torch.tensor([1, 3]), None, 1, -100)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_multi_margin_loss(dtype: torch.dtype, reduction: int) -> None:
    for x, target in ((sample(9, 5, dtype=dtype), classes(9, count=5)), (sample(5, dtype=dtype), torch.tensor(3))):
        for weight in (None, sample(5, dtype=dtype).abs()):
            for p, margin in ((1, 1), (2, 0.5)):
                arguments = (x, target, p, margin, weight, reduction)
                out = torch.ops.aten.multi_margin_loss(*arguments)
                check("aten::multi_margin_loss", *arguments, outputs=[out])
                grad = torch.ones_like(out)
                check("aten::multi_margin_loss_backward", grad, *arguments, outputs=[torch.empty_like(x)])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_multilabel_margin_loss(dtype: torch.dtype, reduction: int) -> None:
    x = sample(4, 5, dtype=dtype)
    target = torch.tensor([[3, 0, -1, 1, 2], [-1, 0, 1, 2, 3], [0, 1, 2, 3, 4], [2, -1, 2, -1, 0]])
    for scores, labels in ((x, target), (x[0], target[0])):
        out, taken = torch.ops.aten.multilabel_margin_loss_forward(scores, labels, reduction)
        check("aten::multilabel_margin_loss_forward", scores, labels, reduction, outputs=[out, taken])
        arguments = (torch.ones_like(out) * 3, scores, labels, reduction, taken)
        check("aten::multilabel_margin_loss_backward", *arguments, outputs=[scores])
