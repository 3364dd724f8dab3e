"""The numbers of benchmarks/riscv.py that are bars: exact, so a test can hold them."""

from __future__ import annotations

import pytest
import torch

import bringup
from benchmarks.riscv_models import WORKLOADS, Workload
from benchmarks.riscv_naive import naive_source
from benchmarks.riscv_naive_run import run_naive

BARS = [(work, vector) for work in WORKLOADS for vector in work.bars]


@pytest.mark.parametrize(("work", "vector"), BARS, ids=[f"{work.name}, {vector}" for work, vector in BARS])
def test_instructions_stay_below_the_bar(work: Workload, vector: int) -> None:
    torch._dynamo.reset()
    model, x = work.build()
    backend = bringup.Backend(target="riscv", vector=vector)
    with torch.no_grad():
        result = torch.compile(model, backend=backend)(x)
        torch.testing.assert_close(result, model(x))
    (report,) = backend.reports()
    assert report.instructions <= work.bars[vector]
    assert bool(report.lane_beats) == bool(vector)


@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work.name)
def test_naive_loops_compute_the_model(work: Workload) -> None:
    """What is beaten must be right."""
    model, x = work.build()
    (result,), instructions, _ = run_naive(naive_source(model, (x,)), (x,), 0, "zig", ("-O3",))
    with torch.no_grad():
        torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)
    assert instructions > 0
