"""What profiling a device costs beyond PyTorch's own profile of the CPU, and whether its times are right.

    python benchmarks/profiler.py --record profiler

Steps of a training loop run in turns: without a profile, with one of the CPU, with one of CPU and device. Each turn is
a profile of its own; CPU time of the process counts from its start until its end, because wall time means little where
other programs run. Then kernels are queued between two events, and their rows are added up.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch announces each profile on stderr otherwise

import torch
from recording import record
from torch.profiler import ProfilerActivity, profile

#: How much more a profile with the device may cost than one of the CPU, on a step of at least so many milliseconds.
BAR, LEAST_MS = 1.15, 20
#: How far the device time of rows may be from that of events around them.
AGREES = 0.02
CPU, DEVICE = ProfilerActivity.CPU, ProfilerActivity.PrivateUse1


def training_step(width: int, depth: int) -> Callable[[], None]:
    """A step that the device needs at least 20 ms for."""
    layers = [part for _ in range(depth) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(128, width, device="sim")

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def timed(step: Callable[[], None], activities: list[Any], steps: int) -> tuple[float, float]:
    """CPU and wall seconds of one step, from the start of the profile until its end."""
    torch.sim.synchronize()
    cpu, wall = time.process_time(), time.perf_counter()
    with profile(activities=activities) if activities else nullcontext():
        for _ in range(steps):
            step()
        torch.sim.synchronize()
    return (time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps


def agreement() -> float:
    """Device time of queued kernels by their rows, relative to events around them."""
    x = torch.randn(600, 600, device="sim")
    start, end = torch.sim.Event(enable_timing=True), torch.sim.Event(enable_timing=True)
    with profile(activities=[CPU, DEVICE]) as prof:
        torch.sim._sleep(3)  # everything below is queued before the first of it runs
        start.record()
        for _ in range(20):
            x @ x
        end.record()
        torch.sim.synchronize()
    busy = sum(event.self_device_time_total for event in prof.key_averages() if event.key == "bringup_mm")
    return busy / (1000 * start.elapsed_time(end))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--record", metavar="NAME", help="write results/NAME.json")
    options = parser.parse_args()
    step = training_step(options.width, options.depth)
    ways: dict[str, list[Any]] = {"no profile": [], "CPU": [CPU], "CPU and device": [CPU, DEVICE]}
    for activities in ways.values():
        timed(step, activities, 2)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, activities in ways.items():
            found[name].append(timed(step, activities, options.steps))
    print(f"{'':16}{'CPU ms':>10}{'wall ms':>10}   medians of a step, {options.rounds} rounds")
    steps = []
    for name, times in found.items():
        cpu, wall = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
        steps.append({"name": name, "CPU ms": cpu, "wall ms": wall})
        print(f"{name:16}{cpu:10.2f}{wall:10.2f}")
    if steps[0]["wall ms"] < LEAST_MS:
        print(f"a step takes less than {LEAST_MS} ms: what a profile costs there is not asked (--width, --depth)")
    cost = {}
    for place, clock in enumerate(("CPU", "wall")):
        pairs = zip(found["CPU and device"], found["CPU"], strict=True)
        cost[clock] = statistics.median(both[place] / cpu_only[place] for both, cpu_only in pairs)
        print(f"with the device / CPU only, {clock} time: {cost[clock]:.3f}   ({BAR} allowed)")
    ratios = sorted(agreement() for _ in range(options.rounds))
    agrees = {"median": statistics.median(ratios), "least": ratios[0], "most": ratios[-1]}
    allowed = f"{1 - AGREES:.2f} to {1 + AGREES:.2f} allowed"
    print(f"rows / events: median {agrees['median']:.4f}, from {ratios[0]:.4f} to {ratios[-1]:.4f}   ({allowed})")
    if options.record:
        data = {"rounds": options.rounds, "steps": steps, "cost": cost, "bar": BAR, "rows to events": agrees}
        print(record(options.record, data))


if __name__ == "__main__":
    main()
