"""The models that are exported in tests, with an example call, what is open in it, and other calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

Call = tuple[Any, ...]


class ConvolutionalNet(nn.Module):
    """A picture, batch norm in evaluation, and sizes among the results."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 4 * 4, 5)

    def forward(self, picture: torch.Tensor) -> dict[str, Any]:
        x = F.max_pool2d(F.relu(self.norm(self.convolution(picture))), 2)
        return {"logits": self.head(x.flatten(1)), "count": picture.shape[0], "features": (x, None)}


class AttentionBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.wide = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.wide(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(6, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        y, (hidden, cell) = self.cells(x)
        return self.head(y[:, -1]), [hidden, cell]


class LanguageModel(nn.Module):
    """Embeddings tied to the head, positions from an arange, and a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 8), nn.Embedding(32, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(F.scaled_dot_product_attention(x, x, x, is_causal=True))


class Options(nn.Module):
    """Numbers and flags that become constants, nested containers, an input that comes back."""

    def forward(self, x: torch.Tensor, scale: float, flag: bool, *, more: dict[str, list[torch.Tensor]]) -> Any:
        return (x * scale if flag else x) + more["a"][0], x.shape[0] * 2, x


class Normalised(nn.Module):
    """Batch norm in training, and a buffer of its own: calls change its state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.sum(0)
        return self.norm(x) * self.seen


class WritesToItsInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * 2


class Decomposition(nn.Module):
    """An op without a kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svd(x)[1]


@dataclass(frozen=True)
class Case:
    """A model and its calls; the first is the example."""

    make: Callable[[], nn.Module]
    calls: Callable[[], list[Call]]
    shapes: Any = None
    kwargs: Callable[[], dict[str, Any]] = field(default=dict)


def _batch(most: int = 64) -> Any:
    return Dim("batch", min=1, max=most)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(50, shape, generator=torch.Generator().manual_seed(sum(shape)))


CASES = {
    "mlp": Case(
        lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3), nn.Softmax(dim=1)),
        lambda: [(_random(n, 6),) for n in (3, 1, 2, 8, 9, 64)],
        ({0: _batch()},),
    ),
    "cnn": Case(
        ConvolutionalNet, lambda: [(_random(n, 3, 8, 8),) for n in (3, 1, 2, 9, 64)], {"picture": {0: _batch()}}
    ),
    "channels_last": Case(ConvolutionalNet, lambda: [(_random(2, 3, 8, 8).to(memory_format=torch.channels_last),)]),
    "attention": Case(
        AttentionBlock,
        lambda: [(_random(batch, tokens, 16),) for batch in (3, 1, 9) for tokens in (5, 1, 17)],
        ({0: _batch(16), 1: Dim("tokens", min=1, max=24)},),
    ),
    "lstm": Case(Recurrent, lambda: [(_random(n, 4, 6),) for n in (2, 1, 9, 16)], ({0: _batch(16)},)),
    "language_model": Case(
        LanguageModel,
        lambda: [(_tokens(batch, tokens),) for batch in (2, 1, 5) for tokens in (7, 1, 32)],
        ({0: _batch(8), 1: Dim("tokens", min=1, max=32)},),
    ),
    "options": Case(
        Options,
        lambda: [(_random(n, 2), 3.0, True) for n in (4, 0, 1, 9)],
        {"x": {0: Dim("n", max=9)}, "scale": None, "flag": None, "more": {"a": [{}]}},
        lambda: {"more": {"a": [_random(2)]}},
    ),
}
