"""Tensors in other processes: spawned workers, queues, DataLoader with workers and pinned memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

#: A module that spawned processes can import; {device} is filled in.
PROGRAM = """
import sys, threading, torch, torch.multiprocessing as mp

def add_one(inbox, outbox):
    x = inbox.get()
    x.add_(1)
    torch.get_device_module(x.device).synchronize()
    outbox.put((str(x.device), x.tolist()))
    del x
    outbox.put("dropped")

def copy_later(inbox, outbox):
    # drops what it got while the work that reads it is still queued
    module, gate = torch.get_device_module(), threading.Event()
    x = inbox.get()
    y = torch.zeros_like(x)
    module.synchronize()
    module.launch_host_function(lambda: gate.wait(60))
    y.copy_(x)
    threading.Timer(0.3, gate.set).start()
    del x
    gate.set()
    module.synchronize()
    outbox.put(y.tolist())

def receive(inbox, outbox):
    message = inbox.get()
    outbox.put([(type(t).__name__, t.requires_grad, t.stride(), t.tolist()) for t in message])
"""

SHARED_WRITE = """
if __name__ == "__main__":
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    worker = context.Process(target=add_one, args=(inbox, outbox))
    worker.start()
    x = torch.zeros(1000, device="{device}")
    before = torch.{device}.memory_allocated()
    inbox.put(x)
    where, seen = outbox.get(timeout=60)
    assert where == str(x.device) and set(seen) == {1.0}
    assert x.cpu().eq(1).all(), "the receiver did not write into our memory"
    assert outbox.get(timeout=60) == "dropped"
    worker.join()
    del x
    torch.{device}.ipc_collect()
    assert torch.{device}.memory_allocated() < before
"""

KINDS = """
if __name__ == "__main__":
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    worker = context.Process(target=receive, args=(inbox, outbox))
    worker.start()
    base = torch.arange(12.0, device="{device}").reshape(3, 4)
    sent = [base.t()[1:], torch.nn.Parameter(base + 1), torch.empty(0, device="{device}"), torch.ones(3)]
    inbox.put(sent)
    for tensor, (kind, grad, stride, values) in zip(sent, outbox.get(timeout=60), strict=True):
        assert kind == type(tensor).__name__ and grad == tensor.requires_grad and stride == tensor.stride()
        assert values == tensor.tolist()
    worker.join()
"""

ALIVE = """
if __name__ == "__main__":
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    inbox.put([torch.full((1000,), 7.0, device="{device}")])
    import time; time.sleep(1)
    others = [torch.full((1000,), 9.0, device="{device}") for _ in range(20)]
    worker = context.Process(target=receive, args=(inbox, outbox))
    worker.start()
    assert set(outbox.get(timeout=60)[0][3]) == {7.0}, "memory was reused before it arrived"
    worker.join()
"""

LATE = """
if __name__ == "__main__":
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    worker = context.Process(target=copy_later, args=(inbox, outbox))
    worker.start()
    inbox.put(torch.full((1000,), 7.0, device="{device}"))
    assert set(outbox.get(timeout=60)) == {7.0}, "the memory was unmapped under work that was still queued"
    worker.join()
"""


@pytest.fixture
def run_program(run_python, tmp_path: Path, device: str):
    def run(main: str, **options):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM + main.replace("{device}", device))
        # A real script, because spawn imports the main module again.
        code = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, {str(path)!r}]).returncode)"
        return run_python(code, **options)

    return run


def can_share(device: str) -> bool:
    import bringup

    return bringup.active_drivers()[0].driver.offers("ipc_export")


@pytest.mark.parametrize(
    "main", [SHARED_WRITE, KINDS, ALIVE, LATE], ids=["shared_write", "kinds", "kept_alive", "still_queued"]
)
def test_spawned_processes_share_device_memory(run_program, device: str, main: str) -> None:
    if not can_share(device):
        pytest.skip("the driver has no ipc_export")
    run_program(main)


def test_a_driver_that_cannot_share_says_so(run_python) -> None:
    code = """
    import torch, pytest
    from multiprocessing.reduction import ForkingPickler
    with pytest.raises(NotImplementedError, match="the chip driver cannot share memory.*cpu"):
        ForkingPickler.dumps(torch.ones(2, device="chip"))
    ForkingPickler.dumps(torch.ones(2))
    """
    run_python(code, env={"BRINGUP_DRIVERS": str(Path(__file__).with_name("chip_driver.py"))})


def test_a_driver_that_lacks_an_optional_function_says_which(run_python) -> None:
    code = """
    import torch, pytest
    from bringup import _C
    with pytest.raises(NotImplementedError, match="driver 'chip' has no host_register: use tensor.pin_memory"):
        torch.chip.host_register(torch.ones(2))
    with pytest.raises(NotImplementedError, match="driver 'chip' has no ipc_export"):
        _C.ipc_export(torch.ones(2, device="chip").untyped_storage())
    """
    run_python(code, env={"BRINGUP_DRIVERS": str(Path(__file__).with_name("chip_driver.py"))})


def test_non_leaf_tensors_are_refused_as_always(device: str) -> None:
    from multiprocessing.reduction import ForkingPickler

    x = torch.ones(2, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="non-leaf"):
        ForkingPickler.dumps(x * 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(device: str, workers: int) -> None:
    torch.ones(1, device=device)  # open in the parent: the forked workers must not mind
    data = TensorDataset(torch.arange(32.0), torch.arange(32))
    total = 0.0
    for values, labels in DataLoader(data, batch_size=8, num_workers=workers, pin_memory=True, shuffle=True):
        assert values.is_pinned()
        moved = values.to(device, non_blocking=True)
        assert torch.equal(moved.cpu().long(), labels)
        total += moved.sum().item()
    assert total == sum(range(32))


def test_share_memory_is_harmless(device: str) -> None:
    model = torch.nn.Linear(2, 2).to(device)
    before = model.weight.cpu()
    model.share_memory()
    assert torch.equal(model.weight.cpu(), before)
