"""A Python driver's own functions behind PyTorch ops: functional, in-place, out=, autograd, several drivers."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

DRIVER = str(Path(__file__).with_name("library_driver.py"))
PREAMBLE = """
import sys, torch, bringup, pytest
driver = next(d for d in bringup.active_drivers() if d.name == "library").driver
calls = sys.modules[type(driver).__module__].calls
device = bringup.device("library")

def called(*expected):
    assert tuple(calls) == expected, calls
    calls.clear()

torch.manual_seed(0)
a, b = torch.randn(3, 4), torch.randn(4, 5)
x, y = a.to(device), b.to(device)
calls.clear()
"""


@pytest.fixture
def run(run_python):
    def run(code: str, drivers: str = DRIVER):
        return run_python(PREAMBLE + code, env={"BRINGUP_DRIVERS": drivers})

    return run


def test_every_form_uses_the_drivers_function(run) -> None:
    run("""
torch.testing.assert_close((x @ y).cpu(), a @ b)
called("mm")
out = torch.empty(0, device=device)
assert torch.mm(x, y, out=out) is out and out.shape == (3, 5)
called("mm")
torch.testing.assert_close(out.cpu(), a @ b)
z = x + 2
called("add")
z.add_(x, alpha=3)
called("add")
torch.testing.assert_close(z.cpu(), a + 2 + 3 * a)
z += 1
called("add")
""")


def test_strides_and_broadcasting(run) -> None:
    run("""
torch.testing.assert_close((y.t() @ x.t()).cpu(), b.t() @ a.t())
torch.testing.assert_close((x[:, ::2] @ y[1::2]).cpu(), a[:, ::2] @ b[1::2])
torch.testing.assert_close((x + x[:1]).cpu(), a + a[:1])
called("mm", "mm", "add")
""")


def test_several_outputs(run) -> None:
    run("""
values, indices = x.sort(dim=1, descending=True)
called("sort")
expected = a.sort(dim=1, descending=True)
assert torch.equal(values.cpu(), expected.values) and torch.equal(indices.cpu(), expected.indices)
""")


def test_autograd(run) -> None:
    run("""
p = x.clone().requires_grad_()
calls.clear()
(p @ y).sum().backward()
assert calls.count("mm") == 2
torch.testing.assert_close(p.grad.cpu(), torch.ones(3, 5) @ b.t())
""")


def test_a_function_may_decline(run) -> None:
    run("""
torch.testing.assert_close((x.double() @ y.double()).cpu(), a.double() @ b.double())
called()
""")


def test_errors(run) -> None:
    run("""
with pytest.raises(RuntimeError, match="aten::mm: all tensors must be on one device"):
    torch.mm(x, b)
with pytest.raises(RuntimeError):
    torch.mm(x, x)
with pytest.raises(RuntimeError, match="add_.Tensor: self has shape"):
    x[:1].add_(x)
with pytest.raises(RuntimeError, match="can't be cast"):
    torch.add(x, x, out=torch.empty(3, 4, dtype=torch.int64, device=device))
""")


def test_another_drivers_devices_take_the_usual_route(run) -> None:
    run(
        """
s, t = (v.to(bringup.device("sim")) for v in (a, b))
torch.testing.assert_close((s @ t).cpu(), a @ b)
called()
torch.testing.assert_close((x @ y).cpu(), a @ b)
called("mm")
""",
        f"sim,{DRIVER}",
    )


def test_an_unknown_op_is_refused(run_python, tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(Path(DRIVER).read_text() + '\nDriver.ops = {"aten::matmull": mm}\n')
    result = run_python("import torch, bringup; bringup.device()", env={"BRINGUP_DRIVERS": str(path)}, check=False)
    assert result.returncode == 1
    assert "driver 'library': ops['aten::matmull']: PyTorch has no such op" in result.stderr


def test_a_library_op_may_queue_its_work(run_python: Any, tmp_path: Path) -> None:
    """The host waits for the stream before it reads what a library op has only queued."""
    (tmp_path / "lazychip.py").write_text(
        textwrap.dedent(
            """
            import ctypes, time
            from bringup.drivers.sim import Driver as Sim
            from bringup.driver import DeviceSpec

            class Driver(Sim):
                name = "lazychip"
                def __init__(self):
                    super().__init__("devices=1")
                    self.ops = {"aten::mm": self.mm}
                def mm(self, out, a, b):
                    def work():
                        time.sleep(0.05)
                        cells = (ctypes.c_float * 4).from_address(out.address)
                        cells[:] = [2.0] * 4
                    self.host_function(out.device, out.stream, work)
            """
        )
    )
    code = """
import torch
a = torch.ones(2, 2, device="lazychip")
for read in (lambda y: (y + 0).cpu().sum().item(), lambda y: y.sum().item(), lambda y: y.cpu().sum().item()):
    assert read(a @ a) == 8.0
print("in order")
"""
    run = run_python(code, env={"BRINGUP_DRIVERS": str(tmp_path / "lazychip.py")})
    assert "in order" in run.stdout, run.stdout + run.stderr
