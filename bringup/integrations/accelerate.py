"""accelerate, and the transformers Trainer on top of it: the device by their variable, float16 by a subclass.

accelerate looks for the devices it has heard of, one after the other, and takes the CPU if there is none. Before that
it reads ``ACCELERATE_TORCH_DEVICE``; the Trainer does the same. This file imports accelerate only for ``Accelerator``.
"""

from __future__ import annotations

import os
import sys
from typing import Any

VARIABLE = "ACCELERATE_TORCH_DEVICE"


def set_up(package: str, device_type: str) -> None:
    """Names the device in accelerate's variable, unless the user has named one."""
    if VARIABLE in os.environ:
        return
    states = sys.modules.get("accelerate.state")
    if states is not None and states.is_initialized():
        raise RuntimeError(
            "accelerate has chosen its device already: call bringup.integrations.activate() before Accelerator() or "
            "TrainingArguments()"
        )
    os.environ[VARIABLE] = device_type


def __getattr__(name: str) -> Any:
    if name == "Accelerator":
        return _accelerator_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _accelerator_class() -> type:
    """Returns accelerate's Accelerator with ``mixed_precision="fp16"`` for the active driver's device.

    accelerate 1.x has a fixed list of the device types that may use it, and makes a gradient scaler for CUDA
    otherwise. Both happen in its constructor, and only where the device is not the CPU.
    """
    import accelerate
    import torch

    class Accelerator(accelerate.Accelerator):
        _constructed = False

        @property
        def device(self) -> torch.device:
            return super().device if self._constructed else torch.device("cpu")

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._constructed = True
            if self.mixed_precision == "fp16" and self.device.type != "cpu":
                settings = self.scaler_handler.to_kwargs() if self.scaler_handler is not None else {}
                self.native_amp = True
                self.scaler = torch.amp.GradScaler(self.device.type, **settings)

    Accelerator.__module__ = __name__
    return Accelerator
