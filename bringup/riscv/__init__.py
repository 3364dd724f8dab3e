"""RISC-V machines that run bare-metal programs: our interpreter and QEMU behind one interface.

- machine: the interface; interpreter (with iss/, in C) and qemu are the machines
- device: registers in Python; echo, compute, gemm and remote are devices
- runtime: how programs start
- elf: programs, their functions and source lines
- toolchain: cross compilers
"""

from .compute import Compute
from .device import Device, DeviceError
from .echo import Echo
from .elf import Program, Symbol
from .gemm import Gemm
from .machine import (
    MACHINES,
    Counts,
    FunctionCounts,
    GuestError,
    Machine,
    MachineSpec,
    Stop,
    machine_class,
    open_machine,
)

__all__ = [
    "MACHINES",
    "Compute",
    "Counts",
    "Device",
    "DeviceError",
    "Echo",
    "FunctionCounts",
    "Gemm",
    "GuestError",
    "Machine",
    "MachineSpec",
    "Program",
    "Stop",
    "Symbol",
    "machine_class",
    "open_machine",
]
