"""Programs that test_profiler.py runs, each in a process of its own: what torch.profiler shows of a device."""

from __future__ import annotations

SETUP = """
import collections, json, os, tempfile, threading, time
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]

def exported(prof):
    path = os.path.join(tempfile.mkdtemp(), "trace.json")
    prof.export_chrome_trace(path)
    with open(path) as file:
        return json.load(file)["traceEvents"]

def of(events, *categories):
    return [event for event in events if event.get("cat") in categories and event["ph"] == "X"]

def arrows_are_right(events, rows):
    # How many rows have an arrow from the launch that asked for them, and no other.
    asked = {event["args"]["correlation"]: event for event in of(events, "privateuse1_runtime")}
    ends = collections.defaultdict(list)
    for event in events:
        if event.get("cat") == "ac2g":
            ends[event["ph"], event["id"]].append((event["pid"], event["tid"], event["ts"]))
    def place(event):
        return [(event["pid"], event["tid"], event["ts"])]
    numbers = [row["args"]["correlation"] for row in rows]
    return sum(ends["s", n] == place(asked[n]) and ends["f", n] == place(row) for n, row in zip(numbers, rows))

def training_step(width=64):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(32, width), torch.randint(0, 10, (32,))
    def step():
        loss = torch.nn.functional.cross_entropy(model(x.to("sim")), y.to("sim"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()
    step()
    torch.sim.synchronize()
    return step
"""

TRAINING_STEP = """
step = training_step()
with profile(activities=BOTH, with_stack=True) as prof:
    step()
events = exported(prof)
rows = of(events, "kernel", "gpu_memcpy")
ops = {event["args"]["External id"]: event for event in of(events, "cpu_op")}
launches = {event["args"]["correlation"]: event for event in of(events, "privateuse1_runtime")}
assert len(rows) >= 20 and len(of(events, "gpu_memcpy")) >= 2, collections.Counter(e["name"] for e in rows)
for row in rows:
    op = ops[row["args"]["External id"]]
    launch = launches[row["args"]["correlation"]]
    assert launch["args"]["External id"] == row["args"]["External id"], (row, launch)
    assert op["ts"] <= launch["ts"] and launch["ts"] + launch["dur"] <= op["ts"] + op["dur"] + 1, (op, launch)
    assert launch["ts"] - 5 <= row["ts"], (row, launch)
    assert row["args"]["bytes"] > 0 or row["cat"] == "kernel"
arrows = [event for event in events if event.get("cat") == "ac2g"]
starts = {event["id"] for event in arrows if event["ph"] == "s"}
assert starts == {event["id"] for event in arrows if event["ph"] == "f"} == {row["args"]["correlation"] for row in rows}
assert arrows_are_right(events, rows) == len(rows)
by_op = {
    op: {row["name"] for row in rows if ops[row["args"]["External id"]]["name"] == op}
    for op in ("aten::mm", "aten::addmm")
}
assert by_op == {"aten::mm": {"bringup_mm"}, "aten::addmm": {"bringup_addmm"}}, by_op
forward = next(row for row in rows if row["name"] == "bringup_addmm")
assert forward["args"]["flops"] >= 2 * 32 * 64 * 128, forward
stream = sorted(rows, key=lambda row: row["ts"])
for first, second in zip(stream, stream[1:]):
    assert first["ts"] + first["dur"] <= second["ts"] + 0.002, (first, second)  # a stream does one thing at a time
names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] in ("process_name", "thread_name")}
assert {"sim:0", "stream 0 (default)"} <= names, names
averages = {event.key: event for event in prof.key_averages()}
assert averages["aten::mm"].device_time_total == averages["bringup_mm"].self_device_time_total > 0
stacks = of(events, "python_function")
assert any("training_step" in event["name"] or "step" in event["name"] for event in stacks)
"""

RANGES_STREAMS_AND_WAITS = """
x = torch.randn(300, 300, device="sim")
x @ x + 1
side = torch.sim.Stream()
torch.sim.synchronize()
gate = threading.Event()
with profile(activities=BOTH) as prof:
    with record_function("## two products ##"):
        torch.sim.launch_host_function(lambda: gate.wait(60))
        y = x @ x
        side.wait_stream(torch.sim.current_stream())
        with torch.sim.stream(side):
            z = x @ y
    time.sleep(0.005)  # the side stream waits for at least as long
    gate.set()
    z.add_(1)
    torch.sim.synchronize()
events = exported(prof)
ranges = [event for event in of(events, "gpu_user_annotation") if event["name"] == "## two products ##"]
assert {event["tid"] for event in ranges} == {0, side.stream_id}, ranges
for event in ranges:
    kernels = [row for row in of(events, "kernel") if row["tid"] == event["tid"] and row["name"] == "bringup_mm"]
    assert len(kernels) == 1 and event["ts"] <= kernels[0]["ts"], kernels
    assert kernels[0]["ts"] + kernels[0]["dur"] <= event["ts"] + event["dur"] + 0.002
waits = [event for event in of(events, "gpu_user_annotation") if event["name"] == "wait"]
assert [event["tid"] for event in waits] == [side.stream_id] and waits[0]["dur"] > 1000, waits
assert [event["name"] for event in of(events, "privateuse1_runtime")].count("synchronize") >= 2
# Waiting is not work: it counts in no sum.
total = sum(event.self_device_time_total for event in prof.key_averages() if not event.is_user_annotation)
assert total < 0.9 * sum(event["dur"] for event in (*waits, *of(events, "kernel"))), total
"""

# A chip whose time is a formula: rows show that time, to the nanosecond, whatever the host needed.
DESCRIBED_CHIP = """
a, b = torch.ones(64, 512, device="sim"), torch.ones(512, 256, device="sim")
a @ b
torch.sim.synchronize()
start, end = torch.sim.Event(enable_timing=True), torch.sim.Event(enable_timing=True)
with profile(activities=BOTH) as prof:
    start.record()
    for _ in range(5):
        a @ b
    c = torch.ones(1000, 1000, device="sim").cpu()
    end.record()
    torch.sim.synchronize()
events = exported(prof)
rows = of(events, "kernel", "gpu_memcpy")
products = [row for row in rows if row["name"] in ("bringup_mm", "aten::mm")]
flops, nbytes = 2 * 64 * 512 * 256, 4 * (64 * 512 + 512 * 256 + 64 * 256)
expected = 5 + 1e6 * max(flops / 0.5e12, nbytes / 32e9)
assert len(products) == 5 and all(abs(row["dur"] - expected) < 0.002 for row in products), (expected, products)
assert all(row["args"]["flops"] == flops and row["args"]["bytes"] == nbytes for row in products), products
ops = {event["args"]["External id"]: event["name"] for event in of(events, "cpu_op")}
assert [ops[row["args"]["External id"]] for row in products] == ["aten::mm"] * 5
(copy,) = of(events, "gpu_memcpy")
assert abs(copy["dur"] - (10 + 1e6 * 4e6 / 4e9)) < 0.002 and copy["args"]["bytes"] == 4_000_000, copy
busy = sum(row["dur"] for row in rows)  # they do not overlap: one stream
assert abs(busy / (1000 * start.elapsed_time(end)) - 1) < 0.001, (busy, start.elapsed_time(end))
"""

# Wall time: the union of what ran on a stream against events that were recorded apart from the profile.
AGREES_WITH_EVENTS = """
x = torch.randn(500, 500, device="sim")
x @ x
def measured():
    start, end = torch.sim.Event(enable_timing=True), torch.sim.Event(enable_timing=True)
    torch.sim.synchronize()
    with profile(activities=BOTH) as prof:
        torch.sim._sleep(3)  # everything below is queued before the first of it runs
        start.record()
        for _ in range(12):
            x @ x
        end.record()
        torch.sim.synchronize()
    busy = sum(event.device_time_total for event in prof.key_averages() if event.key == "bringup_mm")
    return busy / (1000 * start.elapsed_time(end))
ratios = []
while not ratios or abs(ratios[-1] - 1) > 0.02:  # another process may take the core between two kernels
    ratios.append(measured())
    assert len(ratios) < 8, ratios
"""

SCHEDULE = """
step = training_step()
seen = []
def ready(prof):
    seen.append([row for row in of(exported(prof), "kernel")])
with profile(activities=BOTH, schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=ready) as prof:
    for _ in range(8):
        step()
        prof.step()
assert len(seen) == 2 and len(seen[0]) == len(seen[1]) > 30, [len(rows) for rows in seen]
"""

MEMORY = """
torch.ones(1, device="sim")
with profile(activities=BOTH, profile_memory=True, record_shapes=True, with_stack=True) as prof:
    x = torch.ones(1000, 1000, device="sim")
    y = x + 1
    del x
averages = {event.key: event for event in prof.key_averages()}
assert averages["aten::add"].self_device_memory_usage >= 4_000_000, averages["aten::add"]
points = [event for event in exported(prof) if event["name"] == "[memory]" and event["args"]["Device Type"] == 20]
assert [event["args"]["Bytes"] > 0 for event in points] == [True, True, False], points
for before, after in zip(points, points[1:]):
    assert after["args"]["Total Allocated"] - before["args"]["Total Allocated"] == after["args"]["Bytes"]
prof.export_memory_timeline(os.path.join(tempfile.mkdtemp(), "memory.json"), device="sim:0")
"""

THREADS = """
x = torch.randn(64, 64, device="sim")
x @ x
def work(n):
    with torch.sim.stream(torch.sim.Stream()):
        for _ in range(50):
            x @ x
    torch.sim.synchronize()
with profile(activities=BOTH) as prof:
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
rows = of(exported(prof), "kernel")
assert len(rows) == 200 and len({row["tid"] for row in rows}) == 4, collections.Counter(row["tid"] for row in rows)
assert len({row["args"]["correlation"] for row in rows}) == 200
"""

BETWEEN_DEVICES = """
x, y = torch.randn(64, 64, device="sim:0"), torch.randn(64, 64, device="sim:1")
x.to("sim:1"), y @ y
torch.sim.synchronize(1)
with profile(activities=BOTH) as prof:
    z = x.to("sim:1")
    y @ z
    torch.sim.synchronize(1)
events = exported(prof)
ops = {event["args"]["External id"]: event["name"] for event in of(events, "cpu_op")}
rows = of(events, "kernel", "gpu_memcpy")
found = [(row["pid"], row["name"], ops.get(row["args"].get("External id"))) for row in rows]
assert found == [(1, "copy between devices", "aten::copy_"), (1, "bringup_mm", "aten::mm")], found
assert rows[0]["args"]["bytes"] == 4 * 64 * 64 and arrows_are_right(events, rows) == 2
"""

MARKERS = """
nvtx = torch.sim.nvtx
x = torch.randn(64, 64, device="sim")
x @ x
with profile(activities=BOTH) as prof:
    assert nvtx.range_push("outer") == 0 and nvtx.range_push("inner") == 1
    x @ x
    assert nvtx.range_pop() == 1 and nvtx.range_pop() == 0 and nvtx.range_pop() == -1
    with nvtx.range("number {}", 7):
        x + x
    @nvtx.range("a function")
    def add():
        x - x
    add(), add()
    nvtx.mark("here")
    number = nvtx.range_start("apart")
    nvtx.range_end(number)
    torch.sim.synchronize()
try:
    nvtx.range_end(number)
except ValueError as error:
    assert "nobody has closed" in str(error)
else:
    raise SystemExit("closed twice")
events = exported(prof)
names = collections.Counter(event["name"] for event in of(events, "user_annotation"))
assert names == {"outer": 1, "inner": 1, "number 7": 1, "a function": 2, "here": 1, "apart": 1}, names
(inner,) = [event for event in of(events, "gpu_user_annotation") if event["name"] == "inner"]
(product,) = [row for row in of(events, "kernel") if row["name"] == "bringup_mm"]
assert inner["tid"] == product["tid"] and abs(inner["ts"] - product["ts"]) < 0.01, (inner, product)
"""

OPENED_INSIDE = """
with profile(activities=BOTH) as prof:
    x = torch.ones(8, device="sim:1")
    (x + x).sum().item()
rows = of(exported(prof), "kernel")
assert {row["pid"] for row in rows} == {1} and len(rows) >= 2, rows
"""

COMPILED = """
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to("sim")
compiled = torch.compile(model, backend="bringup")
x = torch.randn(16, 64, device="sim")
compiled(x)
torch.sim.synchronize()
with profile(activities=BOTH) as prof:
    with record_function("## model ##"):
        compiled(x)
rows = of(exported(prof), "kernel")
assert rows and all(row["args"]["flops"] > 0 for row in rows), rows
assert any(event.key == "## model ##" and event.device_time_total > 0 for event in prof.key_averages())
"""

REPLAYED = """
x = torch.randn(64, 64, device="sim")
graph = torch.sim.Graph()
with torch.sim.graph(graph):
    y = (x @ x).relu()
with profile(activities=BOTH) as prof:
    with record_function("## replay ##"):
        graph.replay()
    torch.sim.synchronize()
events = exported(prof)
assert {row["name"] for row in of(events, "kernel")} == {"bringup_mm", "bringup_relu"}, of(events, "kernel")
(replay,) = [event for event in of(events, "cpu_op") if event["name"] == "Graph.replay"]
assert {row["args"]["External id"] for row in of(events, "kernel")} == {replay["args"]["External id"]}, replay
assert any(event["name"] == "## replay ##" for event in of(events, "gpu_user_annotation"))
"""

TRACED_TWICE = """
x = torch.ones(4, device="sim")
with torch.sim._trace() as trace:
    with profile(activities=BOTH) as prof:
        x + x
assert any(event.key == "aten::add" for event in prof.key_averages()) and len(trace.records) == 1
assert not of(exported(prof), "kernel")
"""

CPU_ONLY = """
step = training_step()
with profile(activities=[ProfilerActivity.CPU]) as prof:
    step()
assert not of(exported(prof), "kernel", "privateuse1_runtime")
"""

PROGRAMS = {
    "a training step": TRAINING_STEP,
    "ranges, streams and waits": RANGES_STREAMS_AND_WAITS,
    "agrees with events": AGREES_WITH_EVENTS,
    "a schedule": SCHEDULE,
    "memory": MEMORY,
    "threads": THREADS,
    "a copy between devices": BETWEEN_DEVICES,
    "markers": MARKERS,
    "a device that opens inside": OPENED_INSIDE,
    "a compiled model": COMPILED,
    "a replayed graph": REPLAYED,
    "the CPU only": CPU_ONLY,
}
