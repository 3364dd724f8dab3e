"""Ctrl-C while a Python driver works: an exception, never a copy that silently did not happen."""

from __future__ import annotations

from pathlib import Path

DICTMEM = str(Path(__file__).resolve().parents[2] / "examples" / "drivers" / "dictmem.py")

CODE = """
import signal, torch

class Interrupt(BaseException): pass
armed = False
def handler(*_):
    global armed
    if armed:
        armed = False
        raise Interrupt
signal.signal(signal.SIGALRM, handler)

device = torch.zeros(64, device="dictmem")
seen = {"interrupted": 0, "refused": 0, "copied": 0}
signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
value = 0.0
while seen["interrupted"] + seen["refused"] < 300 and seen["copied"] < 200_000:
    value += 1.0
    try:
        host = torch.full((64,), value)
        armed = True
        device.copy_(host)
        armed = False
        copied = True
    except Interrupt:
        seen["interrupted"] += 1
        copied = False
    except RuntimeError as error:
        assert "nterrupt" in str(error), error  # before the driver was reached, or inside it
        seen["refused"] += 1
        copied = False
    armed = False
    if copied:
        seen["copied"] += 1
        assert torch.equal(device.cpu(), host), value
signal.setitimer(signal.ITIMER_REAL, 0)
assert torch.equal(device.fill_(7).cpu(), torch.full((64,), 7.0))
print("went on", seen)
"""


def test_an_interrupt_loses_no_copy(run_python) -> None:
    run = run_python(CODE, env={"BRINGUP_DRIVERS": DICTMEM})
    assert "went on" in run.stdout, run.stdout + run.stderr
