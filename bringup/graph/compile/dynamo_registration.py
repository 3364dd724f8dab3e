"""What Dynamo is told of our device type, after its first import: interface, a backend by its name, the default."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import torch
from torch._dynamo.backends import registry

from bringup.graph.compile import uncompiled_rnn
from bringup.graph.compile.device_interface import register_interface


def register(default: bool) -> None:
    """Registers the device type; with ``default`` also what ``torch.compile`` without a backend means."""
    register_interface()
    uncompiled_rnn.watch()
    name = torch._C._get_privateuse1_backend_name()
    # As an entry point, so that the graph compiler is imported on use (0.5 s), and a backend of torch's keeps its name.
    registry._BACKENDS.setdefault(
        name, EntryPoint(name, "bringup.graph.compile.backend:bringup_backend", "torch_dynamo_backends")
    )
    # torch 2.11 and 2.12 have no default to set: there inductor raises what names our backend (inductor.py).
    if default and hasattr(registry, "set_default_backend") and registry.get_default_backend() == "inductor":
        from bringup.graph.compile.default_backend import DefaultBackend

        registry.set_default_backend(DefaultBackend())
