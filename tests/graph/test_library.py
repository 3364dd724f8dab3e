"""Graphs on a device whose matrix products come from a library: its kernels stand in the plan like our own."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests import fork_server

ROOT = Path(__file__).resolve().parents[2]
BLAS = ROOT / "examples" / "vendor_blas" / "blas_driver.py"

PROGRAM = """
import torch, bringup
(driver,) = bringup.active_drivers()
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8)).to(driver.device_name)
x = torch.randn(32, 64, device=driver.device_name)
backend = bringup.Backend(strict=True)
for dynamic in (False, True):
    torch._dynamo.reset()
    fast = torch.compile(model, backend=backend, dynamic=dynamic)
    for rows in (32, 7, 1):
        model.zero_grad()
        fast(x[:rows]).square().sum().backward()
        found = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x[:rows]).square().sum().backward()
        torch.testing.assert_close(found, [p.grad for p in model.parameters()])
names = {step.kernel.name for graph in backend.graphs for step in graph.structures[0].variant.kernel_calls}
assert any("blas" in name or "vendor" in name for name in names), names
"""


@pytest.mark.skipif(
    not importlib.util.find_spec("scipy_openblas32"), reason="OpenBLAS is not installed: pip install 'bringup[blas]'"
)
def test_matrix_products_of_a_library() -> None:
    environment = {**os.environ, "BRINGUP_DRIVERS": str(BLAS), "BRINGUP_FALLBACK": "error"}
    done = fork_server.run(PROGRAM, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
