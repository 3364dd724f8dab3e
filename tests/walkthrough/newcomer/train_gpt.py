"""Step 6: a GPT, trained eagerly and compiled: the same losses."""

import torch
from torch import nn

import bringup


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.before, self.after = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        split = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*split, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.after(x))


class GPT(nn.Module):
    def __init__(self, words=32, width=32, length=16, layers=2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.tokens(tokens) + self.places(places)))


def losses(compiled):
    torch.manual_seed(0)
    model = GPT().to("heron")
    step = torch.compile(model, backend="bringup") if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for number in range(8):
        tokens = (torch.arange(17) * 5 + torch.arange(8)[:, None] + number).remainder(32).to("heron")
        loss = nn.functional.cross_entropy(step(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


eager = list(losses(compiled=False))
assert eager[-1] < eager[0] - 0.5, eager
torch.testing.assert_close(list(losses(compiled=True)), eager, rtol=1e-4, atol=1e-4)
print(
    f"loss {eager[0]:.2f} -> {eager[-1]:.2f}, compiled and eager; on the CPU: {[row.op for row in bringup.fallbacks()]}"
)
