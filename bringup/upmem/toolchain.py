"""What compiling for DPUs stands on: the host's compiler, the headers, the chip's limits."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from pathlib import Path

from bringup.targets.toolchain import CompilerMissing, find_compiler

FOLDER = Path(__file__).parent
DPU_HEADERS = FOLDER / "include" / "dpu"
HOST_HEADERS = FOLDER / "include" / "host"
RUNTIME = FOLDER / "runtime"

#: Limits of the chip.
TASKLETS_MAX = 24
WRAM_BYTES = 64 << 10
MRAM_BYTES = 64 << 20
#: What the SDK gives a tasklet where the program says nothing.
STACK_BYTES = 1024


class DpuToolchainMissing(RuntimeError):
    """This machine cannot compile DPU programs; the message says what is needed."""


class DpuCompileError(RuntimeError):
    """A DPU program was refused: by the compiler, or because it is larger than a DPU."""


def compiler() -> tuple[str, ...]:
    """The command of a compiler that makes x32 code; raises DpuToolchainMissing."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise DpuToolchainMissing(
            f"DPU programs are simulated as x86-64 code with 32-bit pointers, and this machine is {platform.machine()}"
        )
    try:
        command = find_compiler()
    except CompilerMissing as error:
        raise DpuToolchainMissing(str(error)) from None
    if "ziglang" in command:
        raise DpuToolchainMissing("DPU programs need gcc or clang for x32 code (apt-get install gcc)")
    return command


def run_compiler(command: list[str]) -> None:
    """Runs a compiler; raises DpuCompileError with its words."""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    if done.returncode:
        words = "\n".join(done.stderr.strip().splitlines()[:30])
        raise DpuCompileError(f"the compiler refused a DPU program\n{words}\nagain: {shlex.join(command)}")
