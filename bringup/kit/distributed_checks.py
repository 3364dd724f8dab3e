"""``bringup check --level distributed``: torch.distributed of a driver, on two processes of this machine.

Each check is a function whose docstring is its meaning; it runs on both ranks, and fails where either of them raises.
The references are PyTorch's own on CPU tensors, or what the numbers must be.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.kit.driver_checks import CheckResult, expect, place_of

if TYPE_CHECKING:
    import torch

RANKS = 2
Check = Callable[["torch.device", int], None]


def _values(rank: int, dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    import torch

    return torch.randint(1, 5, sizes, generator=torch.Generator().manual_seed(rank)).to(dtype)


def _dtypes(device: torch.device) -> list[torch.dtype]:
    """Those of the device among the ones that Gloo reduces."""
    import torch

    mine = torch.accelerator.get_device_capability(device)["supported_dtypes"]
    names = "float32 float64 float16 bfloat16 int8 uint8 int32 int64".split()
    return [dtype for dtype in (getattr(torch, name) for name in names) if dtype in mine]


def reductions_are_gloos(device: torch.device, rank: int) -> None:
    """all_reduce gives each rank the bits that Gloo gives CPU tensors, for every dtype and size."""
    import torch
    import torch.distributed as dist

    for dtype in _dtypes(device):
        for sizes in ((), (0,), (3, 5), (70_001,)):
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
                here = _values(rank, dtype, *sizes)
                there = here.to(device)
                dist.all_reduce(here, op)
                dist.all_reduce(there, op)
                expect(torch.equal(there.cpu(), here), f"{dtype}, {sizes}, {op}: {there.cpu()} instead of {here}")


def data_arrives(device: torch.device, rank: int) -> None:
    """broadcast, all_gather, scatter, all_to_all and messages deliver what was sent, to the element."""
    import torch
    import torch.distributed as dist

    for dtype in _dtypes(device):
        mine, theirs = _values(rank, dtype, 4, 3), _values(1 - rank, dtype, 4, 3)
        both = [_values(0, dtype, 4, 3), _values(1, dtype, 4, 3)]
        x = mine.to(device)
        got = torch.empty_like(x)
        works = [dist.isend(x, 1 - rank), dist.irecv(got, 1 - rank)]
        for work in works:
            assert work is not None
            work.wait()
        expect(torch.equal(got.cpu(), theirs), f"messages of {dtype}")
        whole = torch.empty((8, 3), dtype=dtype, device=device)
        dist.all_gather_into_tensor(whole, x)
        expect(torch.equal(whole.cpu(), torch.cat(both)), f"all_gather_into_tensor of {dtype}")
        dist.all_to_all_single(got, x)
        half = slice(2 * rank, 2 * rank + 2)
        expect(torch.equal(got.cpu(), torch.cat([both[0][half], both[1][half]])), f"all_to_all_single of {dtype}")
        dist.scatter(got, [part.to(device) for part in both] if rank == 0 else None, src=0)
        expect(torch.equal(got.cpu(), both[rank]), f"scatter of {dtype}")
        dist.broadcast(x, 1)
        expect(torch.equal(x.cpu(), both[1]), f"broadcast of {dtype}")


def work_is_in_stream_order(device: torch.device, rank: int) -> None:
    """A collective reads what was queued before it, and what follows its wait() reads its result."""
    import torch
    import torch.distributed as dist

    x = torch.full((50_000,), float(rank + 1), device=device)
    for _ in range(20):
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        x.mul_(0.5)
    expect(bool((x.cpu() == 1.5).all()), f"20 sums and halves of 1 and 2 are {x[0].item()}, not 1.5")
    for step in range(20):  # the memory of x is not given to others meanwhile
        x = torch.full((5000,), float(step), device=device)
        work = dist.all_reduce(x, async_op=True)
        torch.full((5000,), -1.0, device=device)
        work.wait()
        expect(bool((x.cpu() == 2.0 * step).all()), f"step {step}: {x[0].item()} instead of {2.0 * step}")


def large_tensors(device: torch.device, rank: int) -> None:
    """all_reduce of 20 MB, which is cut into pieces where it is copied."""
    import torch
    import torch.distributed as dist

    x = torch.arange(5_000_001).remainder(1000).add(1).float()
    y = x.to(device)
    dist.all_reduce(y)
    expect(torch.equal(y.cpu(), 2 * x), "the sum of two equal tensors is not twice one of them")


def training_equals_one_process(device: torch.device, rank: int) -> None:
    """Five steps of DistributedDataParallel are those of one process on the joined batch, within 1e-5."""
    import copy

    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    alone = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    parallel = DistributedDataParallel(copy.deepcopy(alone).to(device))
    for step in range(5):
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(step))
        for model, rows in ((alone, x), (parallel, x[4 * rank : 4 * rank + 4].to(device))):
            model.zero_grad()
            (model(rows) - rows.sum(1, keepdim=True)).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=0.05)
    for got, want in zip(parallel.parameters(), alone.parameters(), strict=True):
        off = float((got.detach().cpu() - want.detach()).abs().max())
        expect(off <= 1e-5, f"a weight is off by {off:.1e}")


def bad_input_is_an_error(device: torch.device, rank: int) -> None:
    """What cannot be sent is refused before anything is sent, and the group goes on."""
    import torch
    import torch.distributed as dist

    for wrong in (torch.ones(4, 4, device=device)[:, ::2], torch.ones(2, device=device).to(torch.int16)):
        try:
            dist.all_reduce(wrong)
        except (TypeError, ValueError, NotImplementedError):
            continue
        expect(False, f"all_reduce of {wrong.dtype} with strides {wrong.stride()} was not refused")
    x = torch.ones(3, device=device)
    dist.all_reduce(x)
    expect(x[0].item() == RANKS, "the group does not work after an error")


CHECKS: tuple[Check, ...] = (
    reductions_are_gloos,
    data_arrives,
    work_is_in_stream_order,
    large_tensors,
    training_equals_one_process,
    bad_input_is_an_error,
)


def rank_main(folder: str, index: int) -> None:
    """One rank: a line of JSON for each check."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    import bringup

    rank = int(os.environ["RANK"])
    device = bringup.device(index=index)
    torch.accelerator.set_device_index(device.index)
    store = FileStore(f"{folder}/store", RANKS)
    timeout = timedelta(seconds=60)
    dist.init_process_group(
        f"cpu:gloo,{device.type}:bringup", store=store, rank=rank, world_size=RANKS, timeout=timeout
    )
    for check in CHECKS:
        began, wrong = time.perf_counter(), ""
        try:
            check(device, rank)
        except Exception as error:
            wrong = f"rank {rank}: {type(error).__name__}: {error}{place_of(error.__cause__ or error)}"
        print(json.dumps([check.__name__, wrong, time.perf_counter() - began]), flush=True)
    dist.destroy_process_group()


def run_distributed_checks(driver: str, index: int, timeout: float) -> list[CheckResult]:
    """Runs the checks on two processes, and returns what each found."""
    with tempfile.TemporaryDirectory() as folder:
        processes, outputs = [], []
        for rank in range(RANKS):
            code = f"from bringup.kit.distributed_checks import rank_main; rank_main({folder!r}, {index})"
            env = {**os.environ, "BRINGUP_DRIVERS": driver, "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
            output = Path(folder) / f"output{rank}"
            outputs.append(output)
            with output.open("w", encoding="utf-8") as file:
                command = [sys.executable, "-W", "ignore", "-c", code]
                processes.append(subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT))
        end = time.monotonic() + timeout * len(CHECKS)
        for process in processes:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        texts = [output.read_text(encoding="utf-8") for output in outputs]
    found: dict[str, list[tuple[str, float]]] = {}
    for text in texts:
        for line in text.splitlines():
            if line.startswith('["'):
                name, wrong, seconds = json.loads(line)
                found.setdefault(name, []).append((wrong, seconds))
    results = []
    for check in CHECKS:
        rows = found.get(check.__name__, [])
        messages = [wrong for wrong, _ in rows if wrong]
        if len(rows) < RANKS and not messages:
            messages = [f"a rank did not get here: {max(texts, key=len)[-1500:]}"]
        seconds = max((seconds for _, seconds in rows), default=0.0)
        results.append(CheckResult(check.__name__, "fail" if messages else "pass", "; ".join(messages), seconds))
    return results


def main_distributed(driver: str, index: int, timeout: float, json_file: str | None) -> int:
    """What ``bringup check --level distributed`` runs; returns its exit status."""
    results = run_distributed_checks(driver, index, timeout)
    width = max(len(result.name) for result in results)
    for result in results:
        reason = f": {result.message}" if result.message else ""
        print(f"{result.name:<{width}}  {result.status}  {result.seconds:6.2f} s{reason}")
    failed = sum(result.status == "fail" for result in results)
    print(f"{driver}, distributed, {RANKS} processes: {len(results) - failed} passed, {failed} failed")
    if json_file:
        rows = [dataclasses.asdict(result) for result in results]
        text = json.dumps({"driver": driver, "level": "distributed", "results": rows}, indent=1)
        Path(json_file).write_text(text + "\n", encoding="utf-8")
        print(f"written: {json_file}")
    return 1 if failed else 0
