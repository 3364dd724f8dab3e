"""What ``import torch`` calls: the entry point of bringup in the group ``torch.backends``.

This path stays: the metadata of an editable install names it until it is installed again, and an entry point that
cannot be imported makes ``import torch`` itself fail.
"""

from __future__ import annotations

from bringup.torch_device.activation import autoload as _autoload  # noqa: F401
