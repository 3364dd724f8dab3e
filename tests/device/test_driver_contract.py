"""Optional parts of the contract, through PyTorch: library functions, graphs, traces, pinned memory, lost devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

DRIVER = str(Path(__file__).with_name("contract_driver.py"))
PREAMBLE = """
import sys, torch, bringup, pytest
driver = bringup.active_drivers()[0].driver
module = sys.modules[type(driver).__module__]
"""


@pytest.fixture
def run(run_python):
    def run(code: str, **env: str) -> Any:
        return run_python(PREAMBLE + code, env={"BRINGUP_DRIVERS": DRIVER, **env})

    return run


# ---- library functions ----
def test_the_core_calls_a_library_function_itself(run) -> None:
    run("""
calls = lambda: module.library().library_calls()
a, b = torch.randn(3, 4), torch.randn(4, 5)
x, y = a.to("contract"), b.to("contract")
for n in range(1, 4):
    torch.testing.assert_close((x @ y).cpu(), a @ b)
    assert calls() == n
assert [call.op for call in driver.asked] == ["aten::mm"], driver.asked  # once for the signature
assert [tensor.shape for tensor in driver.asked[0].tensors] == [(3, 4), (4, 5), (3, 5)]
# The forms of the op use the same function.
out = torch.empty(0, device="contract")
torch.mm(x, y, out=out)
torch.testing.assert_close(out.cpu(), a @ b)
assert calls() == 4
# Another size is another signature; another layout or dtype is declined, and runs as a kernel.
torch.testing.assert_close((x[:2] @ y).cpu(), a[:2] @ b)
assert calls() == 5
torch.testing.assert_close((x.t().contiguous().t() @ y).cpu(), a @ b)
torch.testing.assert_close((x.double() @ y.double()).cpu(), a.double() @ b.double())
assert calls() == 5
torch.testing.assert_close((x[:1] @ y).cpu(), a[:1] @ b)  # what was declined for one size is asked again for another
assert calls() == 6
""")


def test_numbers_of_a_call_reach_the_function(run) -> None:
    run("""
calls = lambda: module.library().library_calls()
a, b = torch.randn(6), torch.randn(6)
x, y = a.to("contract"), b.to("contract")
for n, alpha in enumerate((1, 2, -0.5), 1):
    torch.testing.assert_close(torch.add(x, y, alpha=alpha).cpu(), torch.add(a, b, alpha=alpha))
    assert calls() == n
assert len(driver.asked) == 2  # alpha as an integer, and as a float
x.add_(y, alpha=3)  # elementwise: in place
torch.testing.assert_close(x.cpu(), a + 3 * b)
assert calls() == 4
x.requires_grad_()
(x + y).sum().backward()
assert x.grad.tolist() == [1.0] * 6 and calls() == 5
""")


def test_a_library_function_is_captured_and_fails_like_a_kernel(run) -> None:
    run(
        """
x, y = torch.randn(3, 4, device="contract"), torch.randn(4, 5, device="contract")
x @ y
graph = torch.contract.Graph()
with torch.contract.graph(graph):
    z = x @ y
x.fill_(2.0)
graph.replay()
torch.contract.synchronize()
torch.testing.assert_close(z.cpu(), x.cpu() @ y.cpu())
with pytest.raises(NotImplementedError, match="contract:0: launch failed"):
    torch.ones(7, device="contract") - torch.ones(7, device="contract")
torch.testing.assert_close((torch.ones(8, device="contract") - 1).cpu(), torch.zeros(8))
""",
        WITHOUT_GRAPHS="1",  # this library's functions compute at once: a graph of the driver would not hold them
    )


def test_an_op_without_a_kernel_cannot_have_a_library_function(run_python) -> None:
    run_python("""
import bringup, pytest
from bringup.drivers.sim import Driver as Sim

class Driver(Sim):
    name = "wrong"
    library_ops = ("aten::no_such_op",)
    def library_op(self, device, call): raise NotImplementedError

bringup.activate(Driver)
import torch
with pytest.raises(RuntimeError, match="library_ops: 'aten::no_such_op'"):
    torch.ones(3, device="wrong")
""")


# ---- graphs of the driver ----
def test_a_capture_becomes_a_graph_of_the_driver(run) -> None:
    run("""
x = torch.ones(1000, device="contract")
y = torch.zeros(1000, device="contract")
x * 2 + 1  # compiled before
graph = torch.contract.Graph()
with torch.contract.graph(graph):
    y.copy_(x * 2 + 1)
assert len(driver.graphs) == 1 and not driver.recording
assert y.sum().item() == 0  # nothing ran
launches = len(driver.correlations)
for n in (1, 2, 3):
    x.fill_(n)
    graph.replay()
    assert y.sum().item() == 1000 * (2 * n + 1)
assert len(driver.graph_launches) == 3 == len(set(driver.graph_launches))
graph.reset()
assert not driver.graphs
""")


def test_a_graph_that_draws_random_numbers_stays_the_cores(run) -> None:
    run("""
x = torch.zeros(100, device="contract")
x.uniform_()
graph = torch.contract.Graph()
with torch.contract.graph(graph):
    x.uniform_()
assert not driver.graphs
graph.replay()
first = x.cpu()
graph.replay()
assert not torch.equal(first, x.cpu())
""")


def test_a_driver_that_cannot_keep_a_graph_says_so(run) -> None:
    run("""
def refuse(self, device, stream): raise RuntimeError("no room for graphs")
x = torch.ones(10, device="contract")
x + 1
type(driver).graph_begin = refuse
with pytest.raises(RuntimeError, match="no room for graphs"):
    with torch.contract.graph(torch.contract.Graph()):
        x + 1
assert (x + 1).tolist() == [2.0] * 10  # the stream goes on
""")


# ---- traces ----
def test_a_trace_names_the_launches(run) -> None:
    run("""
import time
from bringup.driver import TraceKind
x = torch.randn(300, 300, device="contract")
x * x
torch.contract.synchronize()
driver.correlations.clear()
before = time.time_ns()
with torch.contract._trace() as trace:
    side = torch.contract.Stream()
    torch.contract._sleep(5)
    event = torch.contract.current_stream().record_event()
    side.wait_event(event)
    with torch.contract.stream(side):
        y = x * x
    z = y.cpu()
kinds = {kind: [record for record in trace.records if record.kind == kind] for kind in TraceKind}
assert [(r.name, r.correlation) for r in kinds[TraceKind.KERNEL]] == driver.correlations and driver.correlations
[kernel] = kinds[TraceKind.KERNEL]
assert kernel.stream == side.native_handle and kernel.bytes >= 2 * 4 * 300 * 300
[wait] = kinds[TraceKind.WAIT]
assert wait.stream == side.native_handle and wait.end_ns <= kernel.start_ns
assert kinds[TraceKind.COPY][-1].bytes == 4 * 300 * 300 and kinds[TraceKind.HOST]
assert before - 10**9 < trace.host_ns(kernel.start_ns) <= trace.host_ns(kernel.end_ns) < time.time_ns() + 10**9
assert trace.dropped == 0
with torch.contract._trace(capacity=1) as short:
    x * x, x * x, x * x
assert len(short.records) == 1 and short.dropped == 2
""")


def test_a_driver_without_traces_and_pinning_says_so(run_python) -> None:
    code = """
import torch, pytest
with pytest.raises(NotImplementedError, match="no trace_start"):
    with torch.dictmem._trace():
        pass
with pytest.raises(NotImplementedError, match="host_register"):
    torch.dictmem.host_register(torch.ones(10))
with pytest.raises(NotImplementedError, match="event_export"):
    torch.dictmem.Event(interprocess=True)
"""
    run_python(code, env={"BRINGUP_DRIVERS": "examples/drivers/dictmem.py"})


# ---- host memory ----
def test_registered_memory_is_copied_in_the_background(run_python) -> None:
    run_python("""
import torch, pytest
host = torch.randn(500, 1000)
torch.sim.host_register(host)
assert host.is_pinned() and host[3:].is_pinned()
x = torch.zeros_like(host, device="sim")
side = torch.sim.Stream()
with torch.sim.stream(side):
    torch.sim._sleep(200)
    x.copy_(host, non_blocking=True)
    assert not side.query()  # it did not wait
    back = torch.zeros(500, 1000)
    torch.sim.host_register(back, write_combined=True)
    back.copy_(x, non_blocking=True)
    assert not side.query()
torch.sim.host_unregister(back)  # waits for both copies
assert torch.equal(back, host)
with pytest.raises(ValueError, match="registered already"):
    torch.sim.host_register(host[1:])
torch.sim.host_unregister(host[1:])
assert not host.is_pinned()
with pytest.raises(ValueError, match="was not registered"):
    torch.sim.host_unregister(host)
for wrong in (torch.ones(3, device="sim"), torch.empty(0)):
    with pytest.raises(ValueError, match="CPU's memory"):
        torch.sim.host_register(wrong)
with pytest.raises(NotImplementedError, match="flags"):
    torch.sim.host_register(host, mapped=True)
pinned = torch.ones(10).pin_memory()
with pytest.raises(ValueError, match="was not registered"):
    torch.sim.host_unregister(pinned)
""")


# ---- events of two processes ----
def test_an_event_of_another_process(run_python) -> None:
    run_python("""
import subprocess, sys, torch, pytest
event = torch.sim.Event(interprocess=True)
assert isinstance(event, torch.sim.Event) and event.query()
with pytest.raises(RuntimeError, match="record"):
    event.ipc_handle()
torch.sim._sleep(300)
event.record()
handle = event.ipc_handle()
assert isinstance(handle, bytes) and not event.query()
child = '''
import sys, torch
event = torch.sim.Event.from_ipc_handle(0, sys.argv[1].encode())
event.wait()
x = torch.ones(3, device="sim") + 1
event.synchronize()
print(event.query(), x.tolist())
'''
done = subprocess.run([sys.executable, "-c", child, handle.decode()], capture_output=True, text=True)
assert done.stdout.split() == ["True", "[2.0,", "2.0,", "2.0]"], done.stderr
assert event.query()
event.record()
assert event.ipc_handle() != handle  # another recording is another event
with pytest.raises(ValueError, match="not a handle"):
    torch.sim.Event.from_ipc_handle(0, b"nonsense")
with pytest.raises(ValueError, match="belongs to"):
    event.record(torch.sim.Stream(1))
""")


# ---- a device that is lost ----
USES = """
uses = {
    "an op": lambda: x + 1,
    "a copy out": lambda: x.cpu(),
    "a copy in": lambda: x.copy_(torch.ones(1000)),
    "memory": lambda: torch.empty(10, device="contract:0"),
    "synchronize": lambda: torch.contract.synchronize(0),
    "a stream": lambda: side.synchronize(),
    "a stream's query": lambda: side.query(),
    "an event": lambda: torch.contract.Event().record(side),
    "an event's wait": lambda: event.synchronize(),
    "an event's query": lambda: event.query(),
    "memory info": lambda: torch.contract.mem_get_info(0),
}
def check_lost(where):
    for what, use in uses.items():
        try:
            use()
        except torch.AcceleratorError as error:
            said = str(error)
            assert "contract:0 is lost (contract:0: " in said and "it fell off the bus" in said, (what, said)
            assert "torch.contract.reset_device() opens it again" in said, said
        else:
            raise AssertionError(f"{where}: {what} did not raise")
"""


@pytest.mark.parametrize(
    ("method", "use"),
    [
        ("alloc", "torch.empty(100 << 20, dtype=torch.uint8, device='contract:0')"),
        ("copy", "x.cpu()"),
        ("load", "torch.special.i0e(x)"),
        ("launch", "x * 2"),
        ("stream_create", "[torch.contract.Stream(0) for _ in range(9)]"),
        ("event_record", "torch.contract.Event().record(side)"),
        ("event_query", "event.query()"),
        ("event_wait", "side.wait_event(busy)"),
        ("event_elapsed", "timed[0].elapsed_time(timed[1])"),
        ("memory_info", "torch.contract.mem_get_info(0)"),
        ("host_function", "torch.contract.launch_host_function(print)"),
        ("clock", "bringup._C.clock(0)"),
    ],
)
def test_a_device_lost_in_any_call(run, method: str, use: str) -> None:
    run(
        USES
        + f"""
import bringup._C
x = torch.ones(1000, device="contract:0")
x * 2
side, event = torch.contract.Stream(0), torch.contract.Event()
event.record(side)
timed = [torch.contract.Event(enable_timing=True) for _ in range(2)]
[one.record() for one in timed]
torch.contract._sleep(50)
busy = torch.contract.Event()
busy.record()
[one.synchronize() for one in timed]
other = torch.ones(10, device="contract:1")
lost = type(driver)
lost.lose = {method!r}
with pytest.raises(torch.AcceleratorError, match="fell off the bus"):
    {use}
lost.lose = ""
check_lost({method!r})
assert (other + 1).tolist() == [2.0] * 10  # other devices go on
assert torch.contract.device_count() == 2
del x, busy, event, timed  # nothing is freed
assert not lost.after, lost.after
""",
        LOSING="1",
    )


def test_a_device_lost_when_it_is_opened_or_gives_something_back(run) -> None:
    run(
        USES
        + """
lost = type(driver)
lost.lose = "open"
for _ in range(2):
    with pytest.raises(torch.AcceleratorError, match="contract:0 is lost .*fell off the bus"):
        torch.ones(3, device="contract:0")
assert lost.after == []
assert (torch.ones(10, device="contract:1") + 1).tolist() == [2.0] * 10
""",
        LOSING="1",
    )
    run(
        USES
        + """
x, side, event = torch.ones(1000, device="contract:0"), torch.contract.Stream(0), torch.contract.Event()
event.record(side)
lost = type(driver)
lost.lose = "event_destroy"
event.record(side)  # gives the one before back, and says nothing of what went wrong
lost.lose = ""
check_lost("event_destroy")
assert not lost.after, lost.after
""",
        LOSING="1",
    )


def test_a_lost_device_is_opened_again(run) -> None:
    run(
        USES
        + """
import bringup._C
x, side, event = torch.ones(1000, device="contract:0"), torch.contract.Stream(0), torch.contract.Event()
(x * 2).sum().item()
with torch.contract.stream(side):
    y = x + 1
    y.record_stream(torch.contract.default_stream(0))
event.record(side)
graph = torch.contract.Graph()
with torch.contract.graph(graph):
    z = x * 3
other = torch.ones(10, device="contract:1")
lost = type(driver)
lost.lose = "copy"
with pytest.raises(torch.AcceleratorError, match="fell off the bus"):
    x.cpu()
lost.lose = ""
check_lost("before it is reset")
with pytest.raises(RuntimeError, match="contract:0 cannot be reset: 3 tensors or buffers .* Drop them first"):
    torch.contract.reset_device(0)
check_lost("where something holds its memory")
kept = x, y, z
uses.clear()
del x, y, z, kept, lost.after[:]
lost.lost = False
torch.contract.reset_device(0)
assert lost.after == [] and not bringup._C.is_open(0)
assert event.query() and torch.contract.memory_allocated(0) == torch.contract.memory_reserved(0) == 0
event.synchronize()
side.wait_event(event)
with pytest.raises(RuntimeError, match="captured before contract:0 was reset"):
    graph.replay()
del graph
x = torch.arange(1000.0, device="contract:0")
assert (x * 2).sum().item() == 999000  # a kernel that was loaded before
with torch.contract.stream(side):
    assert (x + 1).sum().item() == 500500
event.record(side)
event.synchronize()
assert (other + 1).tolist() == [2.0] * 10
""".replace("event.record(side)\ngraph", "event.record(side)\nimport bringup._C\ngraph"),
        LOSING="1",
    )


# ---- placement ----
def test_the_key_of_a_call_tells_placements_apart(run_python) -> None:
    code = """
import torch
from bringup import _C
from bringup.driver import PlacementKind

def key(kind, block=0):
    x, y = torch.ones(64, 64, device="sim"), torch.ones(64, 64, device="sim")
    _C.relayout(x.untyped_storage(), int(kind), block)
    return tuple(_C.call_key("aten::mm", [x, y]))

kinds = [(PlacementKind.SINGLE,), (PlacementKind.REPLICATE,), (PlacementKind.SHARD, 64), (PlacementKind.SHARD, 128)]
keys = [key(*kind) for kind in kinds]
assert len(set(keys)) == 4
assert key(PlacementKind.SHARD, 64) == keys[2]
"""
    run_python(code, env={"BRINGUP_SIM": "devices=1,memory=64M,partitions=4"})
