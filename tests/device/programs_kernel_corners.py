"""Programs on compiled kernels about layouts and numbers that training meets: shifted tokens, gradient scaling, masks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from tests.device.kernel_programs import agree, leaf, plain, same_message, strict


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
