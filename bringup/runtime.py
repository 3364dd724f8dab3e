"""What ``import torch`` calls: the entry point of bringup in the group ``torch.backends``.

This path stays: the metadata of an editable install names it until it is installed again, and an entry point that
cannot be imported makes ``import torch`` itself fail.
"""

from __future__ import annotations

import os

from bringup.driver import in_use
from bringup.torch_device import activation


def _autoload() -> None:
    """Registers devices with PyTorch, and watches them where BRINGUP_SANITIZE says so."""
    activation.autoload()
    if os.environ.get("BRINGUP_SANITIZE") and in_use.state.active:
        from bringup.sanitizer.environment import enable_from_environment

        enable_from_environment()
