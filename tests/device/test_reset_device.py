"""reset_device(): a device that is closed and opened again while the program goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

SETUP = """
import threading, torch
from bringup import _C

def refused(says, *arguments):
    try:
        torch.sim.reset_device(*arguments)
    except (RuntimeError, TimeoutError) as error:
        assert says in str(error), error
    else:
        raise SystemExit(f"not refused: {says}")
"""

PROGRAMS = {
    "what is left and what is good afterwards": """
generator = torch.Generator("sim").manual_seed(3)
torch.sim.manual_seed(7)
torch.randn(5, device="sim", generator=generator)
states = [torch.sim.get_rng_state(), generator.get_state()]
side, event, timed = torch.sim.Stream(), torch.sim.Event(), torch.sim.Event(enable_timing=True)
timed.record()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).to("sim")
batch = torch.ones(4, 8).pin_memory()
expected = model(batch.to("sim", non_blocking=True)).detach().cpu()
weights = {name: value.cpu() for name, value in model.state_dict().items()}
model.cpu()
event.record(side)
x = torch.ones(3, device="sim")
refused("cannot be reset: 1 tensors or buffers", 0)
assert (x + 1).tolist() == [2.0] * 3  # nothing has changed
x.cycle = x  # garbage holds nothing
del x
side.wait_event(event)
torch.sim.reset_device()
assert not _C.is_open(0) and torch.sim.memory_allocated() == torch.sim.memory_reserved() == 0
assert all(map(torch.equal, states, [torch.sim.get_rng_state(), generator.get_state()]))
assert event.query()
event.synchronize()
side.wait_event(event)
try:
    now = torch.sim.Event(enable_timing=True)
    now.record()
    now.synchronize()
    timed.elapsed_time(now)
except ValueError as error:
    assert "before sim:0 was reset" in str(error)
else:
    raise SystemExit("a time between two lives")
with torch.sim.stream(side):
    model.to("sim").load_state_dict(weights)
    assert torch.allclose(model(batch.to("sim", non_blocking=True)).cpu(), expected)
del model, batch
torch.sim.reset_device("sim:0")
torch.sim.reset_device("sim:0")  # one that is not open
""",
    "a device that is stuck": """
gate = threading.Event()
torch.sim.launch_host_function(lambda: gate.wait(60))
refused("sim:0 is not done after 0.1 s: work of stream 0 still runs", 0, 0.1)
other = torch.ones(4, device="sim:1")
assert (other + 1).sum().item() == 8
gate.set()
torch.sim.reset_device(0, 60)
assert torch.ones(4, device="sim").sum().item() == 4
assert (other + 1).sum().item() == 8  # of another device
""",
    "queued work that fails": """
table, index = torch.zeros(4, device="sim"), torch.tensor([1, 99], device="sim")
gate = threading.Event()
for stream in (torch.sim.Stream(), torch.sim.Stream()):
    with torch.sim.stream(stream):
        torch.sim.launch_host_function(lambda: gate.wait(60))
        table[index]
del table, index
gate.set()
torch.sim.reset_device()
x = torch.ones(4, device="sim")
torch.sim.synchronize()  # says nothing of it
assert x.sum().item() == 4
""",
    "captures and graphs": """
x, side = torch.ones(4, device="sim"), torch.sim.Stream()
graph, pool = torch.sim.Graph(), torch.sim.graph_pool_handle()
with torch.sim.stream(side):
    graph.capture_begin(pool=pool)
    y = x + 1
    try:
        torch.sim.reset_device()
    except RuntimeError as error:
        assert "captured into a graph" in str(error), error
    else:
        raise SystemExit("reset while it is captured")
    try:
        graph.capture_end()
    except RuntimeError:
        pass
del x, y
graph.reset()
x = torch.ones(4, device="sim")
with torch.sim.graph(graph, pool=pool):
    y = x + 1
del x, y
torch.sim.reset_device()
try:
    graph.replay()
except RuntimeError as error:
    assert "was captured before sim:0 was reset" in str(error)
else:
    raise SystemExit("replayed")
x, again = torch.ones(4, device="sim"), torch.sim.Graph()
with torch.sim.graph(again, pool=pool):
    y = x + 2
graph.reset()
torch.sim.empty_cache()
again.replay()
assert y.tolist() == [3.0] * 4
""",
    "a compiled model": """
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).to("sim")
compiled = torch.compile(model, backend="bringup")
x = torch.ones(4, 8)
expected = compiled(x.to("sim")).detach().cpu()
weights = {name: value.cpu() for name, value in model.state_dict().items()}
model.cpu()
torch._dynamo.reset()
torch.sim.reset_device()
model.to("sim")
assert torch.allclose(compiled(x.to("sim")).cpu(), expected)
""",
    "threads": """
errors, ended = [], threading.Event()
def work():
    while not ended.is_set():
        try:
            assert (torch.ones(100, device="sim") * 2).sum().item() == 200
        except Exception as error:
            errors.append(error)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
done = 0
for _ in range(60):
    try:
        torch.sim.reset_device(0, 20)
        done += 1
    except RuntimeError as error:
        assert "cannot be reset" in str(error) or "another thread" in str(error), error
ended.set()
for thread in threads: thread.join()
assert not errors, errors[:3]
torch.sim.reset_device()
assert torch.ones(3, device="sim").sum().item() == 3
""",
    "many times": """
for n in range(20):
    x = torch.arange(100.0, device="sim")
    y = (x + n).sum().item()
    assert y == 4950 + 100 * n, y
    del x
    torch.sim.reset_device()
assert _C.lives(0) == 20
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_device_is_reset(name: str, run_python: Callable[..., Any]) -> None:
    run_python(SETUP + PROGRAMS[name], env={"BRINGUP_SIM": "mode=kernels,devices=2"})


IMPORTED = """
import torch, torch.multiprocessing as mp
from bringup import _C
x = torch.ones(4, device="sim")

def other(inbox, outbox):
    y = inbox.get()
    try:
        torch.sim.reset_device()
    except RuntimeError as error:
        outbox.put(str(error))
    del y
    torch.sim.reset_device()
    outbox.put(torch.ones(3, device="sim").sum().item())

if __name__ == "__main__":
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=other, args=(inbox, outbox))
    process.start()
    inbox.put(x)
    assert "cannot be reset: 1 tensors" in outbox.get(timeout=60)
    assert outbox.get(timeout=60) == 3
    process.join()
    del x
    torch.sim.reset_device()
"""


@pytest.mark.sweep
def test_memory_of_another_process_is_held_too(run_python: Callable[..., Any], tmp_path: Any) -> None:
    file = tmp_path / "imported.py"
    file.write_text(IMPORTED)
    run_python(f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')", fresh=True)


@pytest.mark.parametrize("driver", ["examples/drivers/dictmem.py", "riscv"])
def test_drivers_without_streams(driver: str, run_python: Callable[..., Any]) -> None:
    program = """
import torch
device = torch.accelerator.current_accelerator()
module = torch.get_device_module(device)
x = torch.ones(10, 10, device=device)
assert (x @ x + 1).sum().item() == 1100
del x
module.reset_device()
assert module.memory_reserved() == 0
x = torch.ones(10, 10, device=device)
assert (x @ x + 1).sum().item() == 1100
"""
    run_python(program, env={"BRINGUP_DRIVERS": driver})


STUCK_AT_THE_END = """
import threading, torch
x = torch.ones(4, device="sim:1")
gate = threading.Event()
torch.sim.launch_host_function(gate.wait)
y = torch.ones(100, device="sim") + 1
print("last line", flush=True)
"""


def test_a_process_with_a_stuck_device_ends(run_python: Callable[..., Any]) -> None:
    env = {"BRINGUP_SIM": "mode=kernels,devices=2", "BRINGUP_EXIT_TIMEOUT": "0.2"}
    result = run_python(STUCK_AT_THE_END, env=env, fresh=True, timeout=60)
    assert "last line" in result.stdout
    assert "the process ends, and sim:0 is not done after 0.2 s: work of stream 0 still runs" in result.stderr
