"""Moves bytes and waits through a driver's methods, for tests that use the contract alone."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
from pathlib import Path

from bringup.driver import CopyKind

ROOT = Path(__file__).resolve().parents[2]
H2D, D2H, D2D = CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST, CopyKind.DEVICE_TO_DEVICE
HOST = -1  # event_wait: the calling thread waits
LARGE = 6 << 20  # above sim's inline limit: always queued


def write(driver, address, data: bytes, stream=0, placement=None, device=0) -> None:
    driver.copy(device, address, address_of(data), len(data), H2D, stream, placement)
    synchronize(driver, device, stream)


def read(driver, address, nbytes, stream=0, placement=None, device=0) -> bytes:
    buffer = ctypes.create_string_buffer(max(nbytes, 1))
    driver.copy(device, ctypes.addressof(buffer), address, nbytes, D2H, stream, placement)
    synchronize(driver, device, stream)
    return buffer.raw[:nbytes]


def address_of(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def synchronize(driver, device=0, stream=0) -> None:
    event = driver.event_record(device, stream)
    driver.event_wait(device, event, 0, HOST)
    driver.event_destroy(device, event)


def pattern(nbytes: int, start: int = 1) -> bytes:
    period = bytes((start + 7 * i) % 256 for i in range(251))  # a prime: no block size divides it
    return (period * (nbytes // 251 + 1))[:nbytes]


def in_new_process(code: str, library: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    start = f"""
        import ctypes, sys
        from bringup.drivers import sim
        from bringup.driver import CopyKind, Placement, PlacementKind
        class Driver(sim.Driver):
            library = {str(library)!r}
    """
    program = textwrap.dedent(start) + textwrap.dedent(code)
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
