"""Compiles DPU programs: UPMEM's dialect of C, for the simulator.

A program becomes x86-64 code with 32-bit pointers (x32), so that its ints, longs, pointers and structs have the chip's
sizes, and its variables in WRAM one block. The limits of the chip are checked here where the linker knows the answer.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .image import symbols
from .rv32 import check_iram, compile_rv32, compile_rv32_object, timing_blob
from .toolchain import (
    DPU_HEADERS,
    MRAM_BYTES,
    RUNTIME,
    STACK_BYTES,
    TASKLETS_MAX,
    WRAM_BYTES,
    DpuCompileError,
    DpuToolchainMissing,
    compiler,
    run_compiler,
)

#: Native code of so many bytes has fewer than 4,096 instructions on any machine: it need not be compiled as RV32.
_SURELY_IN_IRAM = 6144
#: The last bytes of an object file: its form as RV32 lies behind the native one, with its length.
_OBJECT = b"dpuform!"

_FLAGS = (
    "-mx32",
    "-O2",
    "-std=gnu11",
    "-ffreestanding",
    "-nostdinc",
    "-fno-pic",
    "-fno-pie",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fcf-protection=none",
    "-ffunction-sections",
    "-fdata-sections",
    "-fwrapv",
    "-fno-strict-aliasing",
    # The chip's floats are rounded after every operation.
    "-ffp-contract=off",
    "-g1",
)
_LINK = ("-nostdlib", "-static", "-no-pie", "-Wl,--emit-relocs,--no-relax,--build-id=none,--gc-sections,-z,noexecstack")


def compile_program(
    source: str | Path | Sequence[Path],
    *,
    tasklets: int = 16,
    stack_bytes: int = STACK_BYTES,
    flags: Sequence[str] = (),
    timed: bool = False,
) -> bytes:
    """The ELF file of a DPU program, given as C text or as files: what ``DpuSet.load`` and ``dpu_load`` take.

    ``stack_bytes`` is what WRAM is charged for each tasklet's stack. ``-DNR_TASKLETS=``, ``-DSTACK_SIZE_DEFAULT=`` and
    ``-DSTACK_SIZE_TASKLET_3=`` among ``flags`` count, as with the SDK's compiler. ``timed`` adds what counts its
    instructions. Files may be those of ``compile_object``, and archives of them.
    Raises DpuCompileError, with the compiler's words.
    """
    tasklets, stacks, rest = _machine_of(flags, tasklets, stack_bytes)
    if isinstance(source, str):
        return _compiled_text(source, tasklets, stacks, rest, timed)
    paths = [source] if isinstance(source, Path) else list(source)
    return _compile([str(path) for path in paths], tasklets, stacks, rest, timed)


def compile_object(source: Path, flags: Sequence[str] = ()) -> bytes:
    """The object file of one C file, to be linked by ``compile_program``."""
    tasklets, _, rest = _machine_of(flags, 1, STACK_BYTES)
    command = compiler()
    with tempfile.TemporaryDirectory(prefix="bringup-dpu-") as folder:
        output = Path(folder, "object.o")
        words = [*command, *_FLAGS, *_include_flags(command), f"-DNR_TASKLETS={tasklets}", *rest]
        run_compiler([*words, "-c", "-o", str(output), str(source)])
        native = output.read_bytes()
    try:
        counted = compile_rv32_object(str(source), tasklets, rest)
    except DpuToolchainMissing:
        return native
    return native + counted + len(counted).to_bytes(8, "little") + _OBJECT


def _rv32_forms(file: Path, folder: Path) -> list[str]:
    """Returns what stands for a C file, an object or an archive when the program is compiled as RV32."""
    if file.suffix == ".c":
        return [str(file)]
    data = file.read_bytes()
    members, at = [data], 8
    if data.startswith(b"!<arch>\n"):
        members = []
        while at + 60 <= len(data):
            nbytes = int(data[at + 48 : at + 58])
            if data[at : at + 1] != b"/" or data[at + 1 : at + 2].isdigit():  # not the tables of symbols and names
                members.append(data[at + 60 : at + 60 + nbytes].removesuffix(b"\n"))
            at += 60 + nbytes + nbytes % 2
    found = []
    for member in members:
        if not member.endswith(_OBJECT):
            raise DpuToolchainMissing(f"{file} was compiled without gcc for RISC-V: its instructions are not known")
        nbytes = int.from_bytes(member[-16:-8], "little")
        found.append(folder / f"{len(list(folder.iterdir()))}.o")
        found[-1].write_bytes(member[-16 - nbytes : -16])
    return [str(one) for one in found]


def _machine_of(flags: Sequence[str], tasklets: int, stack_bytes: int) -> tuple[int, int, tuple[str, ...]]:
    """Returns the tasklets, the bytes of all their stacks, and what flags are left."""
    own: dict[int, int] = {}
    for flag in flags:
        if match := re.fullmatch(r"-DNR_TASKLETS=(\d+)", flag):
            tasklets = int(match[1])
        if match := re.fullmatch(r"-DSTACK_SIZE_DEFAULT=(\d+)", flag):
            stack_bytes = int(match[1])
        if match := re.fullmatch(r"-DSTACK_SIZE_TASKLET_(\d+)=(\d+)", flag):
            own[int(match[1])] = int(match[2])
    if not 1 <= tasklets <= TASKLETS_MAX:
        raise DpuCompileError(f"{tasklets} tasklets: a DPU runs 1 to {TASKLETS_MAX}")
    stacks = sum(own.get(tasklet, stack_bytes) for tasklet in range(tasklets))
    return tasklets, stacks, tuple(flag for flag in flags if not flag.startswith("-DNR_TASKLETS="))


@functools.lru_cache(maxsize=256)
def _compiled_text(text: str, tasklets: int, stacks: int, flags: tuple[str, ...], timed: bool) -> bytes:
    with tempfile.TemporaryDirectory(prefix="bringup-dpu-") as folder:
        path = Path(folder, "kernel.c")
        path.write_text(text, encoding="utf-8")
        return _compile([str(path)], tasklets, stacks, flags, timed)


def _compile(sources: list[str], tasklets: int, stacks: int, flags: tuple[str, ...], timed: bool) -> bytes:
    command = compiler()
    words = [*command, *_FLAGS, *_include_flags(command), f"-DNR_TASKLETS={tasklets}", *flags]
    with tempfile.TemporaryDirectory(prefix="bringup-dpu-") as folder:
        output = Path(folder, "program.dpu")
        link = [
            *_LINK,
            f"-Wl,-T,{RUNTIME / 'native.ld'},--defsym,__bringup_tasklets={tasklets}",
            f"-Wl,--defsym,__bringup_stacks={stacks}",
        ]
        run_compiler([*words, *link, "-o", str(output), *sources, _runtime_object(command, tasklets)])
        program = output.read_bytes()
    text_bytes = _check_wram(program, tasklets, stacks)
    return program + _counted(sources, tasklets, stacks, flags, timed, text_bytes)


def _counted(
    sources: list[str], tasklets: int, stacks: int, flags: tuple[str, ...], timed: bool, text_bytes: int
) -> bytes:
    """The program as RV32 with what counts it, if that is wanted; and IRAM's limit, where it may be passed."""
    if not timed and text_bytes < _SURELY_IN_IRAM:
        return b""
    try:
        with tempfile.TemporaryDirectory(prefix="bringup-dpu-") as folder:
            forms = [form for source in sources for form in _rv32_forms(Path(source), Path(folder))]
            counted = compile_rv32(forms, tasklets, stacks, flags)
    except DpuToolchainMissing:
        if timed:
            raise
        return b""
    check_iram(counted)
    blob = timing_blob(counted) if timed else b""
    return blob + len(blob).to_bytes(8, "little") + b"dputime!" if timed else b""


@functools.lru_cache(maxsize=1)
def _objects() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="bringup-dpu-runtime-")


@functools.lru_cache(maxsize=64)
def _runtime_object(command: tuple[str, ...], tasklets: int) -> str:
    """The run-time, compiled once per process and number of tasklets."""
    path = Path(_objects().name, f"runtime{tasklets}.o")
    words = [*command, *_FLAGS, *_include_flags(command), f"-DNR_TASKLETS={tasklets}"]
    run_compiler([*words, "-c", str(RUNTIME / "runtime.c"), "-o", str(path)])
    return str(path)


@functools.lru_cache(maxsize=16)
def _include_flags(command: tuple[str, ...]) -> tuple[str, ...]:
    own = subprocess.run([*command, "-print-file-name=include"], capture_output=True, text=True, check=True)
    return ("-isystem", str(DPU_HEADERS), "-isystem", own.stdout.strip())


def _check_wram(program: bytes, tasklets: int, stacks: int) -> int:
    """Returns the bytes of native code, as a by-product."""
    table = symbols(program)
    data = table["__bringup_data_end"].address - table["__bringup_wram_start"].address
    if data + stacks > WRAM_BYTES:
        raise DpuCompileError(
            f"the program needs {data + stacks:,} bytes of WRAM, a DPU has {WRAM_BYTES:,}: variables and constants "
            f"{data:,}, and {tasklets} stacks of {stacks:,} in all (-DSTACK_SIZE_DEFAULT= makes them smaller)"
        )
    mram = table["__sys_used_mram_end"].address - 0x08000000
    if mram > MRAM_BYTES:
        raise DpuCompileError(f"the program's MRAM variables take {mram:,} bytes, a DPU has {MRAM_BYTES:,}")
    return table["__bringup_services"].address - 0x40000000
