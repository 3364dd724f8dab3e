"""BRINGUP_DEBUG=5: a driver's ``load`` and ``launch`` with a line on standard error for every launch.

The core launches without Python, so the functions of the driver's own struct are replaced in a copy of it. A launch
then costs about 20 µs more.
"""

from __future__ import annotations

import ctypes
from time import perf_counter
from typing import Any

from bringup import debug
from bringup.driver.c_functions import FUNCTIONS, DriverStruct

#: Keeps the structs and callbacks alive: the core calls them as long as the process lives.
_kept: list[Any] = []


def logged(struct_address: int, driver: str) -> int:
    """Returns the address of a struct that does the same and logs launches; the same one if it launches nothing."""
    original = DriverStruct.from_address(struct_address)
    if original.struct_size < DriverStruct.launch.offset + DriverStruct.launch.size or not original.launch:
        return struct_address
    copy = DriverStruct()
    ctypes.memmove(ctypes.addressof(copy), struct_address, min(original.struct_size, ctypes.sizeof(copy)))
    load, launch = original.load, original.launch
    names: dict[tuple[int, int], str] = {}

    def load_noted(driver_self: Any, device: int, binary: Any, nbytes: int, entry: bytes, out: Any) -> int:
        status: int = load(driver_self, device, binary, nbytes, entry, out)
        if status == 0:
            names[device, out[0]] = entry.decode()
        return status

    def launch_noted(driver_self: Any, device: int, kernel: int, launch_pointer: Any) -> int:
        what = launch_pointer[0]
        start = perf_counter()
        status: int = launch(driver_self, device, kernel, launch_pointer)
        microseconds = (perf_counter() - start) * 1e6
        queued = what.finished and not what.finished[0]
        debug.say(
            5,
            f"launch {names.get((device, kernel), kernel)} on {driver}:{device}: {what.grid} units, "
            f"{what.flops:.0f} flops, {what.bytes:.0f} bytes, "
            f"{f'queued on stream {what.stream}' if queued else f'{microseconds:.0f} µs'}"
            f"{f', status {status}' if status else ''}",
        )
        return status

    copy.struct_size = min(original.struct_size, ctypes.sizeof(copy))
    copy.load, copy.launch = FUNCTIONS["load"](load_noted), FUNCTIONS["launch"](launch_noted)
    _kept.append((copy, original))
    return ctypes.addressof(copy)
