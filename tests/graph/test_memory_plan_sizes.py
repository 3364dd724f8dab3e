"""One graph, three sizes: its arena is close to what must be alive at once, and nothing alive shares bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from bringup.graph.binding import Binding
from bringup.graph.compile.backend import Backend
from tests.graph.comparing import graphs

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from graph_models import Block, ResNet

#: How much larger than the bound an arena may be.
MOST = 1.15
#: Model, the shapes of its input, and the dimensions that change.
CASES: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]], tuple[int, ...]]] = {
    "GPT-2 block": (lambda: Block(96, 4, True, "tanh"), [(2, 16, 96), (3, 50, 96), (8, 33, 96)], (0, 1)),
    "two GPT-2 blocks": (
        lambda: nn.Sequential(Block(64, 4, True, "tanh"), Block(64, 4, True, "tanh")),
        [(2, 16, 64), (3, 50, 64), (8, 33, 64)],
        (0, 1),
    ),
    "CNN": (lambda: ResNet(8, 2, 1), [(2, 3, 32, 32), (5, 3, 32, 32), (12, 3, 32, 32)], (0,)),
}


def alive_at_once(binding: Binding) -> int:
    """The bytes that are needed at the worst step: between its first and its last use every temporary is there."""
    lives, nbytes = binding.structure.lives, binding.filled.nbytes
    steps = range(len(binding.structure.variant.calls))
    return max(sum(nbytes[n] for n, life in lives.items() if life.first <= step <= life.last) for step in steps)


def meetings(binding: Binding) -> Iterator[tuple[int, int]]:
    """Pairs of temporaries that are alive at the same step."""
    lives = sorted(binding.structure.lives.items())
    for at, (one, life) in enumerate(lives):
        yield from ((one, other) for other, its_life in lives[at + 1 :] if life.meets(its_life))


def bytes_of(binding: Binding, temporary: int) -> range:
    start = binding._offsets[temporary]
    return range(start, start + binding.filled.nbytes[temporary])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_arena_follows_the_sizes(case: str, training: bool, device: str, backend: str) -> None:
    if backend != "bringup":
        pytest.skip("other backends have no arena")
    attention = "aten::_scaled_dot_product_fused_attention_overrideable_backward"
    if training and "GPT" in case and not torch._C._dispatch_has_kernel_for_dispatch_key(attention, "Meta"):
        pytest.skip(f"PyTorch {torch.__version__} cannot trace the gradient of attention, and breaks the graph there")
    make, shapes, changing = CASES[case]
    torch.manual_seed(0)
    model, compiler = make().to(device), Backend()
    run = torch.compile(model, backend=compiler)
    for shape in shapes:
        x = torch.randn(shape, device=device)
        for dim in changing:
            torch._dynamo.mark_dynamic(x, dim)
        with torch.set_grad_enabled(training):
            loss = run(x.requires_grad_(training)).square().sum()
        if training:
            loss.backward()
    assert graphs() == 1
    # What a forward graph keeps for its backward graph is not a part of its arena: in training the second one counts.
    assert len(compiler.graphs) == 1 + training
    bindings = list(compiler.graphs[-1].bindings.values())
    arenas = [binding.memory.arena for binding in bindings]
    assert len(bindings) == len(set(arenas)) == len(shapes), arenas
    for binding in bindings:
        bound = alive_at_once(binding)
        assert 0 < bound <= binding.memory.arena <= MOST * bound, (bound, binding.memory)
        assert all(bytes_of(binding, n).stop <= binding.memory.arena for n in binding.structure.lives)
        for one, other in meetings(binding):
            ours, theirs = bytes_of(binding, one), bytes_of(binding, other)
            assert ours.stop <= theirs.start or theirs.stop <= ours.start, (one, other)
