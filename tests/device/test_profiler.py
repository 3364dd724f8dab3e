"""PyTorch's profiler on the device: rows of kernels and copies from the device's trace, and times from its events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.device.programs_profiler import DESCRIBED_CHIP, PROGRAMS, SETUP, TRACED_TWICE


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_profiler_shows_what_the_device_ran(name: str, run_python: Callable[..., Any]) -> None:
    run_python(SETUP + PROGRAMS[name], env={"BRINGUP_SIM": "mode=kernels,devices=2"})


@pytest.mark.parametrize("mode", ["kernels", "library"])
def test_rows_of_a_described_chip_take_its_time(mode: str, run_python: Callable[..., Any]) -> None:
    run_python(SETUP + DESCRIBED_CHIP, env={"BRINGUP_SIM": f"profile=edge_npu,mode={mode}"})


AT_ONCE = """
a = torch.ones(20, 30, device="riscv")
(a @ a.t()).cpu()
start, end = torch.riscv.Event(enable_timing=True), torch.riscv.Event(enable_timing=True)
start.record()
with profile(activities=BOTH) as prof:
    b = a @ a.t()
end.record()
events = exported(prof)
ops = {event["args"]["External id"]: event["name"] for event in of(events, "cpu_op")}
(row,) = of(events, "kernel")
assert (ops[row["args"]["External id"]], row["name"]) == ("aten::mm", "bringup_mm"), row
assert abs(row["dur"] / (1000 * start.elapsed_time(end)) - 1) < 0.02, (row, start.elapsed_time(end))
"""


def test_a_device_without_traces_that_works_at_once_has_rows(run_python: Callable[..., Any]) -> None:
    run_python(SETUP + AT_ONCE, env={"BRINGUP_DRIVERS": "riscv"})


def test_a_device_that_is_traced_already_says_so(run_python: Callable[..., Any]) -> None:
    result = run_python(SETUP + TRACED_TWICE, env={"BRINGUP_SIM": "mode=kernels"})
    assert "sim:0 has no rows" in result.stderr
    assert "being traced already" in result.stderr


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


A_FAILURE = """
import torch
table, indices = torch.zeros(4, device="sim"), torch.tensor([1, 99], device="sim")
try:
    with torch.autograd.profiler.profile(use_device="sim"), torch.sim.stream(torch.sim.Stream()):
        torch.sim._sleep(20)
        table[indices]
except IndexError as error:
    print(error)
"""


def test_a_failure_that_the_profiler_meets_at_its_end_is_an_error_and_no_crash(run_python: Callable[..., Any]) -> None:
    result = run_python(A_FAILURE, env={"BRINGUP_SIM": "mode=kernels"}, fresh=True)  # a fork skips what crashed
    assert "index 99 is out of range" in result.stdout
