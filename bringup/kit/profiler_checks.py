"""What ``torch.profiler`` shows of a device: ``bringup check --level profiler``."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.kit.driver_checks import Skip, expect

if TYPE_CHECKING:
    import torch
    from torch.profiler import profile

#: How far the time of rows may be from that of events around them.
_AGREES = 0.02
_TRIES = 8


def _profiled(device: torch.device, work: Callable[[], Any], memory: bool = False) -> tuple[profile, list[Any]]:
    """A profile of CPU and device while ``work`` runs, and its exported events."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    module = torch.get_device_module(device)
    work()  # the first call compiles
    module.synchronize(device)
    activities = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
    with profile(activities=activities, profile_memory=memory, acc_events=True) as found:
        work()
        module.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        return found, json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def _rows(events: list[Any], *categories: str) -> list[Any]:
    return [event for event in events if event.get("cat") in categories and event["ph"] == "X"]


def _work(device: torch.device) -> Callable[[], Any]:
    import torch

    a, b = torch.randn(96, 64), torch.randn(64, 96)
    return lambda: ((a.to(device) @ b.to(device)).relu() + 1).sum().cpu()


def work_has_rows(device: torch.device) -> None:
    """Kernels and copies of a few ops are rows of the device, each with a time and a name."""
    _, events = _profiled(device, _work(device))
    rows = _rows(events, "kernel", "gpu_memcpy")
    if not rows:
        raise Skip("the driver records no traces, and its work has no events")
    expect(all(row["dur"] >= 0 and row["name"] for row in rows), f"a row without time or name: {rows}")
    expect({row["pid"] for row in rows} == {device.index}, f"rows of other devices than {device}: {rows}")
    copies = _rows(events, "gpu_memcpy")
    wrong = [row for row in copies if not row["args"].get("bytes")]
    expect(not wrong, f"copies without their bytes: {wrong}")


def rows_belong_to_ops(device: torch.device) -> None:
    """Each row is linked to the op that asked for it, begins no earlier than it was asked for, and has an arrow."""
    _, events = _profiled(device, _work(device))
    rows = _rows(events, "kernel", "gpu_memcpy")
    if not rows:
        raise Skip("no rows")
    ops = {event["args"]["External id"]: event for event in _rows(events, "cpu_op")}
    asked = {event["args"]["correlation"]: event for event in _rows(events, "privateuse1_runtime")}
    arrows = {event["id"] for event in events if event.get("cat") == "ac2g" and event["ph"] == "s"}
    for row in rows:
        arguments = row["args"]
        expect(arguments.get("External id") in ops, f"{row['name']} belongs to no op: {row}")
        expect(arguments["correlation"] in asked, f"nothing asked for {row['name']}: {row}")
        expect(arguments["correlation"] in arrows, f"{row['name']} has no arrow: {row}")


def rows_of_a_stream_are_in_order(device: torch.device) -> None:
    """A stream does one thing after the other: its rows do not overlap."""
    _, events = _profiled(device, _work(device))
    rows = sorted(_rows(events, "kernel", "gpu_memcpy"), key=lambda row: (row["tid"], row["ts"]))
    if not rows:
        raise Skip("no rows")
    for first, second in itertools.pairwise(rows):
        together = first["tid"] == second["tid"] and second["ts"] + 0.002 < first["ts"] + first["dur"]
        expect(not together, f"two rows of a stream overlap: {first} and {second}")


def times_agree_with_events(device: torch.device) -> None:
    """The rows of queued products add up to the time between events around them, within 2 %; the best of 8 tries."""
    import torch

    module = torch.get_device_module(device)
    x = torch.randn(256, 256, device=device)
    seen = []
    for _ in range(_TRIES):
        start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)

        def work(start: Any = start, end: Any = end) -> None:
            module._sleep(3)  # everything below is queued before the first of it runs, where work can be queued
            start.record()
            for _ in range(10):
                x @ x
            end.record()

        _, events = _profiled(device, work)
        rows = _rows(events, "kernel", "gpu_memcpy")
        if not _rows(events, "kernel"):
            raise Skip("no kernels: the device works while the host asks, and nothing is queued that could be added up")
        elapsed = 1000 * start.elapsed_time(end)
        seen.append(sum(row["dur"] for row in rows) / elapsed if elapsed else 0)
        if abs(seen[-1] - 1) <= _AGREES:
            return
    ratios = ", ".join(f"{ratio:.3f}" for ratio in seen)
    expect(False, f"rows / events: {ratios}; a host that is slower than the device leaves gaps between kernels")


def tables_have_device_times(device: torch.device) -> None:
    """key_averages() has the device's time for ops."""
    found, events = _profiled(device, _work(device))
    if not _rows(events, "kernel"):
        raise Skip("no rows")
    times = {event.key: event.device_time_total for event in found.key_averages()}
    expect(times.get("aten::mm", 0) > 0, f"aten::mm has no device time: {times}")


def memory_is_reported(device: torch.device) -> None:
    """With profile_memory=True each allocation is there, with what is allocated in all."""
    import torch

    def work() -> None:
        x = torch.empty(1 << 20, dtype=torch.uint8, device=device)
        del x

    _, events = _profiled(device, work, memory=True)
    points = [e["args"] for e in events if e["name"] == "[memory]" and e["args"]["Device Type"] == 20]
    sizes = [point["Bytes"] for point in points]
    expect(len(sizes) == 2 and sizes[0] == -sizes[1] >= 1 << 20, f"one allocation and its end, not {sizes}")


CHECKS = (
    work_has_rows,
    rows_belong_to_ops,
    rows_of_a_stream_are_in_order,
    times_agree_with_events,
    tables_have_device_times,
    memory_is_reported,
)
