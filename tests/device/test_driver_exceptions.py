"""What a Python driver raises reaches the user as the cause of torch's error, with the driver's own file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

#: A device on the heap whose methods raise what BROKEN says, from a line that can be named.
DRIVER = """
import ctypes
import bringup

BROKEN = {}

def broken(name):
    if name in BROKEN:
        raise BROKEN[name]

class Driver(bringup.Driver):
    name = "chip"
    def __init__(self): self.buffers = {}
    def device_count(self): return 2
    def open(self, device):
        broken("open")
        return bringup.DeviceSpec(name="chip", memory_bytes=1 << 30, alignment=16)
    def alloc(self, device, nbytes):
        broken("alloc")
        buffer = ctypes.create_string_buffer(nbytes)
        self.buffers[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)
    def free(self, device, address):
        broken("free")
        del self.buffers[address]
    def copy(self, device, dst, src, nbytes, kind, stream):
        broken("copy")
        ctypes.memmove(dst, src, nbytes)
    def clock(self, device):
        broken("clock")
        return 0
    def host_alloc(self, nbytes):
        broken("host_alloc")
        return self.alloc(0, nbytes)
    def host_free(self, pointer): pass
"""

PROGRAM = """
import sys, traceback
sys.path.insert(0, {folder!r})
import chip_under_test as chip, bringup
bringup.activate(chip.Driver)
import torch

def caught(method, error, use):
    chip.BROKEN[method] = error
    try:
        use()
    except BaseException as raised:
        return raised
    finally:
        chip.BROKEN.clear()
    raise AssertionError(f"{{method}} raised nothing")

def line_of(error):
    return next(f.name for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith("chip_under_test.py"))
"""


@pytest.fixture
def run(run_python, tmp_path: Path):
    (tmp_path / "chip_under_test.py").write_text(DRIVER)

    def run(code: str):
        return run_python(PROGRAM.format(folder=str(tmp_path)) + code, env={"BRINGUP_DRIVERS": None})

    return run


def test_the_cause_has_the_drivers_line(run) -> None:
    run("""
error = caught("open", OSError("bus error"), lambda: torch.ones(2, device="chip:1"))
assert type(error) is RuntimeError and "chip.open: OSError: bus error" in str(error), error
assert type(error.__cause__) is OSError and line_of(error.__cause__) == "open"

x = torch.ones(4, device="chip")
uses = {
    "alloc": (lambda: torch.empty(1 << 26, device="chip"), ZeroDivisionError("alloc broke")),
    "copy": (lambda: x.cpu(), KeyError("copy broke")),
    "host_alloc": (lambda: torch.ones(1 << 22).pin_memory(), OSError("pinned")),
}
for method, (use, broken) in uses.items():
    error = caught(method, broken, use)
    assert error.__cause__ is broken and line_of(broken) == method, (method, error)
""")


def test_the_class_of_the_error_is_torchs(run) -> None:
    run("""
x = torch.ones(4, device="chip")
assert isinstance(caught("copy", ValueError("v"), x.cpu), ValueError)
assert isinstance(caught("copy", NotImplementedError("n"), x.cpu), NotImplementedError)
error = caught("alloc", MemoryError("full"), lambda: torch.empty(1 << 26, device="chip"))
assert isinstance(error, torch.OutOfMemoryError), repr(error)
""")


def test_what_ends_a_program_stays_what_it_is(run) -> None:
    run("""
x = torch.ones(4, device="chip")
stop = KeyboardInterrupt()
assert caught("copy", stop, x.cpu) is stop
leave = SystemExit(3)
assert caught("copy", leave, lambda: x + x.cpu().to("chip")) is leave
assert x.cpu().sum() == 4
""")


def test_an_error_in_backward_keeps_its_cause(run) -> None:
    run("""
x = torch.ones(4, device="chip", requires_grad=True)
y = (x * 2).sum()
broken = OSError("bus error")
error = caught("copy", broken, y.backward)
assert error.__cause__ is broken, repr(error)
""")


def test_an_error_is_not_the_cause_of_a_later_one(run) -> None:
    run("""
x = torch.ones(4, device="chip")
caught("copy", OSError("bus error"), x.cpu)
try:
    torch.ones(2, device="chip:7")
except Exception as error:
    assert error.__cause__ is None, repr(error.__cause__)
""")
