"""`make demo`: trains a small CNN and a small transformer on the simulated device and says what ran where.

python examples/demo.py                 # the simulator, a few seconds per model
python examples/demo.py --driver upmem  # another driver
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

MODEL_TITLES = {"cnn": "CNN with BatchNorm, AdamW", "transformer": "TransformerEncoder, AdamW"}


class Screen:
    """Rich output where rich is installed, plain lines where it is not."""

    def __init__(self) -> None:
        try:
            from rich.console import Console

            self.console: Any = Console(highlight=False)
        except ImportError:
            self.console = None

    def say(self, text: str = "") -> None:
        if self.console:
            self.console.print(text, markup=False)
        else:
            print(text)

    def title(self, text: str) -> None:
        if self.console:
            self.console.rule(text, align="left")
        else:
            print(f"\n== {text}")

    def progress(self, steps: int) -> Iterator[tuple[int, Callable[[str], None]]]:
        """Yields (step, note): note() sets the text beside the bar."""
        if self.console is None:
            for step in range(steps):
                yield step, lambda text, step=step: print(f"  step {step + 1:3}/{steps}  {text}")
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        with Progress(BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), console=self.console) as bar:
            task = bar.add_task("", total=steps)
            for step in range(steps):
                yield step, lambda text: bar.update(task, description=text)
                bar.advance(task)

    def table(self, head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> None:
        lines = [tuple(str(cell) for cell in row) for row in rows]
        if self.console:
            from rich.table import Table

            table = Table()
            for index, name in enumerate(head):
                table.add_column(name, justify="left" if index == 0 else "right")
            for line in lines:
                table.add_row(*line)
            self.console.print(table)
            return
        widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
        for line in [head, *lines]:
            print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def train(name: str, device: Any, steps: int, screen: Screen) -> tuple[float, float]:
    """Trains one model; returns the mean loss of the first and of the last five steps."""
    import models
    import torch

    model, data = models.build(name).to(device), models.Data(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    start = time.perf_counter()
    for step, note in screen.progress(steps):
        inputs, targets = (tensor.to(device) for tensor in data.batch(step))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 20 == 0 or step == steps - 1:
            note(f"loss {losses[-1]:.4f}")
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    screen.say(f"  loss {first:.3f} -> {last:.3f} in {steps} steps, {time.perf_counter() - start:.1f} s of your time")
    return first, last


def describe(device: Any, screen: Screen) -> None:
    """Which driver and which mode: a simulator never passes for hardware."""
    import torch

    from bringup import _C

    module = getattr(torch, device.type)
    driver, index = _C.driver_of(device.index or 0)
    screen.title("device")
    options = os.environ.get(f"BRINGUP_{driver.upper()}")
    screen.say(f'torch.device("{device.type}"): driver "{driver}", device {index} of {module.device_count()}')
    screen.say(
        f"{module.get_device_name(device)}"
        + (" (a SIMULATOR: no accelerator hardware is used)" if driver == "sim" else "")
    )
    screen.say(
        f"options: {options or 'defaults'}" + ("" if options else f" (set BRINGUP_{driver.upper()} to change them)")
    )
    screen.say(str(module.get_device_properties(device)))


def route_of(op: str, routes: dict[str, str], fell_back: set[str]) -> str:
    """library, native, random, composite … as the core registered it; fallback where the ledger saw it."""
    base = op.split(".")[0]
    if op in fell_back or base in fell_back:
        return "CPU fallback"
    return routes.get(op) or routes.get(base) or "composite"


def what_ran_where(counts: Counter[str], screen: Screen) -> None:
    import bringup
    from bringup import _C

    ledger = bringup.fallbacks()
    fell_back = {row.op for row in ledger}
    routes = _C.routes()
    groups: dict[str, Counter[str]] = {}
    for op, calls in counts.items():
        groups.setdefault(route_of(op, routes, fell_back), Counter())[op] += calls
    screen.title("what ran where (one training step of each model)")
    screen.table(
        ("route", "ops", "calls", "most used"),
        (
            (route, len(ops), ops.total(), ", ".join(op.removeprefix("aten::") for op, _ in ops.most_common(3)))
            for route, ops in sorted(groups.items(), key=lambda item: -item[1].total())
        ),
    )
    screen.title("fallback ledger (whole demo): ops that ran on the CPU because the device has no route")
    if not ledger:
        screen.say("empty: nothing fell back")
        return
    rows = ((row.op, row.calls, f"{row.bytes:,}", f"{row.ms:.2f}") for row in ledger[:12])
    screen.table(("op", "calls", "bytes", "ms"), rows)
    if len(ledger) > 12:
        screen.say(f"… and {len(ledger) - 12} more: print(bringup.fallbacks())")


def count_one_step(name: str, device: Any) -> Counter[str]:
    """How often each op reaches the device in one forward, backward and optimizer step."""
    import models
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    model = models.build(name).to(device)
    inputs, targets = (tensor.to(device) for tensor in models.Data(name).batch(0))
    optimizer = torch.optim.AdamW(model.parameters())
    counts: Counter[str] = Counter()

    class CountOps(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            counts[func.name()] += 1
            return func(*args, **(kwargs or {}))

    with CountOps():
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", help="driver to use (default: BRINGUP_DRIVERS, else sim)")
    parser.add_argument("--steps", type=int, default=500, help="training steps per model (default: 500)")
    options = parser.parse_args()
    if options.steps < 10:
        parser.error("--steps must be at least 10")
    if options.driver:
        os.environ["BRINGUP_DRIVERS"] = options.driver
    driver = os.environ.setdefault("BRINGUP_DRIVERS", "sim").split(",")[0]

    import torch  # after the choice of driver: importing torch activates it

    import bringup

    try:
        device = torch.device(bringup.device(driver))
        torch.empty(1, device=device)
    except (RuntimeError, ValueError, ModuleNotFoundError) as error:
        sys.exit(f"driver {driver!r} cannot be used: {error}")

    screen = Screen()
    describe(device, screen)
    fell = []
    for name, title in MODEL_TITLES.items():
        screen.title(f"training: {title}")
        fell.append(train(name, device, options.steps, screen))
    what_ran_where(sum((count_one_step(name, device) for name in MODEL_TITLES), Counter()), screen)
    screen.title("memory")
    screen.say(getattr(torch, device.type).memory_summary(device))
    if not all(last < first for first, last in fell):
        sys.exit("the loss did not fall: something is wrong with this device")


if __name__ == "__main__":
    main()
