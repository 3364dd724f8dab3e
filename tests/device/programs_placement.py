"""Programs about partitioned memory: where a storage lies changes nothing about its values."""

from __future__ import annotations

import itertools

import torch

from bringup import _C
from bringup.driver import PlacementKind
from tests.device.device_programs import EVERY_DTYPE, identical, numbers, program, refused

SINGLE, REPLICATE, SHARD, PARTIAL = PlacementKind
#: (kind, bytes of a block)
PLACEMENTS = ((SINGLE, 0), (REPLICATE, 0), (SHARD, 8), (SHARD, 24), (SHARD, 64), (SHARD, 4096), (PARTIAL, 0))


def place(tensor: torch.Tensor, kind: PlacementKind, block: int) -> torch.Tensor:
    storage = tensor.untyped_storage()
    _C.relayout(storage, kind, block)
    assert _C.placement(storage) == (kind, block)
    return tensor


@program(needs="partitions")
def placements_keep_values(device: str) -> None:
    for (kind, block), (to_kind, to_block) in itertools.product(PLACEMENTS, PLACEMENTS):
        for count in (1, 2, 7, 16, 63, 1001):
            here = numbers(count, seed=count)
            there = place(here.to(device), kind, block)
            what = f"{count} numbers from {kind.name} {block} to {to_kind.name} {to_block}"
            identical(there, here, what)
            place(there, to_kind, to_block)
            identical(there, here, what)
            identical(there + 1, here + 1, f"{what}, used")


@program(needs="partitions")
def placements_of_every_dtype(device: str) -> None:
    for dtype in EVERY_DTYPE:
        here = numbers(37, dtype=dtype)
        for kind, block in PLACEMENTS:
            if kind == PARTIAL and dtype != torch.float32:
                continue
            there = place(here.to(device), kind, block)
            what = f"{dtype} {kind.name} {block}"
            identical(there, here, what)
            identical(there[3::5], here[3::5], what)
            assert there[36].item() == here[36].item(), what


@program(needs="partitions")
def views_of_placed_storages(device: str) -> None:
    for kind, block in PLACEMENTS:
        here, there = numbers(6, 9), place(numbers(6, 9).to(device), kind, block)
        views = {
            "row": lambda x: x[2],
            "column": lambda x: x[:, 3],
            "transposed": lambda x: x.t(),
            "stepped": lambda x: x[1::2, ::4],
            "last": lambda x: x[5, 8],
            "flat": lambda x: x.view(-1)[7:40],
        }
        for name, view in views.items():
            what = f"{name} of {kind.name} {block}"
            identical(view(there), view(here), what)
            view(there).mul_(2)
            view(here).mul_(2)
            identical(there, here, f"{what}, doubled")
            view(there).fill_(3)
            view(here).fill_(3)
            identical(there, here, f"{what}, filled")
            view(there).copy_(torch.ones_like(view(here)))
            view(here).copy_(torch.ones_like(view(here)))
            identical(there, here, f"{what}, copied from the CPU")
            there.copy_(numbers(6, 9, seed=4))
            here.copy_(numbers(6, 9, seed=4))
        assert _C.placement(there.untyped_storage()) == (kind, block), "ops do not move a storage"


@program(needs="partitions")
def ops_between_placements(device: str) -> None:
    """Arguments may lie differently: copies, matmul, in-place ops and out= between all pairs."""
    for (kind, block), (other_kind, other_block) in itertools.product(PLACEMENTS[1:], PLACEMENTS[1:]):
        a, b = numbers(5, 7), numbers(7, 5, seed=1)
        x, y = place(a.to(device), kind, block), place(b.to(device), other_kind, other_block)
        what = f"{kind.name} {block} with {other_kind.name} {other_block}"
        torch.testing.assert_close((x @ y).cpu(), a @ b, msg=lambda m, w=what: f"{w}: {m}")
        identical(y.t().add_(x).clone(), b.t() + a, what)
        identical(y, (b.t() + a).t(), f"{what}, in place")
        identical(y.copy_(x.t()), a.t(), f"{what}, copy of a transposed one")
        identical(y.view(-1).copy_(x.view(-1)), a.view(-1), f"{what}, copy of all bytes")
        identical(y.view(-1)[3:9].copy_(x.view(-1)[5:11]), a.view(-1)[5:11], f"{what}, copy between two offsets")
        identical(torch.add(x, 1, out=y.view(5, 7)), a + 1, f"{what}, out=")


@program(needs="partitions")
def partial_storages_add_up(device: str) -> None:
    """A PARTIAL storage holds summands: a write leaves one of them, changes in place count once."""
    x = place(numbers(50).to(device), PARTIAL, 0)
    identical(x, numbers(50))
    x.add_(1)
    identical(x, numbers(50) + 1, "added to")
    x[10:20].zero_()
    assert x[10:20].sum().item() == 0
    assert x[9].item() == numbers(50)[9].item() + 1
    x.copy_(torch.arange(50.0))
    identical(x.cpu(), torch.arange(50.0), "overwritten")
    place(x, REPLICATE, 0)  # reads the sum, so every partition now holds all of it
    identical(x, torch.arange(50.0), "replicated")
    place(place(x, PARTIAL, 0), SHARD, 8)
    identical(x, torch.arange(50.0), "sharded")


@program(needs="partitions")
def placements_survive_copies_and_growth(device: str) -> None:
    for kind, block in PLACEMENTS:
        x = place(numbers(20).to(device), kind, block)
        identical(x.clone(), numbers(20), "clone")
        x.resize_(40)
        identical(x[:20], numbers(20), f"{kind.name} {block} resized")
        x[20:].fill_(2)
        identical(x, torch.cat([numbers(20), torch.full((20,), 2.0)]), f"{kind.name} {block} resized and filled")
        x.untyped_storage().resize_(16)
        identical(x[:4], numbers(20)[:4], f"{kind.name} {block} shrunk")
    empty = torch.empty(0, device=device)
    place(empty, SHARD, 8)
    identical(empty.resize_(9).fill_(4), torch.full((9,), 4.0), "grown from nothing")


@program(needs="partitions")
def placed_storages_stay_in_their_memory(device: str) -> None:
    """Growing takes as much memory as the storage's own placement needs, not the default one: neighbours are safe."""
    count = 1 << 16
    for kind, block in PLACEMENTS:
        x = place(torch.ones(256, device=device), kind, block)
        x.resize_(count)
        y = torch.zeros(count, device=device)
        z = place(torch.zeros(0, device=device), kind, block).resize_(count)
        w = torch.zeros(count, device=device)
        x.copy_(torch.full((count,), 3.0))
        z.copy_(torch.full((count,), 5.0))
        for name, tensor, value in (("x", x, 3.0), ("y", y, 0.0), ("z", z, 5.0), ("w", w, 0.0)):
            identical(tensor, torch.full((count,), value), f"{name} beside {kind.name} {block}")
        y.fill_(2)
        w.fill_(4)
        for name, tensor, value in (("x", x, 3.0), ("z", z, 5.0)):
            identical(tensor, torch.full((count,), value), f"{name} as {kind.name} {block}, its neighbours filled")


@program(needs="partitions")
def wrong_placements_are_refused(device: str) -> None:
    x = torch.ones(6, device=device)
    for kind, block, words in ((9, 0, "kind 9"), (SHARD, 0, "block 0"), (SHARD, 12, "block 12")):
        with refused(ValueError, words):
            _C.relayout(x.untyped_storage(), kind, block)
    identical(x, torch.ones(6), "nothing changed")
    with refused(ValueError, "cpu"):
        _C.placement(torch.ones(2).untyped_storage())


@program(needs="flat")
def flat_devices_know_one_placement(device: str) -> None:
    x = torch.ones(6, device=device)
    assert _C.placement(x.untyped_storage()) == (SINGLE, 0)
    _C.relayout(x.untyped_storage(), SINGLE, 0)
    for kind, block in PLACEMENTS[1:]:
        with refused(ValueError, "one partition"):
            _C.relayout(x.untyped_storage(), kind, block)
    identical(x, torch.ones(6))
