"""Calls whose result depends on data, and rare ops, on compiled kernels: ``main`` compares each with the CPU.

One process runs all of them; no call may fall back.
"""

from __future__ import annotations

import json
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.device.device_programs import agree, both_refuse

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], bool]] = {}
INF, NAN = float("inf"), float("nan")


def case(function: Callable[..., Any], *inputs: Any, exact: bool = True) -> None:
    """One more call; ``exact``: bit for bit."""
    name = function.__name__ if function.__name__ != "<lambda>" else "lambda"
    CASES[f"{len(CASES)} {name}"] = (function, inputs, exact)


def small(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """0, 1 and 2 in some order."""
    return torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def strided(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """The strides as well."""
    return lambda *inputs: (function(*inputs), function(*inputs).stride())


def masked(x: Tensor) -> list[Any]:
    """A mask as an index, read and written."""
    written, added, column = x.clone(), x.clone(), x.clone()
    written[x > 1] = 1
    added.index_put_((x > 0,), torch.ones((), dtype=x.dtype, device=x.device), accumulate=x.dtype != torch.bool)
    column[:, (x > 0)[0]] = 0
    return [x[x > 0], x[(x > 0)[:, 0]], x[(x > 0)[:, 0], 1], x.bool().any(), written, added, column]


def gradients(x: Tensor) -> Tensor:
    """Through x[mask], masked_select and masked_scatter."""
    leaf = x.clone().requires_grad_()
    chosen = torch.masked_select(leaf, x > 0)
    total = (leaf[x > 1] ** 2).sum() + (chosen * 3).sum() + leaf.masked_scatter(x > 1, chosen).sum()
    total.backward()
    assert leaf.grad is not None
    return leaf.grad


def segments(reduce: str) -> Callable[[Tensor, Tensor], list[Tensor | None]]:
    def run(x: Tensor, lengths: Tensor) -> list[Tensor | None]:
        leaf = x.clone().requires_grad_()
        found = torch.segment_reduce(leaf, reduce, lengths=lengths, axis=0)
        found.nan_to_num(0, 0, 0).sum().backward()
        return [found.detach(), leaf.grad, torch.segment_reduce(x, reduce, lengths=lengths, initial=1)]

    return run


def bag(mode: str, **options: Any) -> Callable[..., list[Tensor | None]]:
    def run(table: Tensor, words: Tensor, starts: Tensor, weights: Tensor | None = None) -> list[Tensor | None]:
        leaf = table.clone().requires_grad_()
        factors = None if weights is None else weights.clone().requires_grad_()
        found = functional.embedding_bag(words, leaf, starts, mode=mode, per_sample_weights=factors, **options)
        (found * found).sum().backward()
        return [found.detach(), leaf.grad, *([] if factors is None else [factors.grad])]

    return run


for _x in (
    *(small(3, 4, dtype=dtype) for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16)),
    *(small(5, 3).t(), torch.zeros(2, 3), torch.ones(70_000, 2)),
):
    case(strided(torch.nonzero), _x)
    case(masked, _x)
    case(torch.masked_select, _x, _x > 0)
    case(lambda x: x.masked_scatter(x > 0, x.flatten().flip(0).contiguous()), _x)
    case(lambda x: [torch.equal(x, x.clone()), torch.equal(x, ~x.bool()), torch.equal(x, x[:1])], _x)
    case(lambda x: torch.unique(x, return_inverse=True, return_counts=True), _x)
    case(lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), _x)
for _x in (torch.tensor(2.0), torch.tensor(0), torch.zeros(0), torch.zeros(0, 3)):
    case(strided(torch.nonzero), _x)
    case(lambda x: torch.unique(x, return_inverse=True, return_counts=True), _x)
case(lambda x: torch.unique(x, dim=1, return_inverse=True, return_counts=True), small(2, 9))
case(lambda x: torch.unique_consecutive(x, dim=0, return_inverse=True, return_counts=True), small(9, 1))
case(torch.unique, torch.tensor([1.0, NAN, 1.0, NAN]))
case(lambda x: torch.nonzero_static(x, size=3), small(3, 4))
case(lambda x: torch.nonzero_static(x, size=30, fill_value=7), small(3, 4))
case(lambda x: torch.nonzero(x, out=torch.empty(0, dtype=torch.int64, device=x.device)), small(3, 4))
case(lambda x: torch.masked_select(x, x > 0, out=torch.empty(0, device=x.device)), small(3, 4))
case(gradients, small(3, 4))
case(torch.bincount, small(20, dtype=torch.int64))
case(lambda x, w: torch.bincount(x, w, minlength=9), small(20, dtype=torch.int64), small(20, dtype=torch.int32))
case(torch.repeat_interleave, small(20, dtype=torch.int32))
for _x in (torch.zeros(7), torch.tensor([0, 0, 3, 0, 2, 0]), torch.tensor([5]), small(4099), torch.arange(3000) % 5):
    case(torch.repeat_interleave, _x.to(torch.int64))
case(lambda x: torch.bincount(x, minlength=3), small(5000, dtype=torch.uint8) * 7)
case(lambda x, n: torch.repeat_interleave(x, n, dim=1), small(3, 4), small(4, dtype=torch.int64))
case(lambda x: torch.histogram(x, 4), small(30))
case(lambda x: torch.histogram(x, 4, range=(0, 1), weight=x + 1, density=True), small(30), exact=False)
case(torch.histogram, small(30), torch.tensor([0.0, 0.5, 2.0]))
for _reduce in ("sum", "mean", "prod", "max", "min"):
    case(segments(_reduce), small(7, 2), torch.tensor([2, 0, 3, 2]), exact=False)
_words = small(9, dtype=torch.int64, seed=1)
for _mode in ("sum", "mean", "max"):
    case(bag(_mode), torch.randn(3, 5), _words, torch.tensor([0, 4, 4, 6]), exact=False)
    case(bag(_mode, padding_idx=1), torch.randn(3, 5), _words, torch.tensor([0, 4, 4, 6]), exact=False)
_given = (torch.randn(3, 5), _words, torch.tensor([0, 4, 9]), torch.randn(9))
case(bag("sum", include_last_offset=True), *_given, exact=False)
case(lambda w, i: functional.embedding(i, w.clone(), max_norm=1.0), torch.randn(3, 5), _words, exact=False)
case(lambda x: [x.mode(0), x.mode(1, True), x.flatten().nanmedian()], small(9, 5))
case(lambda x: [x.nanmedian(0), x.median(), x.t().nanmedian()], torch.tensor([[1.0, NAN, 3.0], [NAN, NAN, 2.0]]))
case(lambda x: torch.hash_tensor(x, 0) if hasattr(torch, "hash_tensor") else x, torch.randn(9, 3))
_a = torch.tensor([0.3, 2.0, 30.0, 300.0, 5000.0, 0.0, 1.0, INF, 2.0, 0.2])
_b = torch.tensor([0.2, 5.0, 28.0, 310.0, 4000.0, 1.0, 0.0, 1.0, INF, 0.9])
case(lambda a, x: [torch.igamma(a, x), torch.igammac(a, x)], _a.double(), _b.double(), exact=False)
case(torch.special.legendre_polynomial_p, torch.linspace(-1.5, 1.5, 7), torch.arange(7) * 3.0, exact=False)
case(torch.special.laguerre_polynomial_l, torch.linspace(-1.5, 1.5, 7), torch.arange(7) - 1, exact=False)


def out_after_itself(device: str) -> None:
    """exp(x, out=x) and then exp(x, out=y): the second must not write into x."""
    x = torch.zeros(11, device=device)
    torch.exp(x, out=x)
    y = torch.zeros(11, device=device)
    torch.exp(x, out=y)
    assert bool((x == 1).all()), x
    assert bool((y > 2).all()), y


def refusals(device: str) -> None:
    """What the CPU refuses is refused with the same class of error."""
    both_refuse(device, lambda x: torch.bincount(-x), torch.arange(3))
    both_refuse(device, torch.bincount, torch.ones(3))
    both_refuse(device, lambda x: torch.masked_select(x, x), torch.ones(3))
    both_refuse(device, lambda x: x[x[:2] > 0], torch.ones(3))
    both_refuse(device, torch.repeat_interleave, torch.tensor([1, -1]))
    both_refuse(device, lambda x: torch.nonzero(x, out=torch.empty(0, device=x.device)), torch.ones(3))
    both_refuse(device, lambda x: torch.unique(x, dim=0), torch.ones(3, 0))


def run_all(device: str) -> dict[str, str | None]:
    """What went wrong, by case."""
    found: dict[str, str | None] = {}
    for name, (function, inputs, exact) in CASES.items():
        try:
            agree(device, function, *inputs, exact=exact)
            found[name] = None
        except Exception:
            found[name] = traceback.format_exc(limit=-4)
    for program in (out_after_itself, refusals):
        try:
            program(device)
            found[program.__name__] = None
        except Exception:
            found[program.__name__] = traceback.format_exc(limit=-4)
    return found


if __name__ == "__main__":
    warnings.simplefilter("error")
    print(json.dumps(run_all("sim:0")))
