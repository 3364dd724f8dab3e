"""safetensors: loads a file onto the active driver's device.

safetensors has a fixed list of device names. An index is not in that list: torch reads it as "the current
accelerator's", which the active driver is.

>>> from bringup.integrations.safetensors import load_file
>>> state = load_file("model.safetensors", device="sim:1")  # doctest: +SKIP
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from bringup.integrations import import_whole

if TYPE_CHECKING:
    import torch


def load_file(
    filename: str | os.PathLike[str], device: str | int | torch.device | None = None, **options: Any
) -> dict[str, torch.Tensor]:
    """Loads a file as ``safetensors.torch.load_file`` does, onto any device; the active driver's by default."""
    loaded: dict[str, torch.Tensor] = _module().load_file(filename, device=location(device), **options)
    return loaded


def load_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: str | int | torch.device | None = None,
) -> tuple[list[str], list[str]]:
    """Fills a model as ``safetensors.torch.load_model`` does, from a file that is read onto any device."""
    missing, unexpected = _module().load_model(model, filename, strict=strict, device=location(device))
    return missing, unexpected


def location(device: str | int | torch.device | None = None) -> str | int:
    """Returns what safetensors takes for a device: an index for one of ours, else its name.

    >>> location("cpu"), location("sim:1")  # doctest: +SKIP
    ('cpu', 1)
    """
    import torch

    from bringup.driver import in_use
    from bringup.torch_device import activation

    if device is None:
        device = activation.device()
    elif not isinstance(device, torch.device):
        device = torch.device(device)
    if device.type != in_use.device_type():
        return str(device)
    return torch.accelerator.current_device_index() if device.index is None else device.index


def _module() -> Any:
    import_whole("safetensors.torch")
    return sys.modules["safetensors.torch"]
