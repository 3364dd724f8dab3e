"""Programs about attention and random numbers on compiled kernels: ``main`` runs all of them in one process."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

DEVICE = os.environ.get("BRINGUP_TEST_DEVICE", "sim")
PROGRAMS: dict[str, Callable[[], None]] = {}


def program(function: Callable[[], None]) -> Callable[[], None]:
    """Adds a program under its function's name."""
    PROGRAMS[function.__name__] = function
    return function


def drawn(function: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What a function draws from one seed, on the CPU."""
    torch.manual_seed(7)
    return function().detach().cpu()


def gradients(device: str, dtype: torch.dtype, inputs: list[torch.Tensor], mask: Any, **options: Any) -> list[Any]:
    """Attention and the gradients of its three inputs, as float64 on the CPU."""
    leaves = [t.to(device).to(dtype).detach().requires_grad_() for t in inputs[:3]]
    if mask is not None:
        mask = mask.to(device).to(mask.dtype if mask.dtype is torch.bool else dtype)
    out = sdpa(*leaves, attn_mask=mask, **options)
    out.backward(inputs[3].to(device).to(dtype))
    return [t.detach().cpu().double() for t in (out, *(leaf.grad for leaf in leaves))]


def agree(dtype: torch.dtype, heads: int = 4, shared: int = 4, mask: Any = None, **options: Any) -> None:
    """The device's error against float64 is at most three times the CPU's."""
    torch.manual_seed(0)
    shapes = [(2, 33, heads, 16), (2, 77, shared, 16), (2, 77, shared, 24), (2, 33, heads, 24)]
    inputs = [torch.randn(shape, dtype=torch.float64).transpose(1, 2).to(dtype) for shape in shapes]
    exact = gradients("cpu", torch.float64, inputs, mask, **options)
    cpu = gradients("cpu", dtype, inputs, mask, **options)
    found = gradients(DEVICE, dtype, inputs, mask, **options)
    for name, wide, own, got in zip(("out", "query", "key", "value"), exact, cpu, found):
        rounding = 8 * torch.finfo(dtype).eps * wide.abs().max()  # for float64 nothing is more exact than the CPU
        error, allowed = (got - wide).abs().max(), 3 * (own - wide).abs().max() + rounding
        assert error <= allowed, f"{dtype} {name}: error {error}, allowed {allowed}"


@program
def attention_of_every_type() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        agree(dtype)
        agree(dtype, is_causal=True)


@program
def attention_with_masks_and_shared_heads() -> None:
    torch.manual_seed(1)
    chosen = torch.rand(2, 1, 33, 77) > 0.4
    chosen[0, 0, 5] = False  # sees nothing: 0, as the CPU
    agree(torch.float32, mask=chosen)
    agree(torch.float32, mask=torch.randn(1, 77))
    agree(torch.float32, heads=6, shared=2, enable_gqa=True)
    agree(torch.float32, scale=0.5)


@program
def fused_attention_gives_the_gradient_of_its_mask() -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v, grad = (torch.randn(2, 6, n, 16, generator=generator) for n in (33, 77, 77, 33))
    spread = torch.randn(33, 1, generator=generator)
    for shape in ((2, 6, 33, 77), (1, 6, 33, 77), (33, 77), (2, 1, 1, 77), (1, 1, 33, 1), (77,)):
        for compiled in (False, True):
            sides = []
            for device in ("cpu", DEVICE):
                mask = torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(device)
                mask.requires_grad_()
                inputs = [t.clone().to(device).requires_grad_() for t in (q, k, v)]
                if device == DEVICE and not compiled:
                    assert torch._fused_sdp_choice(*inputs, mask) == SDPBackend.OVERRIDEABLE.value, shape
                run = torch.compile(sdpa, backend="bringup") if compiled and device == DEVICE else sdpa
                run(*inputs, mask).backward(grad.to(device))
                sides.append([mask.grad.cpu(), *(t.grad.cpu() for t in inputs)])
            for expected, found in zip(*sides):
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    sides = []
    for device in ("cpu", DEVICE):
        mask = spread.clone().to(device).requires_grad_()
        sdpa(*(t.to(device) for t in (q, k, v)), mask.expand(2, 6, 33, 77)).backward(grad.to(device))
        sides.append(mask.grad.cpu())
    torch.testing.assert_close(sides[1], sides[0], rtol=1e-4, atol=1e-4)


@program
def attention_draws_its_dropout_again() -> None:
    q, k, v = (torch.randn(2, 3, 40, 8, dtype=torch.float64, device=DEVICE, requires_grad=True) for _ in range(3))

    def attention(values: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        return sdpa(q, k, values, dropout_p=0.25)

    probabilities = attention(torch.eye(40, dtype=torch.float64).to(DEVICE).expand(2, 3, 40, 40)).detach().cpu()
    kept = (probabilities != 0).double() / 0.75
    assert abs(kept.mean() - 1) < 0.05
    ours = [t.detach().cpu().requires_grad_() for t in (q, k, v)]
    expected = (torch.softmax(ours[0] @ ours[1].transpose(-1, -2) * 8**-0.5, -1) * kept) @ ours[2]
    grad = torch.randn(2, 3, 40, 8, dtype=torch.float64)
    expected.backward(grad)
    found = attention(v)
    found.backward(grad.to(DEVICE))
    torch.testing.assert_close(found.detach().cpu(), expected.detach())
    for mine, theirs in zip((q, k, v), ours):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


@program
def attention_keeps_no_score_matrix() -> None:
    module = getattr(torch, DEVICE)
    q = torch.randn(1, 1, 2048, 8, device=DEVICE, requires_grad=True)
    module.reset_peak_memory_stats()
    before = module.memory_allocated()
    sdpa(q, q, q, is_causal=True).sum().backward()
    peak = module.max_memory_allocated() - before
    assert peak < 2048 * 2048, f"{peak} bytes: a score matrix has {4 * 2048 * 2048}"


@program
def the_math_form_can_be_asked_for() -> None:
    q = torch.randn(1, 2, 9, 8, device=DEVICE)
    with sdpa_kernel(SDPBackend.MATH):
        expected = sdpa(q, q, q)
    torch.testing.assert_close(sdpa(q, q, q).cpu(), expected.cpu())


@program
def a_mask_of_a_wrong_shape_is_an_error() -> None:
    q = torch.randn(1, 2, 5, 8, device=DEVICE)
    for shape in ((4, 7), (3, 5, 5)):
        with pytest.raises(RuntimeError, match="must match"):
            sdpa(q, q, q, torch.zeros(shape, device=DEVICE))


@program
def permutations_and_samples() -> None:
    for n in (0, 1, 5, 3000):
        assert torch.equal(drawn(lambda n=n: torch.randperm(n, device=DEVICE)).sort().values, torch.arange(n))
    assert torch.equal(
        drawn(lambda: torch.randperm(50, device=DEVICE)), drawn(lambda: torch.randperm(50, device=DEVICE))
    )
    p = torch.tensor([0.0, 1.0, 3.0, 0.0, 4.0, 0.0], device=DEVICE)
    share = torch.bincount(torch.multinomial(p, 80000, True).cpu(), minlength=6) / 80000
    assert (share - p.cpu() / 8).abs().max() < 0.01
    assert torch.multinomial(p.expand(50, 6), 3).cpu().sort(1).values.unique(dim=0).tolist() == [[1, 2, 4]]


@program
def impossible_chances_are_index_errors() -> None:
    for bad in ([0.5, -1.0], [0.5, float("nan")], [0.0, 0.0]):
        for samples, replacement in ((1, False), (2, False), (3, True)):
            expect_index_error(lambda b=bad, s=samples, r=replacement: torch.multinomial(on_device(b), s, r))
    expect_index_error(lambda: torch.bernoulli(on_device([0.5, 1.5])))
    assert torch.ones(3, device=DEVICE).sum().item() == 3  # the device goes on


def on_device(numbers: list[float]) -> torch.Tensor:
    """A tensor on the device."""
    return torch.tensor(numbers).to(DEVICE)


def expect_index_error(function: Callable[[], torch.Tensor]) -> None:
    """The error comes with the call, or with the copy that waits for it."""
    with pytest.raises(IndexError, match=r"multinomial|bernoulli"):
        function().cpu()


def numbers() -> dict[str, list[float]]:
    """Draws of one seed, for comparison with the other mode of the driver."""
    found: dict[str, list[float]] = {}
    for dtype in (torch.float32, torch.bfloat16):

        def empty(dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.empty(5, 7, dtype=dtype, device=DEVICE)

        cases = {
            "uniform": lambda: empty().uniform_(-2, 3),
            "normal": lambda: empty().normal_(1, 2),
            "transposed": lambda: empty().t().normal_(),
            "exponential": lambda: empty().exponential_(3),
            "coins": lambda: empty().bernoulli_(0.3),
            "own coins": lambda: torch.bernoulli(torch.linspace(0, 1, 35).to(DEVICE)),
            "dropout": lambda: torch.nn.functional.dropout(torch.ones(5, 7, device=DEVICE), 0.3),
            "geometric": lambda: empty().geometric_(0.3),
            "integers": lambda: torch.randint(-9, 9, (5, 7), device=DEVICE),
            "any integers": lambda: torch.empty(9, dtype=torch.int64, device=DEVICE).random_(),
            "many integers": lambda: torch.empty(9, dtype=torch.int64, device=DEVICE).random_(1 << 40),
        }
        for name, case in cases.items():
            found[f"{name} {dtype}"] = drawn(case).double().flatten().tolist()
    return found


def main() -> None:
    """Prints a JSON object: the traceback of each program that failed, and the numbers."""
    results: dict[str, str | None] = {}
    for name, function in PROGRAMS.items():
        try:
            function()
            results[name] = None
        except Exception:
            results[name] = traceback.format_exc()
    print(json.dumps({"programs": results, "numbers": numbers()}))


if __name__ == "__main__":
    main()
