"""Registers by name: an access that meets none of them says which there are."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.riscv.device import DeviceError


def register(device: object, names: Mapping[int, str], offset: int, size: int) -> str:
    """The name of the 32-bit register at an offset.

    >>> register(None, {0: "DATA", 4: "STATUS"}, 4, 4)
    'STATUS'
    """
    who = type(device).__name__
    if size != 4:
        raise DeviceError(f"{who} has 32-bit registers; access of {size} bytes at offset {offset:#x}")
    if offset not in names:
        known = ", ".join(f"{at:#x} {name}" for at, name in names.items())
        raise DeviceError(f"{who} has no register at offset {offset:#x}; it has {known}")
    return names[offset]


def read_only(device: object, name: str) -> DeviceError:
    """The error for a store to a register that only the device changes."""
    return DeviceError(f"{type(device).__name__}: {name} is read only")
