"""PyTorch's profiler on the device: times from the device's events, and no promises beyond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = """
import time, torch
x = torch.randn(200, 200, device="sim")
(x @ x + 1).sum().item()
began = time.perf_counter()
with torch.autograd.profiler.profile(use_device="sim") as profile:
    for _ in range(3):
        y = x @ x + 1
    torch.randn(3).sum()
    with torch.sim.stream(torch.sim.Stream()):
        torch.sim._sleep(2)
        z = torch.nn.functional.relu(y)
    torch.sim.synchronize()
elapsed = 1e6 * (time.perf_counter() - began)
times = {event.key: event.device_time_total for event in profile.key_averages()}
assert times["aten::mm"] > 0 and times["aten::add"] > 0, times
assert all(0 <= value <= elapsed for value in times.values()), (elapsed, times)
assert "aten::mm" in profile.key_averages().table(sort_by="self_device_time_total")
"""


@pytest.mark.parametrize("mode", ["kernels", "library"])
def test_the_profiler_shows_device_times(run_python: Callable[..., Any], mode: str) -> None:
    result = run_python(PROGRAM, env={"BRINGUP_SIM": f"mode={mode}"})
    assert "Exception" not in result.stderr, result.stderr[:2000]


def test_errors_of_queued_work_are_not_lost_in_the_profiler(run_python: Callable[..., Any]) -> None:
    run_python(
        """
        import threading, torch
        weights, bad = torch.zeros(8, 4, device="sim"), torch.tensor([3, 9], device="sim")
        torch.nn.functional.embedding(bad[:1], weights)
        stream, gate = torch.sim.Stream(), threading.Event()
        torch.sim.launch_host_function(lambda: gate.wait(60), stream)
        with torch.autograd.profiler.profile(use_device="sim") as profile, torch.sim.stream(stream):
            torch.nn.functional.embedding(bad, weights)
            gate.set()
        profile.key_averages()
        try:
            stream.synchronize()
        except IndexError as error:
            assert "index 9" in str(error)
        else:
            raise AssertionError("the index error was lost")
        """,
        env={"BRINGUP_SIM": "mode=kernels"},
    )
