"""Every collective on device tensors, beside the same call on CPU tensors: the bits are Gloo's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from tests.distributed.ranks import Ranks, program, tensors_equal

REDUCED = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64,
)  # fmt: skip
#: Beside those, what only bytes of can be sent.
MOVED = (*REDUCED, torch.bool, torch.int16, torch.complex64, torch.float8_e4m3fn, torch.uint16)
SIZES = ((), (1,), (0,), (3, 5), (70_001,))


def values(rank: int, size: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randint(1, 5, size, generator=generator).to(dtype)


@program
def all_reduce_of_every_dtype_and_op(ranks: Ranks) -> None:
    ops = dist.ReduceOp
    for dtype in REDUCED:
        for size in SIZES:
            for op in (ops.SUM, ops.PRODUCT, ops.MIN, ops.MAX, ops.AVG, ops.BAND, ops.BOR, ops.BXOR):
                if dtype.is_floating_point == (op in (ops.BAND, ops.BOR, ops.BXOR)) and op != ops.SUM:
                    continue
                if op == ops.AVG and not dtype.is_floating_point:
                    continue
                on_cpu = values(ranks.rank, size, dtype)
                on_device = on_cpu.to(ranks.device)
                dist.all_reduce(on_cpu, op=op)
                dist.all_reduce(on_device, op=op)
                tensors_equal(on_device, on_cpu)


@program
def all_reduce_of_complex_numbers(ranks: Ranks) -> None:
    x = torch.complex(values(ranks.rank, (4,), torch.float32), values(ranks.rank, (4,), torch.float32, 1))
    y = x.to(ranks.device)
    dist.all_reduce(x)
    dist.all_reduce(y)
    tensors_equal(y, x)


@program
def broadcast_of_every_dtype(ranks: Ranks) -> None:
    for dtype in MOVED:
        for size in SIZES:
            root = len(size) % ranks.size
            x = values(ranks.rank, size, dtype).to(ranks.device)
            dist.broadcast(x, root)
            tensors_equal(x, values(root, size, dtype))


@program
def gathers_of_every_dtype(ranks: Ranks) -> None:
    for dtype in MOVED:
        for size in SIZES:
            x = values(ranks.rank, size, dtype).to(ranks.device)
            expected = [values(rank, size, dtype) for rank in range(ranks.size)]
            outputs = [torch.empty_like(x) for _ in range(ranks.size)]
            dist.all_gather(outputs, x)
            for got, want in zip(outputs, expected, strict=True):
                tensors_equal(got, want)
            last = ranks.size - 1
            outputs = [torch.empty_like(x) for _ in range(ranks.size)]
            dist.gather(x, outputs if ranks.rank == last else None, dst=last)
            for got, want in zip(outputs, expected, strict=True):
                if ranks.rank == last:
                    tensors_equal(got, want)
        x = values(ranks.rank, (2, 3), dtype).to(ranks.device)
        whole = torch.empty((2 * ranks.size, 3), dtype=dtype, device=ranks.device)
        dist.all_gather_into_tensor(whole, x)
        want = torch.cat([values(rank, (2, 3), dtype) for rank in range(ranks.size)])
        tensors_equal(whole, want)
        row = torch.empty((1, 6 * ranks.size), dtype=dtype, device=ranks.device)  # as SyncBatchNorm asks
        dist.all_gather_into_tensor(row, x)
        tensors_equal(row, want.view(1, -1))


@program
def all_gather_into_a_tensor_that_holds_the_input(ranks: Ranks) -> None:
    whole = torch.zeros(ranks.size * 5, device=ranks.device)
    mine = whole[ranks.rank * 5 : ranks.rank * 5 + 5]
    mine.fill_(ranks.rank + 1)
    dist.all_gather_into_tensor(whole, mine)
    tensors_equal(whole, torch.arange(1.0, ranks.size + 1).repeat_interleave(5))


@program
def scatter_of_every_dtype(ranks: Ranks) -> None:
    for dtype in MOVED:
        parts = [values(rank, (3, 2), dtype).to(ranks.device) for rank in range(ranks.size)]
        x = torch.empty((3, 2), dtype=dtype, device=ranks.device)
        dist.scatter(x, parts if ranks.rank == 0 else None, src=0)
        tensors_equal(x, values(ranks.rank, (3, 2), dtype))


@program
def reduce_to_one_rank(ranks: Ranks) -> None:
    for dtype in REDUCED:
        x = values(ranks.rank, (9,), dtype).to(ranks.device)
        dist.reduce(x, dst=1, op=dist.ReduceOp.MAX)
        want = torch.stack([values(rank, (9,), dtype) for rank in range(ranks.size)]).amax(0)
        tensors_equal(x, want) if ranks.rank == 1 else None


@program
def reduce_scatter_in_every_form(ranks: Ranks) -> None:
    for dtype in (torch.float32, torch.float64, torch.int64):
        inputs = [values(ranks.rank, (4, 3), dtype, part) for part in range(ranks.size)]
        want = sum(values(rank, (4, 3), dtype, ranks.rank) for rank in range(ranks.size))
        x = torch.empty((4, 3), dtype=dtype, device=ranks.device)
        dist.reduce_scatter(x, [part.to(ranks.device) for part in inputs])
        tensors_equal(x, want)
        x.zero_()
        dist.reduce_scatter_tensor(x, torch.cat(inputs).to(ranks.device))
        tensors_equal(x, want)
        x.zero_()
        dist.reduce_scatter_tensor(x, torch.cat(inputs).to(ranks.device).view(1, -1))
        tensors_equal(x, want)


@program
def all_to_all_even_and_uneven(ranks: Ranks) -> None:
    for dtype in MOVED:
        x = values(ranks.rank, (ranks.size * 2, 3), dtype)
        y = torch.empty_like(x, device=ranks.device)
        dist.all_to_all_single(y, x.to(ranks.device))
        own = slice(2 * ranks.rank, 2 * ranks.rank + 2)
        tensors_equal(y, torch.cat([values(r, (ranks.size * 2, 3), dtype)[own] for r in range(ranks.size)]))
        sent = [rank + 1 for rank in range(ranks.size)]  # rank r gets r + 1 rows of each
        x = values(ranks.rank, (sum(sent), 2), dtype)
        y = torch.empty(((ranks.rank + 1) * ranks.size, 2), dtype=dtype, device=ranks.device)
        dist.all_to_all_single(y, x.to(ranks.device), [ranks.rank + 1] * ranks.size, sent)
        begin = sum(sent[: ranks.rank])
        rows = slice(begin, begin + ranks.rank + 1)
        tensors_equal(y, torch.cat([values(r, (sum(sent), 2), dtype)[rows] for r in range(ranks.size)]))
    parts = [values(ranks.rank, (4,), torch.float32, rank).to(ranks.device) for rank in range(ranks.size)]
    outputs = [torch.empty(4, device=ranks.device) for _ in range(ranks.size)]
    dist.all_to_all(outputs, parts)
    for rank, got in enumerate(outputs):
        tensors_equal(got, values(rank, (4,), torch.float32, ranks.rank))


@program
def all_to_all_of_lists_with_several_sizes(ranks: Ranks) -> None:
    for dtype in (torch.float32, torch.int16):
        parts = [values(ranks.rank, (ranks.rank + to, 2), dtype, to) for to in range(ranks.size)]  # one is empty
        outputs = [torch.empty((ranks.rank + of, 2), dtype=dtype, device=ranks.device) for of in range(ranks.size)]
        dist.all_to_all(outputs, [part.to(ranks.device) for part in parts])
        for of, got in enumerate(outputs):
            tensors_equal(got, values(of, (of + ranks.rank, 2), dtype, ranks.rank))


@program
def coalesced_calls(ranks: Ranks) -> None:
    a, b = (torch.full((size,), float(ranks.rank + 1), device=ranks.device) for size in (3, 70_000))
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(a)
        dist.all_reduce(b)
    manager.wait()
    total = float(sum(range(1, ranks.size + 1)))
    tensors_equal(a, torch.full((3,), total))
    tensors_equal(b, torch.full((70_000,), total))
    outputs = [torch.empty(ranks.size * size, device=ranks.device) for size in (2, 4)]
    inputs = [torch.full((size,), float(ranks.rank), device=ranks.device) for size in (2, 4)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, given in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, given)
    manager.wait()
    for output, given in zip(outputs, inputs, strict=True):
        tensors_equal(output, torch.arange(float(ranks.size)).repeat_interleave(given.numel()))
    small = [torch.empty(size, device=ranks.device) for size in (2, 4)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, given in zip(small, outputs, strict=True):
            dist.reduce_scatter_tensor(output, given)
    manager.wait()
    for got in small:
        tensors_equal(got, torch.full((got.numel(),), float(ranks.rank * ranks.size)))


@program
def messages_around_a_ring(ranks: Ranks) -> None:
    after, before = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
    for dtype in MOVED:
        for size in SIZES:
            got = torch.empty(size, dtype=dtype, device=ranks.device)
            sent = dist.isend(values(ranks.rank, size, dtype).to(ranks.device), after)
            received = dist.irecv(got, before)
            received.wait()
            tensors_equal(got, values(before, size, dtype))
            sent.wait()
    x, y = torch.full((6,), float(ranks.rank), device=ranks.device), torch.empty(6, device=ranks.device)
    ops = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, y, before)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    tensors_equal(y, torch.full((6,), float(before)))


@program
def messages_with_tags_and_from_anyone(ranks: Ranks) -> None:
    if ranks.rank == 0:
        for _ in range(1, ranks.size):
            got = torch.empty(3, device=ranks.device)
            source = dist.recv(got)
            tensors_equal(got, torch.full((3,), float(source)))
    else:
        dist.send(torch.full((3,), float(ranks.rank), device=ranks.device), 0)
    x = [torch.full((2,), float(tag), device=ranks.device) for tag in range(3)]
    if ranks.rank == 0:
        works = [dist.isend(x[tag], 1, tag=tag) for tag in (0, 1, 2)]
        for work in works:
            work.wait()
    elif ranks.rank == 1:
        for tag in (2, 0, 1):  # not in the order in which they were sent
            got = torch.empty(2, device=ranks.device)
            dist.recv(got, 0, tag=tag)
            tensors_equal(got, torch.full((2,), float(tag)))


@program
def large_tensors_in_pieces(ranks: Ranks) -> None:
    x = torch.arange(9_000_001).remainder(1000).float()
    y = (x * (ranks.rank + 1)).to(ranks.device)
    dist.all_reduce(y)
    tensors_equal(y, x * sum(range(1, ranks.size + 1)))


@program
def the_stream_waits_and_not_the_host(ranks: Ranks) -> None:
    module = getattr(torch, ranks.device)
    x = torch.ones(1000, device=ranks.device) * (ranks.rank + 1)
    works = []
    for _ in range(20):  # each reads what the one before wrote
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        x.mul_(1.0 / ranks.size)
        works.append(work)
    other = module.Stream() if hasattr(module, "Stream") else None
    if other is not None:
        other.wait_stream(module.current_stream())
        with module.stream(other):
            y = x * 2
            dist.all_reduce(y)
            y.add_(1)
        module.current_stream().wait_stream(other)
        mean = sum(range(1, ranks.size + 1)) / ranks.size
        torch.testing.assert_close(y.cpu(), torch.full((1000,), 2 * mean * ranks.size + 1))
    module.synchronize()
    assert all(work.is_completed() and work.is_success() for work in works)


@program
def temporaries_are_kept_until_they_are_sent(ranks: Ranks) -> None:
    works = []
    for step in range(30):
        x = torch.full((5000,), float(step * (ranks.rank + 1)), device=ranks.device)
        works.append((step, dist.all_reduce(x, async_op=True), x))
        del x
        torch.full((5000,), -1.0, device=ranks.device)  # would take its memory
    for step, work, x in works:
        work.wait()
        tensors_equal(x, torch.full((5000,), float(step * sum(range(1, ranks.size + 1)))))
    for step in range(30):
        dist.all_reduce(torch.full((5000,), float(step), device=ranks.device), async_op=True)
        torch.full((5000,), -1.0, device=ranks.device)
    dist.barrier()


@program
def futures_of_collectives(ranks: Ranks) -> None:
    x = torch.ones(7, device=ranks.device)
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    tensors_equal(future.wait(), torch.full((7,), 2.0 * ranks.size))


@program
def objects(ranks: Ranks) -> None:
    everyone: list[object] = [None] * ranks.size
    dist.all_gather_object(everyone, {"rank": ranks.rank})
    assert everyone == [{"rank": rank} for rank in range(ranks.size)]
    told = [{"from": 0}] if ranks.rank == 0 else [None]
    dist.broadcast_object_list(told, 0, device=torch.device(ranks.device))
    assert told == [{"from": 0}]


@program
def groups_of_some_ranks(ranks: Ranks) -> None:
    evens = dist.new_group(list(range(0, ranks.size, 2)))
    x = torch.ones(3, device=ranks.device)
    if ranks.rank % 2 == 0:
        dist.all_reduce(x, group=evens)
        tensors_equal(x, torch.full((3,), float(len(range(0, ranks.size, 2)))))
    dist.barrier()


@program
def bad_input_is_refused_before_anything_is_sent(ranks: Ranks) -> None:
    def refused(error: type[Exception], text: str, call: Callable[[], object]) -> None:
        with pytest.raises(error, match=text):
            call()

    device = ranks.device
    refused(
        TypeError, "convert to one of these", lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16, device=device))
    )
    refused(ValueError, "not contiguous", lambda: dist.all_reduce(torch.ones(4, 4, device=device)[:, ::2]))
    refused(
        NotImplementedError, "sparse", lambda: dist.all_reduce(torch.ones(2, 2).to_sparse().to(device))
    )  # fmt: skip
    refused(
        ValueError,
        "elements",
        lambda: dist.all_gather_into_tensor(torch.empty(3, device=device), torch.empty(2, device=device)),
    )
    refused(TypeError, "for integers", lambda: dist.all_reduce(torch.ones(2, device=device), op=dist.ReduceOp.BAND))
    counts = torch.ones(2, dtype=torch.int32, device=device)
    refused(TypeError, "AVG is for floating-point", lambda: dist.all_reduce(counts, op=dist.ReduceOp.AVG))
    refused(ValueError, "there is no rank 9 in a group of", lambda: dist.send(torch.empty(2, device=device), 9))
    refused(ValueError, "there is no rank 9 in a group of", lambda: dist.recv(torch.empty(2, device=device), 9))
    parts = [torch.empty(1, device=device) for _ in range(ranks.size + 1)]
    refused(ValueError, "tensors for", lambda: dist.all_to_all(parts, parts))
    only_device = dist.new_group(backend="bringup")
    refused(RuntimeError, "cpu", lambda: dist.all_reduce(torch.ones(2), group=only_device))
    x = torch.ones(2, device=device)
    dist.all_reduce(x)  # the group still works
    tensors_equal(x, torch.full((2,), float(ranks.size)))
