"""What Dynamo learns of our device type, after its first import: interface, a backend by its name, the default."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import torch
from torch._dynamo.backends import registry
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

from bringup.graph.compile import uncompiled_rnn


def register(default: bool) -> None:
    """Registers the device type; with ``default`` also what ``torch.compile`` without a backend means."""
    _register_interface()
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


def _register_interface() -> None:
    """Answers what Dynamo asks of a device type by the device module ``torch.<name>``."""
    name = torch._C._get_privateuse1_backend_name()
    module = torch.get_device_module(name)

    class Interface(DeviceInterface):
        """The device of this process."""

        device = module.device
        Event = module.Event
        Stream = module.Stream

        class Worker:
            """Compilation happens in this process: there is no other process to ask."""

            set_device = staticmethod(module.set_device)
            current_device = staticmethod(module.current_device)
            get_device_properties = staticmethod(module.get_device_properties)

        current_device = staticmethod(module.current_device)
        set_device = staticmethod(module.set_device)
        device_count = staticmethod(module.device_count)
        is_available = staticmethod(module.is_available)
        stream = staticmethod(module.stream)
        current_stream = staticmethod(module.current_stream)
        set_stream = staticmethod(module.set_stream)
        synchronize = staticmethod(module.synchronize)
        get_device_properties = staticmethod(module.get_device_properties)
        memory_allocated = staticmethod(module.memory_allocated)

        @staticmethod
        def exchange_device(device: int) -> int:
            """Makes a device the current one; gives the one before."""
            before: int = module.current_device()
            module.set_device(device)
            return before

        @staticmethod
        def maybe_exchange_device(device: int) -> int:
            """The same; a negative number changes nothing."""
            return Interface.exchange_device(device) if device >= 0 else int(module.current_device())

        @staticmethod
        def get_raw_stream(device_idx: int) -> int:
            """The stream's number."""
            return int(module.current_stream(device_idx).stream_id)

        @staticmethod
        def get_compute_capability(device: Any = None) -> str:
            """There are no generations to tell apart."""
            return ""

        @staticmethod
        def is_bf16_supported(including_emulation: bool = False) -> bool:
            """Whether the driver names bfloat16."""
            return torch.bfloat16 in module.get_amp_supported_dtype()

        @classmethod
        def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
            """Every type that PyTorch has works, by a kernel or by the CPU's."""
            return True

        @staticmethod
        def is_triton_capable(device: Any = None) -> bool:
            """Our kernels are not Triton's."""
            return False

    register_interface_for_device(name, Interface)
