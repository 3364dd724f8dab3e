"""Kernels as bytes that run at any address, and the program that calls them: both made by a cross compiler."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from bringup.compile.kernel_cache import entry_key, kept
from bringup.riscv import runtime
from bringup.riscv.elf import Program
from bringup.riscv.machine import MachineSpec
from bringup.riscv.toolchain import BuildError, build, find_toolchain
from bringup.targets.toolchain import keep_source

_FOLDER = Path(__file__).parent
#: -fPIE: jump tables hold distances, and constants that hold addresses go where kernel.ld refuses them.
_KERNEL_FLAGS = ("-fPIE", "-fomit-frame-pointer", "-g0", "-w")
_KERNEL_LINK = ("-Wl,-T,kernel.ld", "-Wl,-e,0")
#: Scratch of a kernel lies on the stack.
_STACK_BYTES = 1 << 20


@dataclass(frozen=True)
class Image:
    """A compiled kernel: bytes for any address, and where in them its functions are."""

    data: bytes
    functions: tuple[tuple[int, int, str], ...]
    """(start, end, name), relative to the first byte."""

    def offset(self, entry: str) -> int:
        """Where a function starts."""
        for start, _, name in self.functions:
            if name == entry:
                return start
        raise ValueError(f"the binary has no function '{entry}'; it has {', '.join(f[2] for f in self.functions)}")


def compile_kernel(source: str, isa: str) -> bytes:
    """An ELF file whose loaded bytes need no relocation."""
    files = {"kernel.c": source, "memory.c": runtime.memory_functions(), "kernel.ld": _text("kernel.ld")}
    try:
        return build(files, isa, _KERNEL_LINK, extra=_KERNEL_FLAGS)
    except BuildError as error:
        raise BuildError(f"the RISC-V compiler refused a kernel; its source: {keep_source(source)}\n{error}") from None


def compiler_identity(isa: str) -> str:
    """What besides the source decides a kernel."""
    toolchain = find_toolchain()
    linked = entry_key(runtime.memory_functions(), _text("kernel.ld"))
    return "\n".join([toolchain.identity, *toolchain.flags(isa), *_KERNEL_FLAGS, linked])


def read_image(binary: bytes) -> Image:
    """The bytes and functions of what `compile_kernel` made."""
    program = Program(binary)
    if not program.segments:
        raise ValueError("the binary has nothing to load")
    low = min(segment.address for segment in program.segments)
    high = max(segment.address + segment.memory_bytes for segment in program.segments)
    data = bytearray(high - low)
    for segment in program.segments:
        at = segment.address - low
        data[at : at + len(segment.data)] = segment.data
    functions = tuple((start - low, min(end, high) - low, name) for start, end, name in program.functions)
    return Image(bytes(data), functions)


def command_loop(spec: MachineSpec) -> bytes:
    """The program of a guest, from the cache if it was built before."""
    files = {"command_loop.c": _text("command_loop.c"), **runtime.sources(spec, _STACK_BYTES)}
    toolchain = find_toolchain()
    key = entry_key("riscv command loop", spec.isa, toolchain.identity, *toolchain.flags(spec.isa), *files.values())
    return kept(key, lambda: build(files, spec.isa, runtime.LINK, toolchain))


@functools.cache
def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
