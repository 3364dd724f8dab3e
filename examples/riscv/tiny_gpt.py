"""A tiny GPT learns a poem by heart and then recites it on a bare-metal RISC-V core, letter by letter.

python examples/riscv/tiny_gpt.py
python examples/riscv/tiny_gpt.py --prompt "Rough winds" --letters 40
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from attention import Block
from torch import nn

import bringup

#: Shakespeare, Sonnet 18 (public domain).
POEM = """Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date;
"""
CONTEXT = 24


class GPT(nn.Module):
    """Letters in, a score for every next letter out, at each place of the context."""

    def __init__(self, letters: int, width: int = 32, heads: int = 2, depth: int = 2) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Parameter(0.1 * torch.randn(CONTEXT, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.norm(self.blocks(self.letter(tokens) + self.place)))
        return scores


def trained(tokens: torch.Tensor, letters: int, steps: int) -> GPT:
    torch.manual_seed(0)
    model = GPT(letters)
    optimizer = torch.optim.AdamW(model.parameters(), 0.005)
    windows = tokens.unfold(0, CONTEXT + 1, 1)
    for _ in range(steps):
        some = windows[torch.randint(len(windows), (32,))]
        scores = model(some[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), some[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def recited(model: Callable[[torch.Tensor], torch.Tensor], prompt: torch.Tensor, letters: int) -> torch.Tensor:
    """The prompt, and the likeliest next letter again and again. The sizes stay the same: the program is built once."""
    said = prompt
    with torch.no_grad():
        for _ in range(letters):
            seen = said[-CONTEXT:]
            window = torch.zeros(1, CONTEXT, dtype=torch.int64)
            window[0, : len(seen)] = seen  # what stands behind it cannot be seen from before: attention is causal
            said = torch.cat([said, model(window)[0, len(seen) - 1].argmax()[None]])
    return said


def main(vector: int, steps: int, letters: int, prompt: str) -> None:
    alphabet = sorted(set(POEM))
    unknown = sorted(set(prompt) - set(alphabet))
    if unknown or not prompt:
        raise SystemExit(f"the prompt must be of letters of the poem, which has no {', '.join(map(repr, unknown))}")
    tokens = torch.tensor([alphabet.index(letter) for letter in POEM])
    start = torch.tensor([alphabet.index(letter) for letter in prompt])
    torch.set_num_threads(1)  # layers are so small that threads would wait for each other: 40 times slower
    model = trained(tokens, len(alphabet), steps)
    backend = bringup.Backend(target="riscv", vector=vector, name="gpt")
    on_guest = recited(torch.compile(model, backend=backend, dynamic=False), start, letters)
    print("".join(alphabet[token] for token in on_guest))
    assert torch.equal(on_guest, recited(model, start, letters)), "eager PyTorch says something else"
    (report,) = backend.reports()
    print(f"\n{report.instructions:,} instructions a letter; {report.text().splitlines()[1].strip()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vector", type=int, default=256, help="bits of a vector register; 0: scalar code")
    parser.add_argument("--steps", type=int, default=600, help="steps of training")
    parser.add_argument("--letters", type=int, default=60, help="how many letters to recite")
    parser.add_argument("--prompt", default="Shall I", help="how it begins")
    main(**vars(parser.parse_args()))
