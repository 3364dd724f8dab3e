"""Who an exported model can be made for, by name: drivers that compile kernels, "host", and those that register here.

A target gets the whole model as a GraphProgram, the bytes of its constants, and the tensors of the example call, and
writes what it needs; options of its own come as keywords:

    @export_target("mychip")
    def write(program: GraphProgram, constants: Sequence[memoryview], out: Path, *, examples: Sequence[Tensor]) -> None:
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import bringup
from bringup.driver import in_use
from bringup.graph.export.artifact import write_artifact
from bringup.graph.export.artifact_manifest import manifest_of
from bringup.graph.program import GraphProgram
from bringup.lowering.install import compiler_for
from bringup.lowering.resolve import KernelCompiler

Write = Callable[..., None]
#: What this machine's CPU is as a driver.
HOST = "host"
_HOST_DRIVER = "sim"

#: Name → who writes, and what is special about the target (see ExportTarget).
_registered: dict[str, tuple[Write, dict[str, bool]]] = {}
#: Targets that come with bringup: the module that registers each.
_OURS = {"riscv": "bringup.graph.export.bare_metal"}


@dataclass(frozen=True)
class ExportTarget:
    """A target: on which device its model is traced and lowered, and who writes it."""

    name: str
    device: torch.device
    write: Write
    folds_batch_norms: bool = False
    """Batch norms become part of weights by default."""
    products_of_attention: bool = False
    """Attention is taken apart into matrix products."""


def export_target(
    name: str, folds_batch_norms: bool = False, products_of_attention: bool = False
) -> Callable[[Write], Write]:
    """Registers a function that writes models for a target of this name; ``folds_batch_norms``: what ``export`` does
    with norms in evaluation by default; ``products_of_attention``: it sees no attention, but its products."""

    def register(write: Write) -> Write:
        if name in _registered or name == HOST or name in (driver.name for driver in in_use.active_drivers()):
            raise ValueError(f"there is a target '{name}' already")
        special = {"folds_batch_norms": folds_batch_norms, "products_of_attention": products_of_attention}
        _registered[name] = write, special
        return write

    return register


def target_names() -> list[str]:
    """Every target there is in this process."""
    return sorted({HOST, *_OURS, *_registered, *(driver.name for driver in in_use.active_drivers())})


def is_driver(name: str) -> bool:
    """Whether a target is a driver, whose models are files that its device loads."""
    return name not in _registered


def find_target(name: str | None) -> ExportTarget:
    """The target of a name; None is the first active driver."""
    drivers = {driver.name: driver for driver in in_use.active_drivers()}
    if name is None:
        device = kernel_device(bringup.device())
        return ExportTarget(in_use.driver_of(device.index).name, device, write_file)
    if name in _OURS:
        importlib.import_module(_OURS[name])
    if name in _registered:
        write, special = _registered[name]
        return ExportTarget(name, tracing_device(), write, **special)
    if name == HOST and _HOST_DRIVER not in drivers:
        raise ValueError(
            f"target 'host' is this machine's CPU, behind the driver '{_HOST_DRIVER}', and active is "
            f"{', '.join(drivers) or 'none'}: set BRINGUP_DRIVERS={_HOST_DRIVER}"
        )
    if name != HOST and name not in drivers:
        raise ValueError(f"there is no target '{name}'; there are {', '.join(target_names())}")
    return ExportTarget(name, kernel_device(bringup.device(_HOST_DRIVER if name == HOST else name)), write_file)


def tracing_device() -> torch.device:
    """A device to trace graphs on that run elsewhere: any, as nothing is compiled for it."""
    device = bringup.device()
    return torch.device(device.type, device.index or 0)


def kernel_device(device: torch.device) -> torch.device:
    """The device, opened; an error if its driver compiles no kernels."""
    if device.type != in_use.device_type():
        raise ValueError(f"'{device}': exported models run on devices of type '{in_use.device_type()}'")
    device = torch.device(device.type, device.index or 0)
    torch.empty(0, device=device)  # the first use opens the device and registers its kernels
    compiler_of(device)
    return device


def compiler_of(device: torch.device) -> KernelCompiler:
    """What compiles for an open device; an error if its driver compiles no kernels."""
    compiler = compiler_for(device.index)
    if compiler is None:
        hint = ": BRINGUP_SIM=mode=kernels" if in_use.driver_of(device.index).name == _HOST_DRIVER else ""
        raise RuntimeError(f"{device}: its driver compiles no kernels, so no exported model runs there{hint}")
    return compiler


def write_file(
    program: GraphProgram,
    constants: Sequence[memoryview],
    out: Path,
    *,
    examples: Sequence[torch.Tensor] = (),
    **options: Any,
) -> None:
    """One file for ``bringup.load``."""
    if options:
        raise TypeError(f"unknown option {next(iter(options))!r} for target {program.target}: it has none")
    write_artifact(out, manifest_of(program), constants)
