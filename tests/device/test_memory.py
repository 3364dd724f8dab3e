"""The caching allocator as users see it: numbers, limits, running out, reuse, 10,000 random operations."""

from __future__ import annotations

import bisect
import gc
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

MEGABYTE = 1 << 20


@pytest.fixture
def module(device: str) -> Iterator[Any]:
    """torch.<device>, with an empty cache before and after"""
    module = getattr(torch, device)
    gc.collect()
    module.synchronize()
    module.empty_cache()
    yield module
    module.empty_cache()


def megabytes(count: int, device: str) -> torch.Tensor:
    return torch.empty(count * MEGABYTE, dtype=torch.uint8, device=device)


def test_allocated_and_reserved_follow_the_tensors(module: Any, device: str) -> None:
    allocated, reserved = module.memory_allocated(), module.memory_reserved()
    x = megabytes(8, device)
    assert module.memory_allocated() == allocated + 8 * MEGABYTE
    assert module.memory_reserved() >= reserved + 8 * MEGABYTE
    after = module.memory_reserved()
    del x
    assert module.memory_allocated() == allocated
    assert module.memory_reserved() == after, "freed memory stays in the cache"
    address = megabytes(8, device).data_ptr()
    assert megabytes(8, device).data_ptr() == address, "the cache is used"
    assert module.memory_reserved() == after
    module.empty_cache()
    assert module.memory_reserved() == reserved


def test_views_share_and_empty_tensors_take_nothing(module: Any, device: str) -> None:
    x = megabytes(1, device)
    before = module.memory_allocated()
    views = [x[10:], x.view(2, -1), x.detach(), x.reshape(-1, 4).t()]
    nothing = torch.empty(0, device=device)
    assert module.memory_allocated() == before
    assert nothing.numel() == 0
    assert len({view.untyped_storage().data_ptr() for view in views}) == 1


def test_peaks(module: Any, device: str) -> None:
    module.reset_peak_memory_stats()
    start = module.memory_allocated()
    assert module.max_memory_allocated() == start
    x = megabytes(4, device)
    y = megabytes(4, device)
    del x, y
    assert module.max_memory_allocated() >= start + 8 * MEGABYTE
    assert module.max_memory_reserved() >= module.max_memory_allocated()
    module.reset_peak_memory_stats()
    assert module.max_memory_allocated() == start


def test_statistics_have_the_names_of_cuda(module: Any, device: str) -> None:
    module.reset_accumulated_memory_stats()
    x = megabytes(2, device)
    stats = module.memory_stats()
    for counter in ("allocation", "segment", "active", "inactive_split"):
        for pool in ("all", "small_pool", "large_pool"):
            for kind in ("current", "peak", "allocated", "freed"):
                assert stats[f"{counter}.{pool}.{kind}"] >= 0
    for counter in ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"):
        assert stats[f"{counter}.all.current"] == sum(
            stats[f"{counter}.{pool}.current"] for pool in ("small_pool", "large_pool")
        )
    assert stats["allocation.all.allocated"] == 1
    assert stats["allocation.all.freed"] == 0
    assert stats["allocated_bytes.all.current"] == module.memory_allocated()
    assert stats["num_ooms"] == 0
    assert "num_alloc_retries" in stats
    del x
    assert module.memory_stats()["allocation.all.freed"] == 1
    assert torch.accelerator.memory_allocated() == module.memory_allocated()
    assert torch.accelerator.memory_reserved() == module.memory_reserved()


def test_the_summary_says_what_the_statistics_say(run_small: Callable[[str], str]) -> None:
    code = """
x = torch.ones(3 << 20, dtype=torch.uint8, device="sim")
torch.sim.set_per_process_memory_fraction(0.5)
try:
    torch.ones(1 << 40, dtype=torch.uint8, device="sim")
except torch.OutOfMemoryError:
    pass
print(torch.sim.memory_summary())
"""
    table = run_small(code)
    lines = {line[:22].strip(): line[22:].split() for line in table.splitlines()}
    assert lines["allocated"][:2] == ["3.00", "MiB"], table
    assert lines["allocations"] == ["1", "1", "1", "0"], table
    assert "limit" in table, table
    assert "out of memory 1;" in table, table
    assert table.startswith("Memory of sim:0: "), table


def test_free_memory_falls_by_what_is_reserved(module: Any, device: str) -> None:
    free, total = module.mem_get_info()
    assert 0 < free <= total
    x = megabytes(16, device)
    assert module.mem_get_info()[0] <= free - 16 * MEGABYTE
    assert module.mem_get_info()[1] == total
    del x
    module.empty_cache()
    assert module.mem_get_info() == (free, total)


def check_snapshot(segments: list[dict[str, Any]]) -> int:
    """Blocks tile their segment without gap or overlap; returns the bytes tensors hold."""
    held = 0
    for segment in segments:
        position = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == position
            assert block["size"] > 0
            position += block["size"]
            if block["state"] == "active_allocated":
                held += block["size"]
        assert position == segment["address"] + segment["total_size"]
    ranges = sorted((segment["address"], segment["total_size"]) for segment in segments)
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(ranges))
    return held


def test_snapshot_accounts_for_every_byte(module: Any, device: str) -> None:
    tensors = [torch.empty(1000 * (i + 1), device=device) for i in range(20)]
    del tensors[::3]
    segments = module.memory_snapshot(module.current_device())
    assert check_snapshot(segments) == module.memory_allocated()
    assert sum(segment["total_size"] for segment in segments) == module.memory_reserved()


def test_freed_neighbours_merge(module: Any, device: str) -> None:
    """Eight pieces, freed in a mixed order, give one block that serves the sum without new memory."""
    whole = megabytes(32, device)
    del whole
    reserved = module.memory_reserved()
    pieces = [megabytes(4, device) for _ in range(8)]
    assert module.memory_reserved() == reserved
    for index in (3, 0, 7, 1, 5, 2, 6, 4):
        pieces[index] = torch.empty(0)
    whole = megabytes(32, device)
    assert module.memory_reserved() == reserved
    del whole


def test_ten_thousand_random_operations(module: Any, device: str) -> None:
    """Allocate, free and record at random on three streams: no overlap while alive, nothing left at the end."""
    choose = random.Random(0)
    streams = [module.default_stream(), module.Stream(), module.Stream()]
    allocated, reserved = module.memory_allocated(), module.memory_reserved()
    starts: list[int] = []  # sorted addresses of live tensors
    alive: dict[int, tuple[torch.Tensor, int, int]] = {}  # address → tensor, bytes, mark

    def allocate(mark: int) -> None:
        nbytes = choose.choice((1, 100, 512, 4096, 70_000, 300_000, 3 * MEGABYTE)) + choose.randrange(512)
        with module.stream(choose.choice(streams)):
            x = torch.full((nbytes,), mark, dtype=torch.uint8, device=device)
        address = x.data_ptr()
        place = bisect.bisect(starts, address)
        if place > 0:
            before = starts[place - 1]
            assert before + alive[before][1] <= address, "two live tensors overlap"
        if place < len(starts):
            assert address + nbytes <= starts[place], "two live tensors overlap"
        starts.insert(place, address)
        alive[address] = (x, nbytes, mark)

    def free() -> None:
        address = starts.pop(choose.randrange(len(starts)))
        x, _, mark = alive.pop(address)
        module.synchronize()
        assert x.min().item() == x.max().item() == mark, "somebody wrote into a live tensor"

    for step in range(10_000):
        action = choose.random()
        if not alive or (action < 0.45 and len(alive) < 150):
            allocate(step % 251)
        elif action < 0.9:
            free()
        else:
            alive[choose.choice(starts)][0].record_stream(choose.choice(streams))
        if step % 1000 == 0:
            check_snapshot(module.memory_snapshot(module.current_device()))
    alive.clear()
    module.synchronize()
    gc.collect()
    assert module.memory_allocated() == allocated
    module.empty_cache()
    assert module.memory_reserved() == reserved


def test_fractions_outside_zero_to_one_are_refused(module: Any) -> None:
    for bad in (-0.1, 1.5):
        with pytest.raises(ValueError, match="fraction"):
            module.set_per_process_memory_fraction(bad)


# ---- running out: in processes of their own, with a small device ----
SMALL = {"BRINGUP_SIM": "devices=2,memory=64M", "BRINGUP_DRIVERS": "sim"}


@pytest.fixture
def run_small(device: str, run_python: Callable[..., Any]) -> Callable[[str], str]:
    """Runs code with a simulated device of 64 MB; returns what it printed."""
    if device != "sim":
        pytest.skip("needs a device with a memory limit")
    prelude = "import torch\nM = 1 << 20\ndef mb(n): return torch.empty(n * M, dtype=torch.uint8, device='sim')\n"
    return lambda code: run_python(prelude + code, env=SMALL).stdout


def test_running_out_is_an_out_of_memory_error_and_the_process_goes_on(run_small: Callable[[str], str]) -> None:
    out = run_small("""
x = mb(40)
try:
    mb(40)
except torch.OutOfMemoryError as error:
    print(error)
x.fill_(7)
assert x[-1].item() == 7
stats = torch.sim.memory_stats()
assert stats["num_ooms"] == 1, stats["num_ooms"]
del x
assert mb(40).numel() == 40 * M
assert torch.empty(40 * M, dtype=torch.uint8, device="sim:1").numel() == 40 * M
""")
    lines = {line[:22].strip(): line[22:].split() for line in out.splitlines()[1:]}
    assert out.startswith("sim:0 is out of memory: tried to allocate 40.00 MiB.\n")
    assert lines["device memory"][:2] == ["64.00", "MiB"], out
    assert lines["allocated"][:2] == lines["reserved"][:2] == ["40.00", "MiB"], out
    assert lines["cached"][:2] == lines["largest free block"][:2] == ["0", "B"], out
    assert "in flight" not in lines, out
    assert "set_per_process_memory_fraction" not in out


def test_the_cache_is_freed_before_giving_up(run_small: Callable[[str], str]) -> None:
    run_small("""
pieces = [mb(9) for _ in range(6)]
del pieces
assert torch.sim.memory_reserved() >= 54 * M
x = mb(50)
assert torch.sim.memory_stats()["num_alloc_retries"] == 1
assert torch.sim.memory_stats()["num_ooms"] == 0
""")


def test_the_cache_of_another_stream_is_freed_too(run_small: Callable[[str], str]) -> None:
    """Memory that a running stream still uses is waited for rather than reported as missing."""
    run_small("""
side = torch.sim.Stream()
x = mb(40)
with torch.sim.stream(side):
    torch.sim._sleep(100)
x.record_stream(side)
del x
y = mb(40)
assert y.numel() == 40 * M
""")


def test_out_of_memory_in_backward_reaches_python(run_small: Callable[[str], str]) -> None:
    run_small("""
x = torch.ones(3 * M, device="sim", requires_grad=True)
keep = mb(24)
y = x.exp()
try:
    (y * y).sum().backward()
except torch.OutOfMemoryError:
    print("caught")
else:
    raise SystemExit("64 MB held everything: the limit is not kept")
del keep, y
x.grad = None
(x * 2).sum().backward()
assert x.grad[0].item() == 2
""")


def test_the_fraction_limits_this_process(run_small: Callable[[str], str]) -> None:
    run_small("""
torch.sim.set_per_process_memory_fraction(0.25)
assert torch.sim.get_per_process_memory_fraction() == 0.25
try:
    mb(20)
except torch.OutOfMemoryError:
    pass
else:
    raise SystemExit("20 MB fitted into a quarter of 64 MB")
assert mb(8).numel() == 8 * M
torch.sim.set_per_process_memory_fraction(1.0)
assert mb(40).numel() == 40 * M
free, total = torch.sim.mem_get_info()
assert total == 64 * M
""")


def test_absurd_sizes_are_errors(run_small: Callable[[str], str]) -> None:
    run_small("""
for size in (1 << 40, 1 << 61):
    try:
        torch.empty(size, dtype=torch.uint8, device="sim")
    except RuntimeError as error:
        assert isinstance(error, torch.OutOfMemoryError) or "overflow" in str(error).lower(), error
    else:
        raise SystemExit("that cannot fit")
assert torch.ones(3, device="sim").sum().item() == 3
""")
