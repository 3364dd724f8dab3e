"""The models that compiled graphs are judged by: seven networks, and the graphs that only move memory.

Weights and inputs are made on the CPU from a seed, so that every device starts from the same bits. No dropout unless a
probability is given. ``small`` is for tests; the full size takes some milliseconds on one core.

    work = WORKLOADS["vit_tiny"]
    model, batch = work.model(), work.batch()
    loss = work.loss(model(*batch.inputs), batch.target)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = 10
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Batch:
    """What a model is called with, and what its output is compared with."""

    inputs: tuple[torch.Tensor, ...]
    target: torch.Tensor

    def to(self, device: str | torch.device, dtype: torch.dtype = torch.float32) -> Batch:
        """A copy elsewhere; ``dtype`` is that of the floating-point tensors."""

        def move(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, dtype=dtype if tensor.is_floating_point() else tensor.dtype, copy=True)

        return Batch(tuple(map(move, self.inputs)), move(self.target))


@dataclass(frozen=True)
class Workload:
    """A model with its data. ``loss`` is None where there is nothing to train (the step of an optimizer)."""

    name: str
    make: Callable[[bool], nn.Module]
    data: Callable[[bool, torch.Generator], Batch]
    loss: Loss | None = F.cross_entropy
    memory_bound: bool = False

    def model(self, small: bool = False, seed: int = 0) -> nn.Module:
        """On the CPU in float32: the same bits for the same seed; the global random state is left alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make(small)

    def batch(self, index: int = 0, small: bool = False) -> Batch:
        """Batch ``index``, always the same, on the CPU."""
        return self.data(small, torch.Generator().manual_seed(1_000_003 + index))


# ---- networks ----
class MLP(nn.Module):
    """Three linear layers on flat vectors."""

    def __init__(self, width: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, CLASSES),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, as in ResNet-18."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-18's shape: a strided stem, pooling, four stages of ``blocks`` residual blocks."""

    def __init__(self, width: int, stages: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        layers: list[nn.Module] = []
        channels = width
        for stage in range(stages):
            out = width << stage
            for block in range(blocks):
                layers.append(ResidualBlock(channels, out, stride=2 if stage and not block else 1))
                channels = out
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, stride=2, padding=1)
        return self.head(self.layers(x).mean(dim=(2, 3)))


class LSTMClassifier(nn.Module):
    """A layer of LSTM cells, written out step by step: Dynamo leaves torch.nn.LSTM to eager."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(width, 4 * hidden)
        self.recurrent = nn.Linear(hidden, 4 * hidden, bias=False)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = cell = x.new_zeros(x.shape[0], self.head.in_features)
        for step in self.inputs(x).unbind(1):
            enter, forget, new, leave = (step + self.recurrent(state)).chunk(4, dim=1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            state = leave.sigmoid() * cell.tanh()
        return self.head(state)


class Attention(nn.Module):
    """Multi-head self-attention with one product for queries, keys and values."""

    def __init__(self, width: int, heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.enter = nn.Linear(width, 3 * width)
        self.leave = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.enter(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        probability = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=probability, is_causal=self.causal)
        return self.leave(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """A transformer block that normalises first, as GPT-2's and ViT's do."""

    def __init__(self, width: int, heads: int, causal: bool, approximate: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal, dropout)
        self.second_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.approximate, self.dropout = approximate, nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.first_norm(x)))
        hidden = F.gelu(self.expand(self.second_norm(x)), approximate=self.approximate)
        return x + self.dropout(self.contract(hidden))


class GPT2(nn.Module):
    """A stack of causal blocks at the width of GPT-2 small. Its 50,257-word head would hide the blocks: it has ten."""

    def __init__(
        self, width: int, heads: int, depth: int, tokens: int, vocabulary: int = 1024, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, width))
        self.blocks = nn.Sequential(*(Block(width, heads, True, "tanh", dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.words(words) + self.positions[: words.shape[1]])
        return self.head(self.norm(x)).flatten(0, 1)


class VisionTransformer(nn.Module):
    """ViT: patches by a strided convolution, a class token, blocks."""

    def __init__(self, size: int, patch: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads, False, "none") for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class TimedConvolutions(nn.Module):
    """Two convolutions with group normalisation and a shortcut, shifted by an embedding of time."""

    def __init__(self, channels: int, out: int, time: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.GroupNorm(4, channels), nn.GroupNorm(4, out)
        self.first = nn.Conv2d(channels, out, 3, padding=1)
        self.second = nn.Conv2d(out, out, 3, padding=1)
        self.shift = nn.Linear(time, out)
        self.shortcut = nn.Conv2d(channels, out, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.first(F.silu(self.first_norm(x))) + self.shift(F.silu(time))[:, :, None, None]
        return self.second(F.silu(self.second_norm(y))) + self.shortcut(x)


class UNet(nn.Module):
    """One level of a diffusion UNet: down, middle, up with the skipped features beside it."""

    def __init__(self, width: int, time: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = TimedConvolutions(width, width, time)
        self.shrink = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = TimedConvolutions(2 * width, 2 * width, time)
        self.up = TimedConvolutions(3 * width, width, time)
        self.leave = nn.Conv2d(width, 3, 3, padding=1)
        self.time = time

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        powers = torch.arange(self.time // 2, device=x.device, dtype=x.dtype) * (-math.log(1e4) * 2 / self.time)
        angles = time[:, None] * powers.exp()
        embedded = torch.cat([angles.sin(), angles.cos()], dim=1)
        skipped = self.down(self.enter(x), embedded)
        low = self.middle(self.shrink(skipped), embedded)
        joined = torch.cat([skipped, F.interpolate(low, scale_factor=2.0, mode="nearest")], dim=1)
        return self.leave(F.silu(self.up(joined, embedded)))


class DLRM(nn.Module):
    """Embedding bags of many tables, products of all pairs, and an MLP on either side."""

    def __init__(self, dense: int, tables: int, rows: int, width: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(dense, hidden), nn.ReLU(), nn.Linear(hidden, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
        first, second = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.first: torch.Tensor
        self.second: torch.Tensor
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, dense: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        bags = [table(words[:, index]) for index, table in enumerate(self.tables)]
        features = torch.stack([bottom, *bags], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.first, self.second]
        return self.top(torch.cat([bottom, products], dim=1))


# ---- graphs that only move memory ----
class ResidualLayerNorm(nn.Module):
    """A residual sum, layer_norm and gelu."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        total = x + residual
        return total + F.gelu(self.norm(total))


class GatedRMSNorm(nn.Module):
    """A norm written out by hand, as language models do, and a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        normal = x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * self.weight
        return normal * F.silu(gate)


class MaskedSoftmax(nn.Module):
    """Attention's middle: scale, mask, softmax, and a factor per row."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(1 + 0.1 * torch.randn(rows, 1))

    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (scores * 0.125).masked_fill(mask, float("-inf")).softmax(-1) * self.gain


class SmoothedLogits(nn.Module):
    """A tempered log_softmax over a vocabulary; the loss reads it once more."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(0.1 * torch.randn(words))

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return ((logits + self.bias) / 0.7).clamp(-30, 30).log_softmax(-1)


class OptimizerStep(nn.Module):
    """An optimizer's update of several parameters, in place; its inputs are their gradients."""

    def __init__(self, shapes: Sequence[Sequence[int]], states: int) -> None:
        super().__init__()
        self.count = len(shapes)
        self.step: torch.Tensor
        self.register_buffer("step", torch.zeros(()))
        for index, shape in enumerate(shapes):
            self.register_buffer(f"parameter{index}", torch.randn(*shape))
            for state in range(states):
                self.register_buffer(f"state{index}_{state}", torch.zeros(*shape))

    @torch.no_grad()
    def forward(self, *gradients: torch.Tensor) -> torch.Tensor:
        self.step += 1
        for index, gradient in enumerate(gradients):
            self.update(index, gradient)
        return self.get_buffer("parameter0").sum()

    def update(self, index: int, gradient: torch.Tensor) -> None:
        raise NotImplementedError("an OptimizerStep says how one parameter is updated")


class AdamW(OptimizerStep):
    def update(self, index: int, gradient: torch.Tensor) -> None:
        parameter = self.get_buffer(f"parameter{index}")
        mean, square = self.get_buffer(f"state{index}_0"), self.get_buffer(f"state{index}_1")
        parameter.mul_(1 - 1e-3 * 0.01)
        mean.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        size = 1e-3 / (1 - 0.9**self.step)
        root = (square / (1 - 0.999**self.step)).sqrt() + 1e-8
        parameter.sub_(size * mean / root)


class Momentum(OptimizerStep):
    def update(self, index: int, gradient: torch.Tensor) -> None:
        parameter, velocity = self.get_buffer(f"parameter{index}"), self.get_buffer(f"state{index}_0")
        decayed = gradient + 1e-4 * parameter
        velocity.mul_(0.9).add_(decayed)
        parameter.sub_(decayed + 0.9 * velocity, alpha=0.05)


# ---- data ----
def _labels(count: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(CLASSES, (count,), generator=generator)


def _vectors(shape: tuple[int, ...], generator: torch.Generator) -> Batch:
    return Batch((torch.randn(*shape, generator=generator),), _labels(shape[0], generator))


def _sentences(count: int, tokens: int, vocabulary: int, generator: torch.Generator) -> Batch:
    words = torch.randint(vocabulary, (count, tokens), generator=generator)
    return Batch((words,), _labels(count * tokens, generator))


def _images(count: int, size: int, generator: torch.Generator) -> Batch:
    return Batch((torch.randn(count, 3, size, size, generator=generator),), _labels(count, generator))


def _pair(shape: Sequence[int], generator: torch.Generator) -> Batch:
    """Two tensors of one shape, and a third to compare with."""
    first, second, target = (torch.randn(*shape, generator=generator) for _ in range(3))
    return Batch((first, second), target)


def _recommendations(count: int, dense: int, tables: int, rows: int, generator: torch.Generator) -> Batch:
    words = torch.randint(rows, (count, tables, 4), generator=generator)
    return Batch((torch.randn(count, dense, generator=generator), words), _labels(count, generator))


def _noise(count: int, size: int, generator: torch.Generator) -> Batch:
    image, target = (torch.randn(count, 3, size, size, generator=generator) for _ in range(2))
    return Batch((image, 100 * torch.rand(count, generator=generator)), target)


def _scores(heads: int, tokens: int, generator: torch.Generator) -> Batch:
    scores, target = (torch.randn(4, heads, tokens, tokens, generator=generator) for _ in range(2))
    return Batch((scores, torch.ones(tokens, tokens, dtype=torch.bool).triu(1)), target)


def _gradients(shapes: Sequence[Sequence[int]], generator: torch.Generator) -> Batch:
    return Batch(tuple(torch.randn(*shape, generator=generator) for shape in shapes), torch.zeros(()))


def _mean_square(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output, target)


_NORM = {True: (24, 40), False: (2048, 1024)}
_SCORES = {True: (2, 17), False: (12, 256)}
_LOGITS = {True: (12, 37), False: (512, 8192)}
#: A transformer layer's worth of parameters: matrices, and the vectors that are cheap but many.
_PARAMETERS: dict[bool, tuple[tuple[int, ...], ...]] = {
    True: ((12, 20), (20,), (7, 5)),
    False: ((1024, 1024), (1024,), (2048, 768), (2048,), (768, 2048), (768,), (768,), (768,)),
}


def _logits(small: bool, generator: torch.Generator) -> Batch:
    rows, words = _LOGITS[small]
    return Batch(
        (4 * torch.randn(rows, words, generator=generator),), torch.randint(words, (rows,), generator=generator)
    )


NETWORKS = (
    Workload(
        "mlp",
        lambda small: MLP(24, 32) if small else MLP(784, 1024),
        lambda small, g: _vectors((8, 24) if small else (128, 784), g),
    ),
    Workload(
        "resnet18",
        lambda small: ResNet(8, 2, 1) if small else ResNet(64, 4, 2),
        lambda small, g: _images(4, 32, g) if small else _images(4, 64, g),
    ),
    Workload(
        "lstm",
        lambda small: LSTMClassifier(12, 16) if small else LSTMClassifier(128, 256),
        lambda small, g: _vectors((6, 5, 12) if small else (32, 16, 128), g),
    ),
    Workload(
        "gpt2",
        lambda small: GPT2(32, 4, 2, 12, vocabulary=64) if small else GPT2(768, 12, 4, 128),
        lambda small, g: _sentences(2, 12, 64, g) if small else _sentences(1, 128, 1024, g),
    ),
    Workload(
        "vit_tiny",
        lambda small: VisionTransformer(16, 8, 24, 3, 2) if small else VisionTransformer(112, 16, 192, 3, 12),
        lambda small, g: _images(3, 16, g) if small else _images(4, 112, g),
    ),
    Workload(
        "unet",
        lambda small: UNet(8, 16) if small else UNet(32, 64),
        lambda small, g: _noise(2, 8, g) if small else _noise(4, 32, g),
        loss=_mean_square,
    ),
    Workload(
        "dlrm",
        lambda small: DLRM(6, 3, 50, 8, 16) if small else DLRM(13, 8, 20_000, 32, 256),
        lambda small, g: _recommendations(5, 6, 3, 50, g) if small else _recommendations(256, 13, 8, 20_000, g),
    ),
)
MEMORY_BOUND = (
    Workload(
        "layer_norm",
        lambda small: ResidualLayerNorm(_NORM[small][1]),
        lambda small, g: _pair(_NORM[small], g),
        loss=_mean_square,
        memory_bound=True,
    ),
    Workload(
        "rms_norm",
        lambda small: GatedRMSNorm(_NORM[small][1]),
        lambda small, g: _pair(_NORM[small], g),
        loss=_mean_square,
        memory_bound=True,
    ),
    Workload(
        "softmax",
        lambda small: MaskedSoftmax(_SCORES[small][1]),
        lambda small, g: _scores(*_SCORES[small], g),
        loss=_mean_square,
        memory_bound=True,
    ),
    Workload(
        "log_softmax",
        lambda small: SmoothedLogits(_LOGITS[small][1]),
        _logits,
        loss=F.nll_loss,
        memory_bound=True,
    ),
    Workload(
        "adamw",
        lambda small: AdamW(_PARAMETERS[small], states=2),
        lambda small, g: _gradients(_PARAMETERS[small], g),
        loss=None,
        memory_bound=True,
    ),
    Workload(
        "momentum",
        lambda small: Momentum(_PARAMETERS[small], states=1),
        lambda small, g: _gradients(_PARAMETERS[small], g),
        loss=None,
        memory_bound=True,
    ),
)
WORKLOADS = {work.name: work for work in (*NETWORKS, *MEMORY_BOUND)}
