"""Four small models with synthetic data that can be learned: what the demo trains and the training tests compare.

Weights are always made on the CPU from a seed, so that every device starts from the same bits. No dropout.

    model, data = build("cnn"), Data("cnn")
    inputs, targets = data.batch(0)
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
"""

from __future__ import annotations

import torch
from torch import nn

CLASSES = 10


class MLP(nn.Module):
    """Two linear layers on flat vectors."""

    input_shape = (32,)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class CNN(nn.Module):
    """Two convolutions with BatchNorm and pooling on 3x16x16 images."""

    input_shape = (3, 16, 16)

    def __init__(self) -> None:
        super().__init__()
        # No bias before BatchNorm: its gradient is zero in exact arithmetic, so Adam would follow rounding noise.
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64, CLASSES),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class LSTMClassifier(nn.Module):
    """One LSTM layer over a sequence of 12 vectors; the last state is classified."""

    input_shape = (12, 16)

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(x)
        return self.head(states[:, -1])


class TransformerClassifier(nn.Module):
    """A two-layer TransformerEncoder over a sequence of 12 vectors; the mean over time is classified."""

    input_shape = (12, 16)

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.position = nn.Parameter(torch.randn(12, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(x) + self.position).mean(dim=1))


MODELS: dict[str, type[nn.Module]] = {
    "mlp": MLP,
    "cnn": CNN,
    "lstm": LSTMClassifier,
    "transformer": TransformerClassifier,
}


def build(name: str, seed: int = 0) -> nn.Module:
    """The model on the CPU in float32, the same bits for the same seed; the global random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name]()


class Data:
    """Batches made on the CPU: one fixed random pattern per class, plus noise. Batch i is always the same."""

    def __init__(self, name: str, batch_size: int = 32, noise: float = 1.0, seed: int = 0) -> None:
        self.batch_size, self.noise, self.seed = batch_size, noise, seed
        self.patterns = torch.randn((CLASSES, *MODELS[name].input_shape), generator=torch.Generator().manual_seed(seed))

    def batch(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(1_000_003 * (self.seed + 1) + index)
        targets = torch.randint(CLASSES, (self.batch_size,), generator=generator)
        noise = torch.randn((self.batch_size, *self.patterns.shape[1:]), generator=generator)
        return self.patterns[targets] + self.noise * noise, targets
