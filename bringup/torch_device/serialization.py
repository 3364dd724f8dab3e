"""Checkpoints: torch.save and torch.load across processes that call the same chip by different device types.

A checkpoint of ours is tagged with the driver's own device name and the index inside that driver (``upmem:0``), also
where the process calls the device ``accel:2``. So it loads in a process with that driver alone, and where several
drivers share ``accel``, in any order. Metadata a driver attached to a storage travels in the tensor's own metadata,
which the C++ core adds (torch::jit::TensorBackendMetaRegistry).
"""

from __future__ import annotations

import re
from typing import Any

import torch

from bringup.driver import in_use

# torch asks packages in the order of their numbers; its own are 10 to 26.
_BEFORE_TORCH = 15
_AFTER_ALL = 1000


def register() -> None:
    """Makes torch.save and torch.load use the two functions below."""
    torch.serialization.register_package(_BEFORE_TORCH, location_of, restore)
    torch.serialization.register_package(_AFTER_ALL, lambda storage: None, _refuse_inactive_driver)


def location_of(storage: Any) -> str | None:
    """The tag torch.save writes for a storage of ours.

    >>> location_of(torch.empty(1, device=bringup.device("upmem")).untyped_storage())  # doctest: +SKIP
    'upmem:0'
    """
    device = storage.device
    if device.type != in_use.device_type():
        return None
    driver = in_use.driver_of(device.index or 0)
    return f"{driver.device_name}:{(device.index or 0) - driver.first}"


def restore(storage: Any, location: str) -> Any:
    """Puts a storage that torch.load has read where its tag says; None if the tag is not about our devices."""
    kind, index = _parse(location)
    if kind == in_use.device_type():
        return None  # torch does that, with its own checks
    for driver in in_use.active_drivers():
        if kind == driver.device_name:
            return storage.to(device=_device(driver, index, location))
    if kind == in_use.SHARED_TYPE:  # written by map_location or an old checkpoint; here is one driver
        return storage.to(device=_device(in_use.active_drivers()[0], index, location))
    return None


def _parse(location: str) -> tuple[str, int]:
    match = re.fullmatch(r"([a-z_]+)(?::(\d+))?", location)
    return (match[1], int(match[2] or 0)) if match else ("", 0)


def _device(driver: in_use.ActiveDriver, index: int, location: str) -> torch.device:
    if index >= driver.count:
        there = driver.absence() if driver.count == 0 else f"{driver.name} has {driver.count} device(s) here"
        raise RuntimeError(
            f"the checkpoint was saved on {location}, and {there}: load it with map_location='cpu' or another device"
        )
    return torch.device(in_use.device_type(), driver.first + index)


def _refuse_inactive_driver(storage: Any, location: str) -> None:
    """The last to be asked: says how to get a driver that exists but is not active."""
    from bringup.driver.lookup import list_drivers

    kind, _ = _parse(location)
    if kind in list_drivers() or kind == in_use.SHARED_TYPE:
        raise RuntimeError(
            f"the checkpoint was saved on {location}, and that driver is not active here (device type "
            f"'{in_use.device_type()}'): set BRINGUP_DRIVERS={kind}, or load it with map_location='cpu' or "
            f"'{in_use.device_type()}'"
        )
