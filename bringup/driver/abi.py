"""The C ABI of a driver, from Python: the struct the core reads, over a Python driver or over a shared library."""

from __future__ import annotations

import threading

from bringup.driver import Driver
from bringup.driver.adapter import AdaptedDriver, adapt
from bringup.driver.c_functions import DriverStruct
from bringup.driver.c_library import CDriver
from bringup.driver.c_struct import ABI_VERSION, DeviceSpecStruct, DriverError, LaunchStruct, PlacementStruct

__all__ = [
    "ABI_VERSION",
    "AdaptedDriver",
    "CDriver",
    "DeviceSpecStruct",
    "DriverError",
    "DriverStruct",
    "LaunchStruct",
    "PlacementStruct",
    "adapt",
    "adapted",
    "struct_of",
]

_adapted: dict[int, AdaptedDriver] = {}  # by id(driver); an AdaptedDriver keeps its driver alive
_lock = threading.Lock()


def adapted(driver: Driver) -> AdaptedDriver:
    """The one AdaptedDriver of a Python driver, made on the first call."""
    with _lock:
        if id(driver) not in _adapted:
            _adapted[id(driver)] = adapt(driver)
        return _adapted[id(driver)]


def struct_of(driver: Driver) -> int:
    """The address of a driver's bringup_driver struct, for ``_C.register_driver``; the same one on every call.

    >>> first, count = _C.register_driver(struct_of(driver), driver.name)  # doctest: +SKIP
    """
    return driver.struct_address if isinstance(driver, CDriver) else adapted(driver).address
