"""bringup brings any accelerator up in PyTorch: write one driver class and it is a PyTorch device.

    import bringup
    bringup.activate("sim")            # or BRINGUP_DRIVERS=sim, which is the default
    import torch
    x = torch.randn(4, 4, device="sim")

Importing this package imports no torch: PyTorch's device type can be named only once per process, and an
``import torch`` here would name it before ``activate`` could choose.
"""

from __future__ import annotations as _annotations

__version__ = "0.1.0"


def _public() -> dict[str, str]:
    """Public names and their modules, from ``__init__.pyi``; each is imported when it is first used."""
    import re
    from pathlib import Path

    lines = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    return {name: module for module, name in re.findall(r"^from (\S+) import (\w+) as \2$", lines, re.MULTILINE)}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "_C":  # `from bringup import _C` asks here first; one that is missing is an error with the way out
        return import_module("bringup.torch_device.core_binary").load(import_module("torch").__version__)
    public = _public()
    if name == "__all__":
        value: object = ["__version__", *public]
    elif name not in public:
        raise AttributeError(f"module 'bringup' has no attribute {name!r}")
    elif public[name] == "bringup":  # a module: importing it binds the name here
        return import_module(f"bringup.{name}")
    else:
        home = import_module(public[name])
        value = getattr(home, name) if hasattr(home, name) else import_module(f"{public[name]}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(["__doc__", "__file__", "__version__", *_public()])
