"""Programs on compiled kernels about layouts and numbers: shifted tokens, gradient scaling, ends of types."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from tests.device.kernel_programs import DEVICE, agree, leaf, plain, same_message, strict


@strict
def gradients_of_embeddings_of_shifted_tokens() -> None:
    tokens = torch.randint(0, 11, (5, 9), generator=torch.Generator().manual_seed(1))
    weight = leaf(11, 6)
    layouts = (tokens[:, :-1], tokens.t(), tokens[::2, 1::2], tokens[:1].expand(4, 9), tokens[0, 0])
    for words in layouts:
        for options in ({}, {"padding_idx": 3}, {"scale_grad_by_freq": True}):
            agree(lambda w, t, options=options: functional.embedding(t, w, **options), weight, words)
            agree(lambda w, t, options=options: functional.embedding(t, w, **options).mT, weight, tokens)
    backward = torch.ops.aten.embedding_dense_backward
    agree(lambda g: backward(g.mT, tokens.to(g.device)[:, :-1], 11, -1, False), plain(5, 6, 8))
    agree(lambda g: backward(g, tokens.to(g.device)[:, :-1], 11, -1, False), plain(5, 8, 6, dtype=torch.float64))


@strict
def compiled_gradients_of_embeddings_of_shifted_tokens() -> None:
    tokens = torch.randint(0, 11, (5, 9), generator=torch.Generator().manual_seed(1))
    weight = leaf(11, 6)
    compiled = torch.compile(lambda w, t: functional.embedding(t, w).sin(), backend="bringup")

    def run(w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        words = t[:, :-1]
        return functional.embedding(words, w).sin() if w.device.type == "cpu" else compiled(w, words)

    agree(run, weight, tokens)


@strict
def scaled_gradients() -> None:
    def step(factors: list[float]) -> Any:
        def run(*weights: torch.Tensor) -> Any:
            parameters = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
            update = torch.optim.SGD(parameters, lr=0.1)
            scaler = torch.amp.GradScaler(
                weights[0].device.type, init_scale=64.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2
            )
            seen = []
            for factor in factors:
                update.zero_grad()
                loss = sum((p.float() * factor).mT.sin().sum() for p in parameters)
                scaler.scale(loss).backward()
                scaler.step(update)
                scaler.update()
                seen.append(scaler._scale.clone())
            return [p.detach() for p in parameters], seen

        return run

    weights = (plain(4, 5), plain(3, 4).t(), plain(2, 7, seed=3))
    agree(step([1.0, math.inf, math.nan, 0.5, 0.5, 1.0]), *weights)


@strict
def unscaled_gradients_of_every_layout() -> None:
    def check(*gradients: torch.Tensor) -> Any:
        found = torch.zeros(1, device=gradients[0].device)
        scale = torch.full((1,), 0.25, device=gradients[0].device)
        torch._amp_foreach_non_finite_check_and_unscale_(list(gradients), found, scale)
        return [*gradients, found]

    infinite = plain(6, 5)
    infinite[4, 1] = -math.inf
    agree(check, plain(6, 5), plain(4, 3).t(), plain(0), plain(8, 8)[::2, ::2])
    agree(check, plain(6, 5), infinite.t(), plain(3))
    agree(check, plain(300, 300), plain(70_000, dtype=torch.float16).clamp(-5, 5), torch.tensor(math.nan))
    agree(check, torch.tensor([math.nan] * 70_000))


@strict
def put_into_every_layout() -> None:
    index = torch.tensor([[0, 5, -1], [7, 5, 2]])
    for target in (plain(3, 4), plain(4, 3).t(), plain(6, 8)[::2, ::2]):
        for accumulate in (False, True):
            for source in (plain(2, 3), plain(3, 2).t(), plain(4, 6)[::2, ::2]):
                for at in (index, index.t().contiguous().t()):
                    agree(lambda x, i, s, a=accumulate: torch.ops.aten.put(x, i, s, a), target, at, source)
                    agree(lambda x, i, s, a=accumulate: x.put_(i, s, a), target, at, source)
    same_message(lambda x: x.put_(torch.tensor([9], device=x.device), x[:1, 0]), plain(2, 2).t())


def answer(function: Any, device: str) -> Any:
    """What a call gives, or the error's class and words."""
    try:
        found = function(device)
    except Exception as error:
        return type(error).__name__, str(error).split("\nException raised")[0]
    return str(found.dtype), tuple(found.shape), found.stride(), str(found.cpu().tolist())


def same_answers(cases: dict[str, Any]) -> None:
    """The device answers every call as the CPU does."""
    both = {name: [answer(function, device) for device in ("cpu", DEVICE)] for name, function in cases.items()}
    different = {name: answers for name, answers in both.items() if answers[0] != answers[1]}
    assert not different, different


def numbers(device: str, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.tensor([44, 0, 255, 1, 100], dtype=dtype, device=device)


SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)


@strict
def numbers_at_the_ends_of_integer_types() -> None:
    cases: dict[str, Any] = {"isin of a number": lambda d: torch.isin(300, numbers(d))}
    for dtype in (torch.uint8, *SIGNED):
        for number in (300, 2**31, 2**40, -1, 44.5, math.inf):
            cases[f"isin {dtype} {number}"] = lambda d, t=dtype, n=number: torch.isin(numbers(d, t), n)
            cases[f"clamp {dtype} {number}"] = lambda d, t=dtype, n=number: numbers(d, t).clamp(max=n)
        for number in (300, 2**40, -1, -300, -(2**40)):
            cases[f"clamp from {dtype} {number}"] = lambda d, t=dtype, n=number: numbers(d, t).clamp(n, 200)
            cases[f"clamp_max_ {dtype} {number}"] = lambda d, t=dtype, n=number: numbers(d, t).clamp_max_(n)
        for alpha in (128, -128, 2**15, -(2**15), 2**31, -(2**31), 2**40, 300, -1):
            cases[f"sub {dtype} {alpha}"] = lambda d, t=dtype, a=alpha: torch.sub(numbers(d, t), numbers(d, t), alpha=a)
            cases[f"rsub {dtype} {alpha}"] = lambda d, t=dtype, a=alpha: torch.rsub(numbers(d, t), 3, alpha=a)
            cases[f"sub 3 {dtype} {alpha}"] = lambda d, t=dtype, a=alpha: torch.sub(numbers(d, t), 3, alpha=a)
    same_answers(cases)


@strict
def fills_of_every_number() -> None:
    cases: dict[str, Any] = {}
    for dtype in (torch.uint8, *SIGNED, torch.float32):
        for number in (math.inf, -math.inf, math.nan, 300, 2**40, -1, 2.5, 1e30):
            held = torch.tensor(number)
            cases[f"number {dtype} {number}"] = lambda d, t=dtype, n=number: numbers(d, t).masked_fill(
                numbers(d) > 50, n
            )
            cases[f"tensor {dtype} {number}"] = lambda d, t=dtype, h=held: numbers(d, t).masked_fill(numbers(d) > 50, h)
            cases[f"there {dtype} {number}"] = lambda d, t=dtype, n=number: numbers(d, t).masked_fill_(
                numbers(d) > 50, n
            )
    cases["shape"] = lambda d: torch.ones(3, 4, device=d).masked_fill(torch.ones(2, 4, device=d) > 0, 1)
    same_answers(cases)


@strict
def shifts_of_truth_values() -> None:
    def truth(device: str) -> torch.Tensor:
        return torch.tensor([True, False, True], device=device)

    def count(device: str) -> torch.Tensor:
        return torch.tensor([1, 2, 3], device=device)

    same_answers(
        {
            "bool << 1": lambda d: truth(d) << 1,
            "bool >> 0": lambda d: truth(d) >> 0,
            "bool << int": lambda d: truth(d) << count(d),
            "bool << int8": lambda d: truth(d) << count(d).to(torch.int8),
            "int8 << 2": lambda d: count(d).to(torch.int8) << 2,
            "int << bool": lambda d: count(d) << truth(d),
            "int >> 70": lambda d: count(d) >> 70,
        }
    )


@strict
def results_lie_in_memory_as_on_the_cpu() -> None:
    def layouts(device: str) -> dict[str, torch.Tensor]:
        x = torch.arange(120.0).to(device).view(2, 3, 4, 5)
        permuted = x.permute(3, 1, 0, 2)
        channels_last = x.contiguous(memory_format=torch.channels_last)
        return {
            "permuted": permuted,
            "channels last": channels_last,
            "steps": permuted[:, :, :, ::2],
            "expanded": x[:1].expand_as(x),
        }

    def layer_norm(x: torch.Tensor) -> torch.Tensor:
        shape, ones = x.shape[-1:], torch.ones(x.shape[-1], device=x.device)
        _, mean, rstd = torch.native_layer_norm(x, shape, ones, None, 1e-5)
        wanted = [True, True, False]
        return torch.ops.aten.native_layer_norm_backward(x, x, shape, mean, rstd, ones, None, wanted)[0]

    dropout = torch.ops.aten.native_dropout_backward
    calls = {
        "masked_fill": lambda x: x.masked_fill(x > 30, 0.0),
        "dropout": lambda x: dropout(x, x > 30, 2.0),
        "dropout, dense mask": lambda x: dropout(x, (x > 30).contiguous(), 2.0),
        "layer norm": layer_norm,
        "isin": lambda x: torch.isin(x, 3.0),
        "shift": lambda x: x.int() << 1,
    }
    for name in layouts("cpu"):
        for call, function in calls.items():
            if name != "expanded":
                agree(function, layouts("cpu")[name])
            found, expected = function(layouts(DEVICE)[name]), function(layouts("cpu")[name])
            assert found.stride() == expected.stride(), (call, name, found.stride(), expected.stride())
