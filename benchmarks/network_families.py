"""Networks of seven families: MobileNetV3, EfficientNet, ConvNeXt, Swin, Whisper, Llama, and a UNet for diffusion.

Each has the parts and the proportions of its family, written here from what the family is, at a size that takes some
milliseconds on one core. graph_models.py says what a Workload is.
"""

from __future__ import annotations

import torch
from graph_models import CLASSES, Batch, Workload
from torch import nn
from torch.nn import functional as F


def images(count: int, size: int, generator: torch.Generator) -> Batch:
    """Images of three channels with a class each."""
    return Batch(
        (torch.randn(count, 3, size, size, generator=generator),),
        torch.randint(CLASSES, (count,), generator=generator),
    )


# ---- convolutions by depth: MobileNetV3 and EfficientNet ----
class SqueezeExcite(nn.Module):
    """Scales each channel by what a small network makes of the means of all channels."""

    def __init__(self, channels: int, hidden: int, gate: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.shrink, self.grow = nn.Conv2d(channels, hidden, 1), nn.Conv2d(hidden, channels, 1)
        self.gate, self.activation = gate, activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(self.grow(self.activation(self.shrink(x.mean((2, 3), keepdim=True)))))


def normed(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution without a bias, and BatchNorm."""
    convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(out)]


class InvertedResidual(nn.Module):
    """Expand, convolve each channel alone, squeeze and excite, project; added to the input where shapes allow it."""

    def __init__(
        self, channels: int, expanded: int, out: int, kernel: int, stride: int, activation: str, squeeze: int
    ) -> None:
        super().__init__()
        kinds = {"relu": nn.ReLU, "hardswish": nn.Hardswish, "silu": nn.SiLU}
        act = kinds[activation]
        layers: list[nn.Module] = []
        if expanded != channels:
            layers += [*normed(channels, expanded, 1), act()]
        layers += [*normed(expanded, expanded, kernel, stride, expanded), act()]
        if squeeze:
            gate: nn.Module = nn.Sigmoid() if activation == "silu" else nn.Hardsigmoid()
            layers.append(SqueezeExcite(expanded, squeeze, gate, nn.SiLU() if activation == "silu" else nn.ReLU()))
        self.layers = nn.Sequential(*layers, *normed(expanded, out, 1))
        self.adds = stride == 1 and channels == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


class MobileNetV3(nn.Module):
    """A strided stem, inverted residuals with relu and then hardswish, a wide head."""

    #: expanded, out, kernel, stride, activation, squeeze
    ROWS = (
        (16, 16, 3, 2, "relu", 8),
        (72, 24, 3, 2, "relu", 0),
        (88, 24, 3, 1, "relu", 0),
        (96, 40, 5, 2, "hardswish", 24),
        (240, 40, 5, 1, "hardswish", 64),
        (120, 48, 5, 1, "hardswish", 32),
        (288, 96, 5, 2, "hardswish", 72),
        (576, 96, 5, 1, "hardswish", 144),
    )

    def __init__(self, blocks: int, head: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [*normed(3, 16, 3, 2), nn.Hardswish()]
        channels = 16
        for expanded, out, kernel, stride, activation, squeeze in self.ROWS[:blocks]:
            layers.append(InvertedResidual(channels, expanded, out, kernel, stride, activation, squeeze))
            channels = out
        self.features = nn.Sequential(*layers, *normed(channels, 6 * channels, 1), nn.Hardswish())
        self.head = nn.Sequential(nn.Linear(6 * channels, head), nn.Hardswish(), nn.Linear(head, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).mean((2, 3)))


class EfficientNet(nn.Module):
    """MBConv blocks with silu; each has squeeze and excitation of a quarter of its input's width."""

    #: expansion, out, kernel, stride
    ROWS = ((1, 16, 3, 1), (6, 24, 3, 2), (6, 24, 3, 1), (6, 40, 5, 2), (6, 80, 3, 2), (6, 112, 5, 1), (6, 192, 5, 2))

    def __init__(self, blocks: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [*normed(3, 32, 3, 2), nn.SiLU()]
        channels = 32
        for expansion, out, kernel, stride in self.ROWS[:blocks]:
            squeeze = max(1, channels // 4)
            layers.append(InvertedResidual(channels, expansion * channels, out, kernel, stride, "silu", squeeze))
            channels = out
        self.features = nn.Sequential(*layers, *normed(channels, 4 * channels, 1), nn.SiLU())
        self.head = nn.Linear(4 * channels, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).mean((2, 3)))


# ---- ConvNeXt ----
class ChannelNorm(nn.Module):
    """LayerNorm over the channels of an image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A 7x7 convolution of each channel, LayerNorm, two linear layers with gelu, a scale per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.expand, self.contract = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(0.1 * torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.mix(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.contract(F.gelu(self.expand(y)))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """A stem of patches, stages of blocks, and a norm with a strided convolution between stages."""

    def __init__(self, widths: tuple[int, ...], depths: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, stride=4), ChannelNorm(widths[0])]
        for stage, (width, depth) in enumerate(zip(widths, depths)):
            if stage:
                layers += [ChannelNorm(widths[stage - 1]), nn.Conv2d(widths[stage - 1], width, 2, stride=2)]
            layers += [ConvNeXtBlock(width) for _ in range(depth)]
        self.features = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.features(x).mean((2, 3))))


# ---- Swin ----
class WindowAttention(nn.Module):
    """Attention inside of windows, perhaps shifted by half of one; a learned bias for each pair of places."""

    def __init__(self, width: int, heads: int, window: int, size: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(0.02 * torch.randn((2 * window - 1) ** 2, heads))
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = (at[:, :, None] - at[:, None, :]) + window - 1
        self.pairs: torch.Tensor
        self.register_buffer("pairs", apart[0] * (2 * window - 1) + apart[1])
        self.mask: torch.Tensor | None
        self.register_buffer("mask", self._mask(size) if shift else None)

    def _mask(self, size: int) -> torch.Tensor:
        """Where a shifted window holds places that are not neighbours."""
        edges = torch.zeros(size)
        edges[size - self.window : size - self.shift] = 1
        edges[size - self.shift :] = 2
        region = self.windows((3 * edges[:, None] + edges[None, :])[None, :, :, None]).squeeze(-1)
        return torch.where(region[:, :, None] == region[:, None, :], 0.0, -100.0)

    def windows(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width, channels = x.shape
        n = self.window
        parts = x.view(batch, height // n, n, width // n, n, channels).transpose(2, 3)
        return parts.reshape(-1, n * n, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width, channels = x.shape
        if self.shift:
            x = x.roll((-self.shift, -self.shift), (1, 2))
        parts = self.enter(self.windows(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        bias = self.table[self.pairs].permute(2, 0, 1)[None]
        if self.mask is not None:
            bias = bias + self.mask.repeat(batch, 1, 1)[:, None]
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1) + bias
        y = self.leave((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        n = self.window
        y = y.view(batch, height // n, width // n, n, n, channels).transpose(2, 3).reshape(batch, height, width, -1)
        return y.roll((self.shift, self.shift), (1, 2)) if self.shift else y


class SwinBlock(nn.Module):
    """Window attention and two linear layers, each behind a norm."""

    def __init__(self, width: int, heads: int, window: int, size: int, shift: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, window, size, shift)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first_norm(x))
        return x + self.contract(F.gelu(self.expand(self.second_norm(x))))


class PatchMerging(nn.Module):
    """Four neighbours side by side, normalised and projected to twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.shrink = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.shrink(self.norm(torch.cat(parts, -1)))


class Swin(nn.Module):
    """Patches, and stages of pairs of blocks: one with windows, one with shifted windows."""

    def __init__(self, size: int, width: int, heads: tuple[int, ...], window: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        side = size // 4
        layers: list[nn.Module] = []
        for stage, count in enumerate(heads):
            if stage:
                layers.append(PatchMerging(width))
                width, side = 2 * width, side // 2
            shift = 0 if side == window else window // 2
            layers += [SwinBlock(width, count, window, side, by) for by in (0, shift)]
        self.layers = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.patches(x).permute(0, 2, 3, 1))).mean((1, 2)))


# ---- Whisper ----
class MixedAttention(nn.Module):
    """Attention whose keys and values may come from another sequence."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.value, self.leave = (nn.Linear(width, width) for _ in range(3))
        self.key = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, other: torch.Tensor, causal: bool = False) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(x), self.key(other), self.value(other))
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.leave(mixed.transpose(1, 2).flatten(2))


class SpeechBlock(nn.Module):
    """A block of the encoder, or one of the decoder, which looks at what was heard as well."""

    def __init__(self, width: int, heads: int, crossed: bool) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), MixedAttention(width, heads)
        self.crossed = crossed
        if crossed:
            self.cross_norm, self.cross = nn.LayerNorm(width), MixedAttention(width, heads)
        self.last_norm = nn.LayerNorm(width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, heard: torch.Tensor | None = None) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, causal=self.crossed)
        if heard is not None:
            x = x + self.cross(self.cross_norm(x), heard)
        return x + self.contract(F.gelu(self.expand(self.last_norm(x))))


class Whisper(nn.Module):
    """Two convolutions over time, an encoder, and a decoder of words."""

    def __init__(self, bands: int, width: int, heads: int, depth: int, frames: int, words: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(bands, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.times = nn.Parameter(0.02 * torch.randn(frames // 2, width))
        self.encoder = nn.ModuleList(SpeechBlock(width, heads, False) for _ in range(depth))
        self.heard_norm = nn.LayerNorm(width)
        self.words = nn.Embedding(256, width)
        self.places = nn.Parameter(0.02 * torch.randn(words, width))
        self.decoder = nn.ModuleList(SpeechBlock(width, heads, True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES, bias=False)

    def forward(self, sound: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        heard = F.gelu(self.second(F.gelu(self.first(sound)))).transpose(1, 2) + self.times
        for block in self.encoder:
            heard = block(heard)
        heard = self.heard_norm(heard)
        x = self.words(words) + self.places
        for block in self.decoder:
            x = block(x, heard)
        return self.head(self.norm(x)).flatten(0, 1)


def speech(count: int, bands: int, frames: int, words: int, generator: torch.Generator) -> Batch:
    """Spectra, the words so far, and the word that comes next at each place."""
    sound = torch.randn(count, bands, frames, generator=generator)
    said = torch.randint(256, (count, words), generator=generator)
    return Batch((sound, said), torch.randint(CLASSES, (count * words,), generator=generator))


# ---- Llama ----
class RMSNorm(nn.Module):
    """A norm by the root of the mean square, written out as language models do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()).type_as(x) * self.weight


class LlamaBlock(nn.Module):
    """Attention with turned queries and keys and few heads of keys, and a gated pair of linear layers."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.groups, size = heads, groups, width // heads
        self.norm, self.last_norm = RMSNorm(width), RMSNorm(width)
        self.query, self.leave = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(width, groups * size, bias=False) for _ in range(2))
        self.gate, self.expand = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.contract = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        query = self.query(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key = self.key(y).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        value = self.value(y).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        query, key = turned(query, cosine, sine), turned(key, cosine, sine)
        repeats = self.heads // self.groups
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.leave(mixed.transpose(1, 2).flatten(2))
        y = self.last_norm(x)
        return x + self.contract(F.silu(self.gate(y)) * self.expand(y))


def turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Pairs of elements turned by the angle of their place."""
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Llama(nn.Module):
    """A decoder of words as Llama's, with a small head."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int, depth: int, tokens: int) -> None:
        super().__init__()
        self.words = nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, groups, hidden) for _ in range(depth))
        self.norm, self.head = RMSNorm(width), nn.Linear(width, CLASSES, bias=False)
        size = width // heads
        angles = torch.arange(tokens)[:, None] * 10_000.0 ** (-torch.arange(0, size, 2) / size)
        self.cosine: torch.Tensor
        self.sine: torch.Tensor
        self.register_buffer("cosine", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sine", torch.cat([angles, angles], -1).sin())

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        return self.head(self.norm(x)).flatten(0, 1)


def sentences(count: int, tokens: int, generator: torch.Generator) -> Batch:
    """Words of 1024, and what comes next at each place."""
    words = torch.randint(1024, (count, tokens), generator=generator)
    return Batch((words,), torch.randint(CLASSES, (count * tokens,), generator=generator))


# ---- a diffusion UNet ----
class DiffusionBlock(nn.Module):
    """Two normalised convolutions shifted by the time, a shortcut, and perhaps attention over all places."""

    def __init__(self, channels: int, out: int, time: int, heads: int = 0) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.GroupNorm(8, channels), nn.GroupNorm(8, out)
        self.first, self.second = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.shift = nn.Linear(time, out)
        self.shortcut = nn.Identity() if channels == out else nn.Conv2d(channels, out, 1)
        self.heads = heads
        if heads:
            self.norm, self.enter, self.leave = nn.GroupNorm(8, out), nn.Linear(out, 3 * out), nn.Linear(out, out)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.first(F.silu(self.first_norm(x))) + self.shift(time)[:, :, None, None]
        x = self.second(F.silu(self.second_norm(y))) + self.shortcut(x)
        if not self.heads:
            return x
        places = self.norm(x).flatten(2).transpose(1, 2)
        parts = self.enter(places).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(0)).transpose(1, 2).flatten(2)
        return x + self.leave(mixed).transpose(1, 2).unflatten(2, x.shape[2:])


class DiffusionUNet(nn.Module):
    """Levels down and up with the features of each level beside those from below; attention at the lowest."""

    def __init__(self, width: int, levels: int, heads: int) -> None:
        super().__init__()
        time, widths = 4 * width, [width << level for level in range(levels)]
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time), nn.SiLU())
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(DiffusionBlock(max(w // 2, width), w, time) for w in widths)
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, stride=2, padding=1) for w in widths)
        self.middle = DiffusionBlock(widths[-1], widths[-1], time, heads)
        self.grow = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1) for w in widths)
        self.up = nn.ModuleList(DiffusionBlock(2 * w, max(w // 2, width), time) for w in widths)
        self.norm, self.leave = nn.GroupNorm(8, width), nn.Conv2d(width, 3, 3, padding=1)
        self.frequencies: torch.Tensor
        self.register_buffer("frequencies", 10_000.0 ** (-torch.arange(width // 2) / (width // 2)))

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        angles = time[:, None] * self.frequencies
        embedded = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        x, skipped = self.enter(x), []
        for block, shrink in zip(self.down, self.shrink):
            x = block(x, embedded)
            skipped.append(x)
            x = shrink(x)
        x = self.middle(x, embedded)
        for level in reversed(range(len(skipped))):
            x = self.grow[level](F.interpolate(x, scale_factor=2.0, mode="nearest"))
            x = self.up[level](torch.cat([x, skipped[level]], 1), embedded)
        return self.leave(F.silu(self.norm(x)))


def noise(count: int, size: int, generator: torch.Generator) -> Batch:
    """Noisy images, their times, and the noise."""
    image, target = (torch.randn(count, 3, size, size, generator=generator) for _ in range(2))
    return Batch((image, 1000 * torch.rand(count, generator=generator)), target)


FAMILIES = (
    Workload(
        "mobilenetv3",
        lambda small: MobileNetV3(3, 16) if small else MobileNetV3(8, 256),
        lambda small, g: images(2, 32, g) if small else images(4, 128, g),
    ),
    Workload(
        "efficientnet",
        lambda small: EfficientNet(2) if small else EfficientNet(7),
        lambda small, g: images(2, 32, g) if small else images(2, 128, g),
    ),
    Workload(
        "convnext",
        lambda small: ConvNeXt((8, 16), (1, 1)) if small else ConvNeXt((48, 96, 192), (2, 2, 3)),
        lambda small, g: images(2, 32, g) if small else images(2, 128, g),
    ),
    Workload(
        "swin",
        lambda small: Swin(32, 16, (2, 4), 4) if small else Swin(112, 48, (3, 6, 12), 7),
        lambda small, g: images(2, 32, g) if small else images(4, 112, g),
    ),
    Workload(
        "whisper",
        lambda small: Whisper(8, 16, 2, 1, 12, 5) if small else Whisper(80, 256, 4, 3, 400, 48),
        lambda small, g: speech(2, 8, 12, 5, g) if small else speech(1, 80, 400, 48, g),
    ),
    Workload(
        "llama",
        lambda small: Llama(16, 4, 2, 24, 1, 6) if small else Llama(512, 8, 2, 1376, 4, 96),
        lambda small, g: sentences(2, 6, g) if small else sentences(1, 96, g),
    ),
    Workload(
        "diffusion",
        lambda small: DiffusionUNet(8, 2, 2) if small else DiffusionUNet(32, 3, 4),
        lambda small, g: noise(2, 8, g) if small else noise(2, 32, g),
        loss=lambda output, target: F.mse_loss(output, target),
    ),
)
