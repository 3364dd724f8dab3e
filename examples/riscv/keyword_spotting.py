"""Keyword spotting with integers: a CNN learns four sounds, becomes int8, and runs on a RISC-V core.

The sounds are made here (a rising tone, a falling one, a trill, noise), with random pitch, loudness and background.
What the guest computes equals the quantized model's integers, bit for bit.

python examples/riscv/keyword_spotting.py
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn

import bringup

RATE, SAMPLES = 4000, 2000
WORDS = ("rise", "fall", "trill", "noise")


def sounds(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Spectrograms, count × 1 × 32 × 32, and which word each is."""
    word = torch.randint(0, len(WORDS), (count,))
    time = torch.arange(SAMPLES) / SAMPLES
    low = 300 + 300 * torch.rand(count, 1)
    slope = torch.tensor([600.0, -600.0, 0.0, 0.0])[word, None]
    start = torch.where(slope < 0, low + 600, low)
    trill = 150 * torch.sin(2 * math.pi * 12 * time) * (word == 2)[:, None]
    phase = torch.cumsum(start + slope * time + trill, 1) * (2 * math.pi / RATE)
    tone = phase.sin() * (word != 3)[:, None] * (0.5 + torch.rand(count, 1))
    wave = tone + torch.randn(count, SAMPLES) * torch.where(word == 3, 0.5, 0.1)[:, None]
    spectrum = torch.stft(wave, 62, 62, 62, torch.hann_window(62), center=False, return_complex=True)
    return (spectrum.abs() + 1e-3).log()[:, None], word


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 6 * 6, len(WORDS))),
    )


def trained(steps: int) -> nn.Module:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(steps):
        heard, word = sounds(64)
        loss = nn.functional.cross_entropy(model(heard), word)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def main(vector: int, steps: int, count: int) -> None:
    torch.set_num_threads(1)  # layers are so small that threads would wait for each other: 40 times slower
    torch.manual_seed(0)
    model = trained(steps)
    quantized = bringup.quantize(model, [(sounds(1)[0],) for _ in range(32)])
    backend = bringup.Backend(target="riscv", vector=vector, name="keywords")
    on_guest = torch.compile(quantized, backend=backend)
    heard, word = sounds(count)
    right = float_right = 0
    with torch.no_grad():
        for one, said in zip(heard, word):
            scores = on_guest(one[None])
            assert torch.equal(scores, quantized(one[None]))
            right += int(scores.argmax() == said)
            float_right += int(model(one[None]).argmax() == said)
    print(backend.report())
    print(f"{right} of {count} words recognised by the int8 guest, {float_right} by the float model")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vector", type=int, default=256, help="bits of a vector register; 0: scalar code")
    parser.add_argument("--steps", type=int, default=60, help="steps of training")
    parser.add_argument("--count", type=int, default=16, help="sounds to listen to")
    main(**vars(parser.parse_args()))
