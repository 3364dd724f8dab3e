"""The frozen list: networks and shapes that nobody tunes for, so that they tell what tuning gave everybody else.

Committed before the work on speed began. Nobody times these while changing a kernel or a rule, and nobody changes this
list; benchmarks/compile.py reports them apart (``--frozen``). Half are other shapes of families in
network_families.py, half are other networks.
"""

from __future__ import annotations

import torch
from graph_models import CLASSES, Batch, Block, Workload
from network_families import (
    ConvNeXt,
    DiffusionUNet,
    EfficientNet,
    Llama,
    MobileNetV3,
    Swin,
    Whisper,
    images,
    noise,
    normed,
    sentences,
    speech,
)
from torch import nn
from torch.nn import functional as F


class DenseNet(nn.Module):
    """Layers that see all that came before them, side by side."""

    def __init__(self, growth: int, layers: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 2 * growth, 3, stride=2, padding=1)
        widths = [2 * growth + growth * at for at in range(layers + 1)]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(w), nn.ReLU(), nn.Conv2d(w, growth, 3, padding=1, bias=False))
            for w in widths[:-1]
        )
        self.head = nn.Linear(widths[-1], CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.avg_pool2d(self.stem(x), 2)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.head(x.mean((2, 3)))


class Mixer(nn.Module):
    """Linear layers over places and over channels in turn."""

    def __init__(self, size: int, patch: int, width: int, depth: int) -> None:
        super().__init__()
        places = (size // patch) ** 2
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.places = nn.ModuleList(
            nn.Sequential(nn.Linear(places, places // 2), nn.GELU(), nn.Linear(places // 2, places))
            for _ in range(depth)
        )
        self.channels = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for at, (places, channels) in enumerate(zip(self.places, self.channels)):
            x = x + places(self.norms[2 * at](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * at + 1](x))
        return self.head(x.mean(1))


class WaveNet(nn.Module):
    """Dilated causal convolutions over time with gates, and a sum of what each of them says."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv1d(1, width, 1), nn.Conv1d(width, CLASSES, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=1 << at) for at in range(depth))
        self.mixed = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, total = self.enter(x), torch.zeros((), device=x.device)
        for dilated, mixed in zip(self.dilated, self.mixed):
            kept, gate = dilated(F.pad(x, (dilated.dilation[0], 0))).chunk(2, 1)
            on, said = mixed(kept.tanh() * gate.sigmoid()).chunk(2, 1)
            x, total = x + on, total + said
        return self.leave(F.relu(total)).mean(2)


class GRUTagger(nn.Module):
    """GRU cells, written out step by step, and a label for each word."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.inputs, self.recurrent = nn.Linear(width, 3 * hidden), nn.Linear(hidden, 3 * hidden)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, states = x.new_zeros(x.shape[0], self.head.in_features), []
        for step in self.inputs(x).unbind(1):
            (r, z, n), (hr, hz, hn) = step.chunk(3, 1), self.recurrent(state).chunk(3, 1)
            fresh = (n + (r + hr).sigmoid() * hn).tanh()
            state = fresh + (z + hz).sigmoid() * (state - fresh)
            states.append(state)
        return self.head(torch.stack(states, 1)).flatten(0, 1)


class RegNet(nn.Module):
    """Bottlenecks with grouped 3x3 convolutions, a stage each."""

    def __init__(self, widths: tuple[int, ...], group: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [*normed(3, widths[0], 3, 2), nn.ReLU()]
        for before, width in zip((widths[0], *widths), widths):
            layers += [*normed(before, width, 1), nn.ReLU(), *normed(width, width, 3, 2, width // group), nn.ReLU()]
            layers += [*normed(width, width, 1), nn.ReLU()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(widths[-1], CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean((2, 3)))


class Segmenter(nn.Module):
    """Features at two scales, enlarged bilinearly and joined: a class for each place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fine = nn.Sequential(*normed(3, width, 3, 2), nn.ReLU(), *normed(width, width, 3), nn.ReLU())
        self.coarse = nn.Sequential(
            *normed(width, 2 * width, 3, 2), nn.ReLU(), *normed(2 * width, 2 * width, 3), nn.ReLU()
        )
        self.head = nn.Conv2d(3 * width, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = self.fine(x)
        coarse = F.interpolate(self.coarse(fine), size=fine.shape[2:], mode="bilinear", align_corners=False)
        scores = self.head(torch.cat([fine, coarse], 1))
        return F.interpolate(scores, size=x.shape[2:], mode="bilinear", align_corners=False).mean((2, 3))


class PostNormEncoder(nn.Module):
    """Blocks of the earlier kind, under a mask of what is padding: normalised after each sum."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(1024, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(words.shape, device=words.device).masked_fill(words < 100, float("-inf"))
        return self.head(self.layers(self.words(words), src_key_padding_mask=mask)).flatten(0, 1)


class DeepNarrow(nn.Module):
    """Blocks of a transformer that are narrow and many: launches count as much as arithmetic."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*(Block(width, 2, True, "none") for _ in range(depth)))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.words(words))).flatten(0, 1)


def _sequences(shape: tuple[int, ...], labels: int, g: torch.Generator) -> Batch:
    return Batch((torch.randn(*shape, generator=g),), torch.randint(CLASSES, (labels,), generator=g))


FROZEN = (
    Workload(
        "frozen_mobilenetv3", lambda small: MobileNetV3(2 if small else 8, 128), lambda small, g: images(1, 97, g)
    ),
    Workload("frozen_efficientnet", lambda small: EfficientNet(2 if small else 6), lambda small, g: images(3, 75, g)),
    Workload(
        "frozen_convnext",
        lambda small: ConvNeXt((8,), (1,)) if small else ConvNeXt((40, 80, 160), (1, 2, 2)),
        lambda small, g: images(1, 40 if small else 152, g),
    ),
    Workload(
        "frozen_swin",
        lambda small: Swin(32, 8, (2,), 4) if small else Swin(128, 32, (2, 4, 8), 8),
        lambda small, g: images(1 if small else 3, 32 if small else 128, g),
    ),
    Workload(
        "frozen_whisper",
        lambda small: Whisper(6, 8, 2, 1, 10, 3) if small else Whisper(40, 192, 6, 2, 300, 17),
        lambda small, g: speech(2, 6, 10, 3, g) if small else speech(3, 40, 300, 17, g),
    ),
    Workload(
        "frozen_llama",
        lambda small: Llama(16, 4, 4, 24, 1, 5) if small else Llama(320, 5, 5, 864, 5, 33),
        lambda small, g: sentences(2, 5, g) if small else sentences(4, 33, g),
    ),
    Workload(
        "frozen_diffusion",
        lambda small: DiffusionUNet(8, 1, 1) if small else DiffusionUNet(48, 2, 3),
        lambda small, g: noise(1, 8 if small else 28, g),
        loss=lambda output, target: F.mse_loss(output, target),
    ),
    Workload(
        "frozen_densenet",
        lambda small: DenseNet(4, 2) if small else DenseNet(16, 8),
        lambda small, g: images(2, 16 if small else 72, g),
    ),
    Workload(
        "frozen_mixer",
        lambda small: Mixer(16, 8, 16, 1) if small else Mixer(96, 8, 160, 6),
        lambda small, g: images(2, 16 if small else 96, g),
    ),
    Workload(
        "frozen_wavenet",
        lambda small: WaveNet(8, 2) if small else WaveNet(48, 8),
        lambda small, g: _sequences((2, 1, 20 if small else 1500), 2, g),
    ),
    Workload(
        "frozen_gru",
        lambda small: GRUTagger(6, 8) if small else GRUTagger(96, 160),
        lambda small, g: _sequences((2, 3, 6) if small else (20, 25, 96), 6 if small else 500, g),
    ),
    Workload(
        "frozen_regnet",
        lambda small: RegNet((16,), 8) if small else RegNet((48, 96, 192, 336), 24),
        lambda small, g: images(2, 16 if small else 112, g),
    ),
    Workload(
        "frozen_segmenter",
        lambda small: Segmenter(4 if small else 32),
        lambda small, g: images(2, 17 if small else 90, g),
    ),
    Workload(
        "frozen_postnorm",
        lambda small: PostNormEncoder(16, 2, 1) if small else PostNormEncoder(256, 4, 3),
        lambda small, g: sentences(2, 6, g) if small else sentences(3, 50, g),
    ),
    Workload(
        "frozen_narrow",
        lambda small: DeepNarrow(16, 1) if small else DeepNarrow(64, 12),
        lambda small, g: sentences(2, 6, g) if small else sentences(2, 40, g),
    ),
)
