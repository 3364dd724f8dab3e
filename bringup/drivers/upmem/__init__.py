"""UPMEM's processing-in-memory: many small processors (DPUs), each beside 64 MB of memory of its own.

    BRINGUP_UPMEM="dpus=64" BRINGUP_DRIVERS=upmem python infer.py

=========  ===========================================================================================================
dpus       of one device, 1 to 2,556 (default 64, one rank)
tasklets   of a DPU, 1 to 24 (default 16)
devices    1 to 16 (default 1)
hardware   ``auto`` (default), ``never`` (simulate), ``always`` (an error where there is none), or the path of the
           libdpu.so to use
timing     1: instructions are counted too, on RV32 (default 0: kernels take what their DMA does)
=========  ===========================================================================================================

The DPUs are simulated (``bringup.upmem``) where there is no hardware; the device's name says which it is.
``torch.upmem.report()`` shows what ran, what was moved, and estimated times.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.driver import CopyKind, DeviceSpec, DriverAbsent, Launch, Placement, PlacementKind
from bringup.driver import Driver as Base
from bringup.drivers.upmem.machine import Machine, Program, host_bytes
from bringup.drivers.upmem.options import parse_options

if TYPE_CHECKING:
    from bringup.upmem.sdk import Sdk

#: Of what ``compile`` returns; part of the disk cache's keys.
_FORMAT = "name, program"
_RANKS = Path("/sys/class/dpu_rank")


class Driver(Base):
    """DPUs behind the driver contract: partitioned memory, kernels in the DPU's C."""

    name = "upmem"
    device_functions = ("report", "reset_report")

    def __init__(self, options: str | None = None) -> None:
        self._options = parse_options(os.environ.get("BRINGUP_UPMEM", "") if options is None else options)
        self._machines: dict[int, Machine] = {}
        self._kernels: dict[int, Program] = {}
        self._handles = itertools.count(1)

    # ---- devices ----
    def device_count(self) -> int:
        """As many as the options ask for; 0 where something is missing."""
        return 0 if self._missing else self._options.devices

    def absent_reason(self) -> str:
        """What to install."""
        return self._missing or super().absent_reason()

    @functools.cached_property
    def _missing(self) -> str:
        from bringup.upmem.host import LIBRARY
        from bringup.upmem.sdk import COMPILER
        from bringup.upmem.toolchain import DpuToolchainMissing, compiler

        asked = self._options.hardware
        if self._sdk is not None:
            return ""
        if asked not in ("auto", "never"):
            found = "has no UPMEM SDK (UPMEM_HOME)" if asked == "always" and _RANKS.exists() else f"has no {_RANKS}"
            found = found if asked == "always" else f"has no libdpu.so there, or no {COMPILER} beside it or on PATH"
            return f"hardware={asked}, and this machine {found}: hardware=auto simulates"
        if not LIBRARY.exists():
            return f"the DPU simulator was not built ({LIBRARY} is missing): run make build"
        try:
            compiler()
        except DpuToolchainMissing as missing:
            return str(missing)
        return ""

    @functools.cached_property
    def _sdk(self) -> Sdk | None:
        """What reaches hardware; None: the DPUs are simulated."""
        from bringup.upmem.sdk import find_sdk

        asked = self._options.hardware
        if asked == "never" or (asked in ("auto", "always") and not _RANKS.exists()):
            return None
        return find_sdk(Path(asked) if asked.startswith("/") else None)

    def open(self, device: int) -> DeviceSpec:
        """Allocates the DPUs."""
        if self._missing:
            raise DriverAbsent(self._missing)
        if not 0 <= device < self._options.devices:
            raise ValueError(f"there is no device {device}: upmem has {self._options.devices}")
        if device not in self._machines:
            self._machines[device] = Machine(self._options, self._sdk)
        machine = self._machines[device]
        return DeviceSpec(
            name=f"UPMEM, {machine.count:,} DPUs ({self._kind})",
            memory_bytes=machine.heap.end - machine.heap.start,
            partitions=machine.count,
            default_placement=Placement(PlacementKind.SHARD) if machine.count > 1 else Placement(),
        )

    @property
    def _kind(self) -> str:
        return f"hardware, by {self._sdk.library}" if self._sdk else "simulated"

    def close(self, device: int) -> None:
        """Gives the DPUs back."""
        machine = self._machines.pop(device, None)
        if machine is not None:
            machine.close()

    def _machine(self, device: int) -> Machine:
        found = self._machines.get(device)
        if found is None:
            raise ValueError(f"device {device} is not open")
        return found

    # ---- memory ----
    def alloc(self, device: int, nbytes: int) -> int:
        """An offset in MRAM, the same in every DPU."""
        machine = self._machine(device)
        try:
            return machine.heap.allocate(nbytes)
        except MemoryError as error:
            raise MemoryError(f"the MRAM of a DPU, {machine.heap.end:,} bytes: {error}") from None

    def free(self, device: int, address: int) -> None:
        """Gives it back."""
        self._machine(device).heap.free(address)

    def copy(
        self,
        device: int,
        dst: int,
        src: int,
        nbytes: int,
        kind: CopyKind,
        stream: int,
        placement: Placement | None = None,
    ) -> None:
        """Moves bytes between host and DPUs, all DPUs of a piece at once."""
        machine, where = self._machine(device), placement or Placement()
        if nbytes == 0:
            return
        self._check(machine, dst if kind != CopyKind.DEVICE_TO_HOST else src, where, nbytes)
        if kind == CopyKind.HOST_TO_DEVICE:
            machine.write(dst, where, host_bytes(src, nbytes), "CPU→DPU", "copy to device")
        elif kind == CopyKind.DEVICE_TO_HOST:
            host_bytes(dst, nbytes)[:] = machine.read(src, where, nbytes, "DPU→CPU", "copy to host")
        else:
            self._check(machine, src, where, nbytes)
            self._move(machine, dst, where, src, where, nbytes, "copy on device")

    def relayout(
        self,
        device: int,
        dst: int,
        dst_placement: Placement,
        src: int,
        src_placement: Placement,
        nbytes: int,
        stream: int,
    ) -> None:
        """Moves bytes between DPUs: through the host, as they have no other way."""
        machine = self._machine(device)
        self._check(machine, dst, dst_placement, nbytes)
        self._check(machine, src, src_placement, nbytes)
        if nbytes:
            self._move(machine, dst, dst_placement, src, src_placement, nbytes, "relayout")

    @staticmethod
    def _move(machine: Machine, dst: int, to: Placement, src: int, where: Placement, nbytes: int, row: str) -> None:
        machine.write(dst, to, machine.read(src, where, nbytes, "inter-DPU", row), "inter-DPU", row)

    @staticmethod
    def _check(machine: Machine, address: int, placement: Placement, nbytes: int) -> None:
        if placement.kind == PlacementKind.SHARD:
            if placement.block <= 0 or placement.block % 8:
                raise ValueError(f"a block of {placement.block} bytes: it has to be a multiple of 8")
            row = placement.block * machine.count
            end = -(-(placement.offset + nbytes) // row) * placement.block
        else:
            end = placement.offset + nbytes
        if not machine.heap.start <= address <= address + end <= machine.heap.end:
            raise ValueError(f"{nbytes:,} bytes at {address:#x} are not in the memory of a DPU")

    # ---- kernels ----
    def target(self) -> str:
        """The DPU's dialect of C."""
        return f"dpu; tasklets={self._options.tasklets}"

    def compile(self, source: str) -> bytes:
        """A DPU program; one that is too large for a DPU is an error that names the limit."""
        from bringup.upmem.compiler import compile_program

        options = self._options
        if self._sdk:
            binary = self._sdk.compile(source, options.tasklets)
        else:
            binary = compile_program(source, tasklets=options.tasklets, timed=bool(options.timing))
        name = re.search(r"void (\w+)\(const uint64_t \*args, int64_t begin", source)
        return f"{name[1] if name else 'main'}\n".encode() + binary

    def compiler_identity(self) -> str:
        """The compiler, its flags and the headers it sees."""
        import hashlib
        import subprocess

        from bringup.upmem import toolchain

        command = (str(self._sdk.compiler),) if self._sdk else toolchain.compiler()
        version = subprocess.run([*command, "--version"], capture_output=True, text=True).stdout.partition("\n")[0]
        files = [*toolchain.DPU_HEADERS.rglob("*.h"), *toolchain.RUNTIME.iterdir()]
        files += toolchain.FOLDER.glob("*.py")
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files) if file.is_file())).hexdigest()
        return f"{version} {digest} tasklets={self._options.tasklets} timing={self._options.timing} {_FORMAT}"

    def load(self, device: int, binary: bytes, entry: str) -> int:
        """Keeps a program; the DPUs get it when it is launched."""
        handle = next(self._handles)
        name, _, program = binary.partition(b"\n")
        self._kernels[handle] = Program(name.decode(), program)
        return handle

    def launch(self, device: int, kernel: int, launch: Launch) -> bool:
        """Runs a program on the DPUs, and waits."""
        program = self._kernels.get(kernel)
        if program is None:
            raise ValueError(f"device {device} has no kernel {kernel}")
        self._machine(device).launch(program, launch)
        return True

    # ---- time ----
    def clock(self, device: int) -> int:
        """Estimated nanoseconds of work so far."""
        return int(self._machine(device).times.seconds * 1e9)

    def report(self, device: int = 0) -> str:
        """A table of what ran on a device: by kernel, the times of each phase, as estimates, and what was moved."""
        machine = self._machine(device)
        return machine.times.text(f"UPMEM device {device}, {self._kind}")

    def reset_report(self, device: int = 0) -> None:
        """Begins the table anew."""
        self._machine(device).times.clear()
