"""Loads the C++ core, and says what to do when its binary is missing or was built for another torch."""

from __future__ import annotations

import importlib
import mmap
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

from bringup.driver.lookup import check_device_name

_MARK = b"bringup-torch="
_BUILD = "pip install --no-build-isolation -e ."


def load(torch_version: str) -> Any:
    """The module ``bringup._C``, which fits the torch that is running.

    >>> load(torch.__version__).TORCH_VERSION  # doctest: +SKIP
    '2.13.0'
    """
    core = sys.modules.get("bringup._C") or _import(torch_version, Path(__file__).parents[1])
    if _minor(core.TORCH_VERSION) != _minor(torch_version):
        raise RuntimeError(_other_torch(core.TORCH_VERSION, torch_version))
    return core


def name_without_core(torch: Any, kind: str, error: BaseException) -> None:
    """Names the device type all the same: its first use raises what is wrong, not "Expected one of cpu, cuda, …"."""

    def refuse() -> None:
        raise RuntimeError(f"no {kind} device: bringup is not active: {error}") from error

    if torch._C._get_privateuse1_backend_name() != "privateuseone":
        return
    check_device_name(kind)
    torch.utils.rename_privateuse1_backend(kind)
    module = ModuleType(f"torch.{kind}", f"No device: {error}")
    # What torch.manual_seed and PyTorch's lazy start ask a device's module.
    answers = {"is_available": False, "device_count": 0, "_is_in_bad_fork": False, "manual_seed_all": None}
    vars(module).update({name: lambda *_, answer=answer: answer for name, answer in answers.items()}, _lazy_init=refuse)
    torch._register_device_module(kind, module)


def _import(torch_version: str, folder: Path) -> ModuleType:
    built_for = _recorded_version(folder)  # asked first: a binary for another torch may load and then crash
    if built_for and _minor(built_for) != _minor(torch_version):
        raise RuntimeError(_other_torch(built_for, torch_version))
    try:
        return importlib.import_module("bringup._C")
    except ImportError as error:
        if not any(folder.glob("_C*.so")):
            message = f"bringup's C++ core is not built: build it in the source tree with `{_BUILD}`"
        else:
            message = (
                f"bringup's C++ core does not load with torch {torch_version}: {error}. The binary is probably stale: "
                f"rebuild it with `{_BUILD}`"
            )
        raise RuntimeError(message) from error


def _other_torch(built_for: str, running: str) -> str:
    return (
        f"bringup was built for torch {_minor(built_for)}, this is torch {running}: a binary fits one torch minor "
        f"version. Rebuild it with `{_BUILD}`"
    )


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _recorded_version(folder: Path) -> str:
    """The torch version in the binary's own text "bringup-torch=2.13.0;"; empty if there is none."""
    for suffix in EXTENSION_SUFFIXES:
        binary = folder / f"_C{suffix}"
        if binary.is_file():
            with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                at = data.find(_MARK)
                text = data[at + len(_MARK) : at + len(_MARK) + 32] if at >= 0 else b""
                return text.split(b";")[0].decode("ascii", "replace")
    return ""
