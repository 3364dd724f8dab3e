"""A driver's own collectives: which calls reach it, what they give, and what goes through Gloo instead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.distributed.ranks import Ranks, program, tensors_equal

OFFERED = os.environ["BRINGUP_TEST_COLLECTIVES"].split()


def reached() -> list[str]:
    """The collectives that the driver of this rank has been asked for since the last call."""
    file = Path(f"{os.environ['BRINGUP_TEST_COUNTS']}.{os.getpid()}")
    lines = file.read_text().split() if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


def expect(*names: str) -> None:
    assert reached() == [name for name in names if name in OFFERED]


@program
def each_call_goes_to_the_driver_if_it_has_the_function(ranks: Ranks) -> None:
    reached()
    total = float(sum(range(1, ranks.size + 1)))
    x = torch.full((70_001,), ranks.rank + 1.0, device=ranks.device)
    dist.all_reduce(x)
    tensors_equal(x, torch.full((70_001,), total))
    expect("all_reduce")
    whole = torch.empty(3 * ranks.size, device=ranks.device, dtype=torch.int16)
    dist.all_gather_into_tensor(whole, torch.full((3,), ranks.rank, device=ranks.device, dtype=torch.int16))
    tensors_equal(whole, torch.arange(ranks.size).repeat_interleave(3).to(torch.int16))
    expect("all_gather")
    part = torch.empty(2, device=ranks.device)
    everyones = torch.arange(2.0 * ranks.size).to(ranks.device) * (ranks.rank + 1)
    dist.reduce_scatter_tensor(part, everyones, op=dist.ReduceOp.AVG)
    tensors_equal(part, torch.arange(2.0 * ranks.rank, 2.0 * ranks.rank + 2) * total / ranks.size)
    expect("reduce_scatter")
    y = torch.full((2, 3), ranks.rank, device=ranks.device)
    dist.broadcast(y, 1)
    tensors_equal(y, torch.ones(2, 3, dtype=torch.int64))
    expect("broadcast")


@program
def what_the_driver_refuses_or_lacks_goes_through_the_host(ranks: Ranks) -> None:
    reached()
    x = torch.ones(5, device=ranks.device, dtype=torch.bfloat16)  # the driver has no bfloat16
    dist.all_reduce(x)
    tensors_equal(x, torch.full((5,), float(ranks.size)).bfloat16())
    dist.all_reduce(torch.ones(0, device=ranks.device))
    dist.reduce(x, 0)
    outputs = [torch.empty_like(x) for _ in range(ranks.size)]
    dist.all_gather(outputs, x)
    assert reached() == []


@program
def calls_of_both_kinds_keep_their_order(ranks: Ranks) -> None:
    x = torch.ones(1000, device=ranks.device)
    for _ in range(10):  # each reads what the one before wrote
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        x.mul_(1.0 / ranks.size)
        dist.reduce(x, 0, op=dist.ReduceOp.MAX)
        dist.broadcast(x, 0)
        x.add_(1)
    tensors_equal(x, torch.full((1000,), 11.0))
    works = [dist.all_reduce(torch.full((50,), float(step), device=ranks.device), async_op=True) for step in range(20)]
    for work in works:
        work.wait()
    getattr(torch, ranks.device).synchronize()
    assert all(work.is_completed() and work.is_success() for work in works)


@program
def a_group_of_some_ranks_has_a_communicator_of_its_own(ranks: Ranks) -> None:
    groups = [dist.new_group([rank]) for rank in range(ranks.size)]
    x = torch.full((3,), 5.0, device=ranks.device)
    dist.all_reduce(x, group=groups[ranks.rank])
    tensors_equal(x, torch.full((3,), 5.0))
    dist.all_reduce(x)
    tensors_equal(x, torch.full((3,), 5.0 * ranks.size))


@program
def training_is_what_it_is_without(ranks: Ranks) -> None:
    from torch.nn.parallel import DistributedDataParallel

    reached()
    torch.manual_seed(0)
    model, alone = torch.nn.Linear(6, 3).double(), torch.nn.Linear(6, 3).double()
    alone.load_state_dict(model.state_dict())
    parallel = DistributedDataParallel(model.to(ranks.device))
    x = torch.randn(4 * ranks.size, 6, dtype=torch.float64)
    parallel(x[4 * ranks.rank : 4 * ranks.rank + 4].to(ranks.device)).square().mean().backward()
    alone(x).square().mean().backward()
    torch.testing.assert_close(model.weight.grad.cpu(), alone.weight.grad, rtol=1e-12, atol=1e-12)
    assert ("all_reduce" in reached()) == ("all_reduce" in OFFERED)


def _finish(work: dist.Work, ranks: Ranks) -> None:
    work.wait()
    getattr(torch, ranks.device).synchronize()


@program
def a_rank_that_does_not_come_is_named_by_those_that_wait(ranks: Ranks) -> None:
    if "all_reduce" not in OFFERED:
        return
    from datetime import timedelta

    group = dist.new_group(timeout=timedelta(seconds=2))
    x = torch.ones(3, device=ranks.device)
    dist.all_reduce(x, group=group)
    if ranks.rank == 0:
        work = dist.all_reduce(x, group=group, async_op=True)
        with pytest.raises(RuntimeError, match=rf"rank 0 of {ranks.size}: all_reduce \(call 2 of .* are not there"):
            _finish(work, ranks)
        with pytest.raises(RuntimeError, match="an earlier call of this group failed"):
            dist.all_reduce(x, group=group)
        assert not work.is_success()
    dist.barrier()
    dist.all_reduce(x)  # another group goes on
