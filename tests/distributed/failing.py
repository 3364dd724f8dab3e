"""Programs of ranks that fail: each is run by ``python -m tests.distributed.failing NAME FOLDER`` on every rank."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
DEVICE = torch._C._get_privateuse1_backend_name()


def connect(folder: str, seconds: float = 20) -> None:
    store = dist.FileStore(f"{folder}/store", SIZE)
    dist.init_process_group("bringup", store=store, rank=RANK, world_size=SIZE, timeout=timedelta(seconds=seconds))


def heard(began: float, call: object) -> None:
    """Says what the call raised, and when."""
    try:
        call()  # type: ignore[operator]
    except RuntimeError as error:
        print(f"raised {type(error).__name__} after {time.monotonic() - began:.1f} s: {error}", flush=True)
    else:
        print("raised nothing", flush=True)


def killed(folder: str) -> None:
    """The last rank is killed; the others hear of it where they look at what it would have sent."""
    connect(folder)
    x = torch.ones(1000, device=DEVICE)
    dist.all_reduce(x)
    assert x[0].item() == SIZE
    if RANK == SIZE - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()

    def step() -> None:
        dist.all_reduce(x)
        getattr(torch, DEVICE).synchronize()

    heard(began, step)
    heard(began, lambda: dist.all_reduce(x))  # the group stays broken
    y = torch.ones(1 << 20, device=DEVICE) * 2  # the device goes on, and so does its allocator
    assert y.sum().item() == 2 << 20
    del y
    assert getattr(torch, DEVICE).memory_allocated() >= 0
    print("goes on", flush=True)


def late(folder: str) -> None:
    """The last rank never calls: the others time out."""
    connect(folder, seconds=5)
    x = torch.ones(10, device=DEVICE)
    dist.all_reduce(x)
    if RANK == SIZE - 1:
        time.sleep(12)
        print("slept", flush=True)
        return
    began = time.monotonic()
    work = dist.all_reduce(x, async_op=True)
    heard(began, lambda: work.wait() and getattr(torch, DEVICE).synchronize())
    assert not work.is_success()
    assert work.exception() is not None


def forgotten(folder: str) -> None:
    """The first rank ends while a collective waits for the other one, which never calls it."""
    connect(folder, seconds=1000)
    x = torch.ones(10, device=DEVICE)
    dist.all_reduce(x)
    if RANK == 0:
        dist.all_reduce(x, async_op=True)
        print("ends", flush=True)
    else:
        time.sleep(60)


def forgotten_until_the_interpreter_ends(folder: str) -> None:
    """The other rank ends while the first one's interpreter goes down, which then must not be asked for."""
    import atexit

    from bringup import _C
    from bringup.torch_device import activation

    if RANK == 0:  # the devices are shut down, then the interpreter is kept for a while
        atexit.unregister(activation._shut_down)
        atexit.register(sum, range(150_000_000))
        atexit.register(activation._shut_down, _C)
    connect(folder, seconds=1000)
    x = torch.ones(10, device=DEVICE)
    dist.all_reduce(x)
    if RANK == 0:
        dist.all_reduce(x, async_op=True)
    else:
        time.sleep(11)
        os._exit(0)


def drivers(folder: str) -> None:
    """Ranks on different drivers (the test sets the variable of one)."""
    began = time.monotonic()
    try:
        connect(folder)
    except ValueError as error:
        print(f"raised {type(error).__name__} after {time.monotonic() - began:.1f} s: {error}", flush=True)


def mismatched(folder: str) -> None:
    """Shapes differ; TORCH_DISTRIBUTED_DEBUG=DETAIL says so on every rank."""
    connect(folder)
    heard(time.monotonic(), lambda: dist.all_reduce(torch.ones(3 + RANK, device=DEVICE)))
    heard(
        time.monotonic(),
        lambda: dist.all_reduce(torch.ones(3, device=DEVICE, dtype=[torch.int32, torch.float32][RANK % 2])),
    )


def elastic(folder: str) -> None:
    """Trains 12 steps with a checkpoint after each; the last rank is killed in the middle, once."""
    dist.init_process_group("bringup", timeout=timedelta(seconds=20))
    from torch.nn.parallel import DistributedDataParallel

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double().to(DEVICE)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    checkpoint, first = Path(folder) / "checkpoint", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=DEVICE, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
    loss = torch.zeros(())
    for step in range(first, 12):
        x = torch.randn(4 * size, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        own = x[4 * rank : 4 * rank + 4].to(DEVICE)
        loss = (parallel(own) - own.sum(1, keepdim=True)).square().mean()
        loss.backward()
        once = Path(folder) / "killed"
        if step == 6 and rank == size - 1 and os.environ.get("KILL") and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{checkpoint}.new"
            )
            os.replace(f"{checkpoint}.new", checkpoint)
        dist.barrier()
    total = loss.detach()
    dist.all_reduce(total)
    if rank == 0:
        (Path(folder) / "loss").write_text(f"{total.item() / size!r} {first}")
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
    if sys.argv[1] != "elastic":
        print("end of the program", flush=True)
