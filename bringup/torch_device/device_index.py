"""What users pass as a device (None, 1, "sim:1", torch.device) becomes an index, or an error that says why not."""

from __future__ import annotations

import torch

from bringup import _C
from bringup.driver import in_use

Device = torch.device | str | int | None


def device_index(device: Device = None) -> int:
    """The index of a device; None and a device without an index mean the current one.

    >>> device_index("sim:1")  # doctest: +SKIP
    1
    """
    if device is None:
        index = _C.current_device()
    elif isinstance(device, int) and not isinstance(device, bool):
        index = device
    elif isinstance(device, (str, torch.device)):
        device = torch.device(device)
        if device.type != in_use.device_type():
            raise ValueError(f"expected a {in_use.device_type()} device, got {device}")
        index = _C.current_device() if device.index is None else device.index
    else:
        raise TypeError(f"a device is an int, a str, a torch.device or None, not {type(device).__name__}")
    count = _C.device_count()
    if not 0 <= index < count:
        kind = in_use.device_type()
        if count == 0:
            raise in_use.absent_error()
        raise ValueError(
            f"there is no device {kind}:{index}: {count} device(s) are there, {kind}:0 … {kind}:{count - 1}"
        )
    return index
