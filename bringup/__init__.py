"""bringup brings any accelerator up in PyTorch: write one driver class and it is a PyTorch device.

    import bringup
    bringup.activate("sim")            # or BRINGUP_DRIVERS=sim, which is the default
    import torch
    x = torch.randn(4, 4, device="sim")

Importing this package imports no torch: PyTorch's device type can be named only once per process, and an
``import torch`` here would name it before ``activate`` could choose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bringup.custom_ops import formulas as formulas
    from bringup.custom_ops import pointwise as pointwise
    from bringup.driver import CopyKind as CopyKind
    from bringup.driver import DeviceSpec as DeviceSpec
    from bringup.driver import Driver as Driver
    from bringup.driver import DriverAbsent as DriverAbsent
    from bringup.driver import Launch as Launch
    from bringup.driver import Placement as Placement
    from bringup.driver import PlacementKind as PlacementKind
    from bringup.graph.artifact import ArtifactError as ArtifactError
    from bringup.graph.backend import Backend as Backend
    from bringup.graph.exported import export as export
    from bringup.graph.exported_trace import ExportError as ExportError
    from bringup.graph.loaded import load as load
    from bringup.ledger import fallback_policy as fallback_policy
    from bringup.ledger import fallbacks as fallbacks
    from bringup.ledger import reset_fallbacks as reset_fallbacks
    from bringup.quantizer import quantize as quantize
    from bringup.runtime import activate as activate
    from bringup.runtime import activation_error as activation_error
    from bringup.runtime import active_drivers as active_drivers
    from bringup.runtime import device as device

__version__ = "0.1.0"

#: Where each public name lives; it is imported when it is first used.
_HOME = {
    "ArtifactError": "graph.artifact",
    "Backend": "graph.backend",
    "CopyKind": "driver",
    "DeviceSpec": "driver",
    "Driver": "driver",
    "DriverAbsent": "driver",
    "ExportError": "graph.exported_trace",
    "Launch": "driver",
    "Placement": "driver",
    "PlacementKind": "driver",
    "activate": "runtime",
    "activation_error": "runtime",
    "active_drivers": "runtime",
    "device": "runtime",
    "export": "graph.exported",
    "fallback_policy": "ledger",
    "fallbacks": "ledger",
    "formulas": "custom_ops",
    "load": "graph.loaded",
    "pointwise": "custom_ops",
    "quantize": "quantizer",
    "reset_fallbacks": "ledger",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "jit":  # a module of its own: importing it binds the name here
        return import_module("bringup.jit")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'bringup' has no attribute {name!r}")
    value = getattr(import_module(f"bringup.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
