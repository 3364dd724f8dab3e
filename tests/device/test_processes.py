"""Threads, faults, fork, spawn and exit: whatever happens is a Python exception, never a crash or a hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

Run = Callable[..., Any]


@pytest.fixture
def run_device(device: str, run_python: Run) -> Run:
    """Runs code, where `DEVICE` names the device, in a process of its own; a crash or a hang fails the test."""

    def run(code: str, whole_end: bool = False, **environment: str) -> str:
        code = f"DEVICE = {device!r}\nimport torch\n" + code
        return run_python(code, env=environment, whole_end=whole_end).stdout

    return run


def test_one_percent_of_faults_gives_python_exceptions_only(device: str, run_device: Run) -> None:
    if device != "sim":
        pytest.skip("only the simulator injects faults")
    out = run_device(
        """
import random
random.seed(0)
failed = wrong = 0
host = torch.arange(1000.0)
for step in range(4000):
    try:
        x = host.to(DEVICE)
        y = torch.empty(1000 + 512 * random.randrange(64), device=DEVICE)
        y[:1000].copy_(x)
        wrong += not torch.equal((y[:1000] + 1).cpu(), host + 1)
        if step % 10 == 0:
            del x, y
            torch.sim.empty_cache()
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        assert str(error), "an error without a message"
        failed += 1
print(failed, wrong)
""",
        BRINGUP_SIM="fail=alloc:0.01,copy:0.01,seed=1",
    )
    failed, wrong = map(int, out.split())
    assert failed > 0
    assert wrong == 0


def test_faults_in_backward_reach_python(device: str, run_device: Run) -> None:
    if device != "sim":
        pytest.skip("only the simulator injects faults")
    run_device(
        """
failed = good = 0
while failed < 5 or good < 5:
    try:
        x = torch.randn(3000, requires_grad=True)
        (x.to(DEVICE) * 2).to("cpu").sum().backward()
        assert torch.equal(x.grad, torch.full((3000,), 2.0))
        good += 1
    except RuntimeError:
        failed += 1
    torch.sim.empty_cache()
""",
        BRINGUP_SIM="fail=alloc:0.1,copy:0.1,seed=1",
    )


def test_eight_threads(device: str) -> None:
    """Each thread trains its own small problem on its own stream; all get the answer of one thread."""
    module = getattr(torch, device)
    torch.manual_seed(0)
    inputs, start = torch.randn(16, 8), torch.randn(8, 8)
    module.synchronize()
    results: dict[int, torch.Tensor] = {}
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with module.stream(module.Stream()):
                x, weight = inputs.to(device), start.to(device).requires_grad_()
                for _ in range(20):
                    (x @ weight).relu().square().mean().backward()
                    with torch.no_grad():
                        weight -= 0.01 * weight.grad
                        weight.grad = None
                    torch.empty(1 + number * 1000, device=device)
                results[number] = weight.detach().cpu()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert not errors, errors
    work(8)
    for number in range(8):
        torch.testing.assert_close(results[number], results[8])


def test_threads_that_share_tensors_and_free_each_others_memory(device: str) -> None:
    module = getattr(torch, device)
    baseline = module.memory_allocated()
    shared: list[torch.Tensor] = []
    lock = threading.Lock()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(200):
                x = torch.full((1 + 37 * step,), float(number), device=device)
                with lock:
                    shared.append(x)
                    y = shared.pop(0) if len(shared) > 4 else None
                assert y is None or y.min().item() == y.max().item()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert not errors, errors
    shared.clear()
    module.synchronize()
    assert module.memory_allocated() == baseline


# ---- exit ----
# No daemon thread here: one that is inside backward() when Python ends aborts CPU-only PyTorch as well.
@pytest.mark.parametrize(
    "code",
    [
        pytest.param("x = torch.randn(1000, device=DEVICE)", id="live tensor"),
        pytest.param(
            "x = torch.randn(64, 64, device=DEVICE, requires_grad=True)\n(x @ x).sum().backward()",
            id="autograd threads",
        ),
        pytest.param(
            "x = torch.randn(64, 64, device=DEVICE, requires_grad=True)\ny = (x @ x).sum()", id="graph never run"
        ),
        pytest.param(
            "module = getattr(torch, DEVICE)\nside = module.Stream()\nx = torch.ones(1000, device=DEVICE)\n"
            "side.wait_stream(module.current_stream())\nwith module.stream(side):\n    module._sleep(200)\n"
            "    y = torch.zeros(1000).pin_memory()\n"
            "    y.copy_(x, non_blocking=True)",
            id="queued work",
        ),
        pytest.param(
            "import threading\ndef work():\n    for _ in range(100):\n"
            "        x = torch.randn(32, 32, device=DEVICE, requires_grad=True)\n        (x @ x).sum().backward()\n"
            "threads = [threading.Thread(target=work) for _ in range(4)]\n[t.start() for t in threads]",
            id="threads in backward",
        ),
        pytest.param(
            "import atexit\nx = torch.ones(8, device=DEVICE)\natexit.register(lambda: print((x + 1).sum().item()))",
            id="use in an atexit function",
        ),
        pytest.param(
            "class Keeper:\n    def __init__(self): self.x = torch.ones(8, device=DEVICE)\n"
            "    def __del__(self): del self.x\nkeeper = Keeper()\nkeeper.itself = keeper",
            id="freed by the last garbage collection",
        ),
        pytest.param("import sys\nx = torch.ones(8, device=DEVICE)\nsys.exit(0)", id="sys.exit"),
    ],
)
def test_exit_is_clean(code: str, run_device: Run) -> None:
    run_device(code, whole_end=True)


# ---- fork and spawn ----
def test_a_forked_child_gets_a_clear_error(run_device: Run) -> None:
    out = run_device("""
import os
x = torch.ones(3, device=DEVICE)
child = os.fork()
if child == 0:
    torch.manual_seed(1)            # must not raise: DataLoader workers do this
    assert torch.ones(3).sum().item() == 3
    try:
        torch.ones(3, device=DEVICE)
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(0)
    os._exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert status == 0, status
assert x.sum().item() == 3
""")
    assert "fork" in out
    assert "spawn" in out


def test_fork_before_the_device_is_used_is_fine(run_device: Run) -> None:
    run_device("""
import os
child = os.fork()
value = torch.ones(3, device=DEVICE).sum().item()
assert value == 3
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""")


def test_spawned_processes_have_the_device(run_device: Run) -> None:
    run_device("""
import multiprocessing
x = torch.ones(3, device=DEVICE)
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        expression = f"float(__import__('torch').arange(4., device={DEVICE!r}).sum())"
        assert pool.map(eval, [expression] * 4) == [6.0] * 4
""")


def test_tensors_travel_to_another_process_as_shared_memory(run_device: Run) -> None:
    """Or the driver says that it cannot. A copy that looks like sharing is the one wrong answer."""
    run_device("""
if __name__ == "__main__":
    import torch.multiprocessing as multiprocessing
    x = torch.zeros(5, device=DEVICE)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        try:
            pool.apply(torch.Tensor.__setitem__, (x, slice(None), 1.0))
        except NotImplementedError as error:
            assert "share" in str(error), error
        else:
            assert x.tolist() == [1.0] * 5, x
""")


def test_data_loader_with_workers_and_pinning(run_device: Run) -> None:
    run_device("""
from torch.utils.data import DataLoader, TensorDataset
torch.ones(1, device=DEVICE)        # opened before the workers are forked
loader = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=8, num_workers=2, pin_memory=True)
total = torch.zeros((), device=DEVICE)
for (batch,) in loader:
    assert batch.is_pinned()
    total += batch.to(DEVICE, non_blocking=True).sum()
assert total.item() == 2016
""")
