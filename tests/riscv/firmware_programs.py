"""The firmware in tests/riscv/firmware, compiled once for a test run, and the machines that can run it here."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from bringup.riscv import MACHINES, Machine, MachineSpec, machine_class, runtime, toolchain
from bringup.riscv.gemm import GEMM_DRIVER_C

FOLDER = Path(__file__).with_name("firmware")
SPEC = MachineSpec("rv64gc", ram_bytes=1 << 20)

#: Every test that takes a machine runs on each of them.
machines = pytest.mark.parametrize("machine", MACHINES)


def need(machine: str) -> None:
    reason = machine_class(machine).absent_reason()
    if reason is not None:
        pytest.skip(f"{machine}: {reason}")


@functools.cache
def build(name: str, *defines: str, family: str | None = None, isa: str = "rv64gc", stack: int = 16 << 10) -> bytes:
    """The ELF of a firmware file, or of C text."""
    source = (FOLDER / f"{name}.c").read_text() if name.isidentifier() else name
    files = {"firmware.c": source, "gemm.h": GEMM_DRIVER_C, **runtime.sources(SPEC, stack)}
    flags = ["-g", "-Wall", "-Wextra", "-Werror", *(f"-D{define}" for define in defines)]
    return toolchain.build(files, isa, runtime.LINK, toolchain.find_toolchain(family), extra=flags)


def word(machine: Machine, name: str) -> int:
    """A 32-bit variable of the guest."""
    return int.from_bytes(machine.read(machine.program.symbol(name).address, 4), "little")
