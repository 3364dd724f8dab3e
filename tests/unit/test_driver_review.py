"""Mistakes in a driver class, a target or a variable's name: activation and ``check`` say them, with the way out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import bringup
from bringup import environment
from bringup.driver import review as driver_review
from bringup.targets.registry import parse_target


class Chip(bringup.Driver):
    name = "chip"

    def device_count(self):
        return 1

    def open(self, device):
        return bringup.DeviceSpec(name="chip", memory_bytes=1 << 20)

    def alloc(self, device, nbytes):
        return 64

    def free(self, device, address):
        pass

    def copy(self, device, dst, src, nbytes, kind, stream, placement=None):
        pass


def with_methods(**methods: object) -> bringup.Driver:
    return type("Chip", (Chip,), methods)()  # type: ignore[no-any-return]


def test_misspelled_fields_of_a_device() -> None:
    with pytest.raises(TypeError, match=r"DeviceSpec has no field 'memory_byte': did you mean memory_bytes\?"):
        bringup.DeviceSpec(name="chip", memory_byte=1 << 20)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no field 'zzz': there are name, memory_bytes, alignment"):
        bringup.DeviceSpec(name="chip", memory_bytes=1 << 20, zzz=1)  # type: ignore[call-arg]
    assert bringup.DeviceSpec("chip", 1 << 20, alignment=8).alignment == 8


def test_a_driver_without_mistakes_is_left_alone() -> None:
    from bringup.driver.lookup import find_driver

    for driver in (Chip(), find_driver("sim"), find_driver("riscv")):
        assert driver_review.misspelled(driver) == []
        assert driver_review.wrong_parameters(driver) == []
        driver_review.check_target(driver)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("host_aloc", "host_alloc"), ("event_querry", "event_query"), ("compiler_identiy", "compiler_identity")],
)
def test_misspelled_methods(wrong: str, meant: str) -> None:
    assert driver_review.misspelled(with_methods(**{wrong: lambda self: None})) == [
        f"Chip.{wrong} is never called: did you mean {meant}?"
    ]


def test_methods_of_the_drivers_own_are_no_mistakes() -> None:
    own = dict.fromkeys(["reset", "allocate_large", "buffers", "_alloc", "open_file", "kernel"], lambda self: None)
    assert driver_review.misspelled(with_methods(**own)) == []


def test_wrong_parameters() -> None:
    driver = with_methods(alloc=lambda self, nbytes: 64, free=lambda self, *anything: None)
    assert driver_review.wrong_parameters(driver) == [
        "Chip.alloc takes (nbytes); it is called as alloc(device, nbytes)"
    ]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("opencl", "no kernels can be written in 'opencl'; known: c, dpu, riscv"),
        ("c; vectr=16", "did you mean vector=…?"),
        ("c; vector=12", "vector=12 is none of 0, 16, 32, 64"),
        ("c; vector=wide", "vector=wide is none of"),
        ("c; fma=yes", "fma=yes is neither 0 nor 1"),
        ("", "no kernels can be written in ''"),
        (None, "must return a text"),
    ],
)
def test_targets_that_cannot_be_rendered(target: str, words: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_target(target)
    assert words in str(raised.value)
    kernels = dict.fromkeys(["compile", "load", "launch"], lambda self, *_: None)
    with pytest.raises(ValueError, match="driver 'chip'") as raised:
        driver_review.check_target(with_methods(target=lambda self: target, **kernels))
    assert words in str(raised.value)


def test_variables_that_nothing_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BRINGUP_DRIVER", "BRINGUP_FALBACK", "BRINGUP_CHIP", "BRINGUP_OF_A_VENDOR"):
        monkeypatch.setenv(name, "1")
    assert environment.unknown_variables(["chip"]) == [
        "BRINGUP_DRIVER is set, and nothing reads it: did you mean BRINGUP_DRIVERS?",
        "BRINGUP_FALBACK is set, and nothing reads it: did you mean BRINGUP_FALLBACK?",
    ]


def test_every_variable_that_the_code_reads_is_listed() -> None:
    import re

    package = Path(bringup.__file__).parent
    read = set()
    for file in package.rglob("*.py"):
        read |= set(re.findall(r"environ(?:\.get|\.setdefault)?[\[(]\s*\"(BRINGUP_[A-Z_]+)\"", file.read_text()))
    assert read <= set(environment.VARIABLES), read - set(environment.VARIABLES)


SOURCE = """
import ctypes
from bringup import DeviceSpec, Driver as Base

class Driver(Base):
    name = "chip"
    def device_count(self): return 1
    def open(self, device): return DeviceSpec(name="chip", memory_bytes=1 << 20)
    def alloc(self, device, nbytes):
        {alloc}
    def free(self, device, address): pass
    def copy(self, device, dst, src, nbytes, kind, stream): pass
    {more}
"""


@pytest.fixture
def check(tmp_path: Path):
    def check(alloc: str = "return 64", more: str = "pass") -> subprocess.CompletedProcess[str]:
        file = tmp_path / "chip.py"
        file.write_text(SOURCE.format(alloc=alloc, more=more))
        command = [sys.executable, "-m", "bringup", "check", "--driver", str(file), "--level", "driver"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    return check


def test_check_names_the_line_that_raised(check) -> None:
    result = check(alloc="raise OSError('bus error')")
    assert result.returncode == 1
    assert "OSError: bus error" in result.stdout
    assert "chip.py:10, in alloc)" in result.stdout


def test_check_names_the_check_that_crashed(check) -> None:
    result = check(alloc="return ctypes.string_at(0)")
    last = result.stdout.splitlines()[-1].split()
    assert result.returncode < 0
    assert len(last) == 1, result.stdout  # a name without a verdict
    assert "Segmentation fault" in result.stderr
    assert "in alloc" in result.stderr


def test_check_warns_of_misspelled_methods(check) -> None:
    assert (
        "warning: Driver.host_aloc is never called: did you mean host_alloc?"
        in check(more="def host_aloc(self, nbytes): return 0").stdout
    )
