"""Programs with streams for the sanitizer: with one mistake each, and without any."""

from __future__ import annotations

SETUP = """
import torch
from bringup.sanitizer import StreamRace
device = torch.device("sim")
main, side, third = torch.sim.current_stream(), torch.sim.Stream(), torch.sim.Stream()
on = torch.sim.stream
"""

#: Name → (program, what the error says). The line that ends in ``# second`` is the one that must be blamed, the line
#: that ends in ``# first`` the one it is in conflict with.
MISTAKES: dict[str, tuple[str, str]] = {
    "a result is read by a stream that does not wait": (
        """
x = torch.ones(1000, device="sim") # first
with on(side):
    y = x + 1 # second
""",
        "aten::add reads on stream 1",
    ),
    "an input is overwritten while a stream reads it": (
        """
x = torch.ones(1000, device="sim")
side.wait_stream(main)
with on(side):
    y = x * 2 # first
x.zero_() # second
""",
        "aten::zero_ writes on stream 0",
    ),
    "two streams write": (
        """
x = torch.empty(1000, device="sim")
with on(side):
    x.fill_(1) # first
with on(third):
    x.fill_(2) # second
""",
        "aten::fill_ writes on stream",
    ),
    "an event is recorded too early": (
        """
x = torch.ones(1000, device="sim")
event = torch.sim.Event()
event.record()
x.mul_(2) # first
side.wait_event(event)
with on(side):
    y = x + 1 # second
""",
        "aten::add reads on stream 1",
    ),
    "the wrong stream waits": (
        """
x = torch.ones(1000, device="sim") # first
third.wait_stream(main)
with on(side):
    y = x + 1 # second
""",
        "aten::add reads on stream 1",
    ),
    "an event that was never recorded": (
        """
x = torch.ones(1000, device="sim") # first
side.wait_event(torch.sim.Event())
with on(side):
    y = x + 1 # second
""",
        "aten::add reads on stream 1",
    ),
    "memory is freed while a stream uses it": (
        """
x = torch.ones(1000, device="sim")
side.wait_stream(main)
with on(side):
    y = x + 1 # first
del x # freed
z = torch.ones(1000, device="sim") # second
""",
        "call tensor.record_stream(stream)",
    ),
    "the host reads a copy that is under way": (
        """
x = torch.ones(1000, device="sim")
here = torch.empty(1000, pin_memory=True)
here.copy_(x, non_blocking=True) # first
total = here.numpy().sum() # second
""",
        "Tensor.numpy reads on the host",
    ),
    "the host overwrites what is being copied": (
        """
here = torch.ones(1000).pin_memory()
x = here.to("sim", non_blocking=True) # first
here.zero_() # second
""",
        "aten::zero_ writes on the host",
    ),
    "the host waits for the wrong stream": (
        """
here = torch.empty(1000, pin_memory=True)
x = torch.ones(1000, device="sim")
side.wait_stream(main)
with on(side):
    here.copy_(x, non_blocking=True) # first
main.synchronize()
print(here + 1) # second
""",
        "aten::add reads on the host",
    ),
    "parameters change under a forward pass": (
        """
model = torch.nn.Linear(30, 30).to("sim")
x = torch.ones(4, 30, device="sim")
side.wait_stream(main)
with torch.no_grad(), on(side):
    y = model(x) # first
with torch.no_grad():
    model.weight.mul_(0.5) # second
""",
        "aten::mul_ writes on stream 0",
    ),
    "parts that overlap by one row": (
        """
x = torch.zeros(10, 100, device="sim")
side.wait_stream(main)
with on(side):
    x[:6].add_(1) # first
x[5:].add_(1) # second
""",
        "aten::add_ writes on stream 0",
    ),
    "another device's side stream": (
        """
x = torch.ones(1000, device="sim:0")
with on(torch.sim.Stream("sim:1")):
    y = x.to("sim:1") # first
z = y + 1 # second
""",
        "aten::add reads on stream 0 of device 1",
    ),
    "a wait that came before the work": (
        """
side.wait_stream(main)
x = torch.ones(1000, device="sim") # first
with on(side):
    y = x + 1 # second
""",
        "aten::add reads on stream 1",
    ),
    "out= on another stream": (
        """
x, out = torch.ones(1000, device="sim"), torch.empty(1000, device="sim")
side.wait_stream(main)
with on(side):
    torch.add(x, 1, out=out) # first
total = out.sum() # second
""",
        "aten::sum reads on stream 0",
    ),
    "a number is read on the stream that did not make it": (
        """
x = torch.ones(1000, device="sim")
side.wait_stream(main)
with on(side):
    total = x.sum() # first
print(total.item()) # second
""",
        "reads on stream 0",
    ),
    "a buffer is filled again while it is copied": (
        """
buffer = torch.empty(1000, pin_memory=True)
for n in range(1):
    buffer.fill_(n)
    there = buffer.to("sim", non_blocking=True) # first
buffer.fill_(1) # second
""",
        "aten::fill_ writes on the host",
    ),
    "a tensor of a DLPack capsule on another stream": (
        """
x = torch.ones(1000, device="sim") # first
y = torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))
with on(side):
    z = y + 1 # second
""",
        "aten::add reads on stream 1",
    ),
    "gradients are used before backward's stream is waited for": (
        """
x = torch.ones(100, device="sim", requires_grad=True)
side.wait_stream(main)
with on(side):
    loss = (x * 3).sum()
    loss.backward()
main.wait_stream(side)
with on(side):
    x.grad.mul_(2) # first
total = x.grad + 1 # second
""",
        "aten::add reads on stream 0",
    ),
}

CORRECT: dict[str, str] = {
    "streams that wait for each other": """
x = torch.ones(1000, device="sim")
for _ in range(3):
    side.wait_stream(main)
    with on(side):
        x.mul_(2)
    main.wait_stream(side)
    x.add_(1)
""",
    "two readers": """
x = torch.ones(1000, device="sim")
for stream in (side, third):
    stream.wait_stream(main)
    with on(stream):
        x + 1
y = x * 2
""",
    "events, and the host between": """
x = torch.ones(1000, device="sim")
event = torch.sim.Event()
event.record()
event.synchronize()
with on(side):
    x.add_(1)
    done = torch.sim.Event()
    done.record()
while not done.query():
    pass
x.add_(1)
with on(third):
    torch.sim.synchronize()
    x.add_(1)
    third.synchronize()
x.add_(1).sum().item()
with on(side):
    x.zero_()
while not side.query():
    pass
x + 1
""",
    "memory that was told of": """
for _ in range(10):
    x = torch.ones(1000, device="sim")
    side.wait_stream(main)
    with on(side):
        y = x + 1
    x.record_stream(side)
    del x
    main.wait_stream(side)
    del y
""",
    "memory that comes back in order": """
for _ in range(10):
    x = torch.ones(1000, device="sim")
    side.wait_stream(main)
    with on(side):
        total = x.sum()
    main.wait_stream(side)
    del x
    total.item()
""",
    "pinned batches": """
for _ in range(20):
    batch = torch.ones(1000).pin_memory()
    batch.add_(1)
    there = batch.to("sim", non_blocking=True)
    back = torch.empty(1000, pin_memory=True)
    back.copy_(there + 1, non_blocking=True)
    torch.sim.current_stream().synchronize()
    assert back.numpy().sum() == 3000
    batch.zero_()
""",
    "a prefetching loop": """
batches = [torch.ones(100, 30).pin_memory() for _ in range(6)]
model = torch.nn.Linear(30, 10).to("sim")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ahead = None
for batch in [*batches, None]:
    now = ahead
    if batch is not None:
        with on(side):
            ahead = batch.to("sim", non_blocking=True)
    if now is not None:
        main.wait_stream(side)
        now.record_stream(main)
        model(now).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "halves and columns": """
x = torch.zeros(10, 100, device="sim")
side.wait_stream(main)
with on(side):
    x[:5].add_(1)
x[5:].add_(1)
torch.sim.synchronize()
with on(side):
    x[:, ::2].add_(1)
x[:, 1::2].add_(1)
""",
    "backward on the stream of forward": """
model = torch.nn.Sequential(torch.nn.Linear(30, 30), torch.nn.ReLU(), torch.nn.Linear(30, 1)).to("sim")
x = torch.ones(8, 30, device="sim")
side.wait_stream(main)
for _ in range(3):
    with on(side):
        loss = model(x).sum()
    main.wait_stream(side)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(parameter.grad)
            parameter.grad = None
    side.wait_stream(main)
""",
    "devices that copy": """
x = torch.ones(1000, device="sim:0")
y = x.to("sim:1")
x.zero_()
y.add_(1)
x.copy_(y)
""",
    "a capture with two streams": """
x = torch.ones(1000, device="sim")
graph = torch.sim.Graph()
with torch.sim.graph(graph):
    y = x + 1
    side.wait_stream(torch.sim.current_stream())
    with on(side):
        z = y * 2
    torch.sim.current_stream().wait_stream(side)
    w = z + y
graph.replay()
w.sum().item()
""",
    "a compiled model": """
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(30, 30), torch.nn.GELU()).to("sim"))
x = torch.ones(4, 30, device="sim")
side.wait_stream(main)
with on(side):
    y = model(x)
main.wait_stream(side)
y.sum().backward()
""",
    "sizes that the host has waited for": """
x = torch.arange(100, device="sim")
found = x[x > 50].nonzero()
with on(side):
    y = x + 1
""",
    "a host that blocks by a copy": """
x = torch.ones(1000, device="sim")
x.cpu()
with on(side):
    x.add_(1)
    x.tolist()
x.add_(1)
""",
}
