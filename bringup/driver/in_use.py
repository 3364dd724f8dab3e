"""The drivers that this process uses, and the name that PyTorch knows their devices by. Imports no torch."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bringup.driver import Driver

if TYPE_CHECKING:
    DriverLike = str | Driver | type[Driver]

#: The device type where several drivers share it; each owns a range of its indices.
SHARED_TYPE = "accel"


@dataclass(frozen=True)
class ActiveDriver:
    """A driver in use: its devices are ``first`` … ``first + count - 1`` of torch's device type."""

    name: str
    device_name: str
    driver: Driver
    first: int
    count: int
    #: What device_count() raised; there is no device then.
    count_error: BaseException | None = None

    def absence(self) -> str:
        """Why there is no device, in the driver's own words."""
        error = self.count_error
        if error is None:
            return f"no {self.name} device: {self.driver.absent_reason()}"
        return f"no {self.name} device: device_count() failed: {type(error).__name__}: {error}"


@dataclass
class Activation:
    """What this process has chosen and what became of it; written by bringup/torch_device/activation.py only."""

    lock: threading.RLock
    chosen: tuple[DriverLike, ...] | None = None  # by activate()
    found: list[Driver] | None = None  # what `chosen` names, until it is active
    asked: tuple[DriverLike, ...] = ()  # what led to `active`
    refused: tuple[str, ...] = ()  # what PyTorch would call the devices of `found`, if activation failed
    active: tuple[ActiveDriver, ...] = ()
    device_type: str = ""
    reason: str = ""  # why these and no others
    error: BaseException | None = None
    unusable: bool = False  # failed half way: PyTorch's device type is spent


state = Activation(threading.RLock())


def active_drivers() -> tuple[ActiveDriver, ...]:
    """The drivers in use, in the order of their device indices; empty before activation.

    >>> [driver.name for driver in bringup.active_drivers()]  # doctest: +SKIP
    ['sim']
    """
    return state.active


def device_type() -> str:
    """The name torch.device() knows our devices by; empty before activation."""
    return state.device_type


def activation_error() -> BaseException | None:
    """What went wrong when ``import torch`` tried to activate; None if nothing did."""
    return state.error


def absent_error() -> RuntimeError:
    """The error for a use of the device type where no driver in use has a device."""
    error = RuntimeError("; ".join(driver.absence() for driver in state.active))
    error.__cause__ = state.error or next((one.count_error for one in state.active if one.count_error), None)
    return error


def choice_reason() -> str:
    """Why these drivers are in use, for ``bringup diagnose``."""
    return state.reason or "not chosen yet"


def driver_of(index: int) -> ActiveDriver:
    """The driver that owns a device index."""
    for driver in state.active:
        if driver.first <= index < driver.first + driver.count:
            return driver
    raise RuntimeError(f"{state.device_type or 'bringup'} has no device {index}")
