"""Chapter 8. Is a driver right? The kit says, and names what is wrong."""

import ctypes
import subprocess
import sys

from bringup.kit.driver_checks import run_driver_checks
from tests.conftest import ROOT
from tests.walkthrough.test_00_a_driver_in_one_class import Notepad

DICTMEM = ROOT / "examples" / "drivers" / "dictmem.py"


def test_the_command_checks_a_driver_file():
    command = [sys.executable, "-m", "bringup", "check", "--driver", str(DICTMEM), "--level", "driver"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout
    assert "0 failed" in result.stdout


def failures(driver):
    return [result.name for result in run_driver_checks(driver) if result.status == "fail"]


def test_a_wrong_copy_is_caught():
    class Forgetful(Notepad):
        def copy(self, device, dst, src, nbytes, kind, stream):
            ctypes.memmove(dst, src, max(0, nbytes - 1))  # the last byte is lost

    assert "copy_round_trip" in failures(Forgetful())


def test_our_first_driver_forgot_something():
    # The Notepad of chapter 0 takes any device number. A chip with one device must refuse device 1.
    assert failures(Notepad()) == ["bad_device"]


def test_and_this_repairs_it():
    class Careful(Notepad):
        def check(self, device):
            if device != 0:
                raise ValueError(f"there is no device {device}")

        def open(self, device):
            self.check(device)
            return super().open(device)

        def alloc(self, device, nbytes):
            self.check(device)
            return super().alloc(device, nbytes)

        def copy(self, device, dst, src, nbytes, kind, stream):
            self.check(device)
            super().copy(device, dst, src, nbytes, kind, stream)

    assert failures(Careful()) == []
