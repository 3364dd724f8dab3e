"""Cross compilers for bare-metal RISC-V: clang from the Python package ziglang, or gcc or clang from the system.

Clang turns fixed-size vectors into vector instructions, so it is the first choice where vectors are asked for; every
one of them assembles our own vector kernels.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bringup.targets.toolchain import LANGUAGE

FLAGS = (*LANGUAGE, "-ffreestanding", "-mcmodel=medany")


class Core(NamedTuple):
    """How compilers name an instruction set."""

    machine: str
    """riscv64 or riscv32."""
    features: str
    """zig's -mcpu."""
    march: str
    abi: str


CORES = {
    "rv64gc": Core("riscv64", "generic_rv64+m+a+f+d+c", "rv64gc", "lp64d"),
    "rv64gc_zfh": Core("riscv64", "generic_rv64+m+a+f+d+c+zfh", "rv64gc_zfh", "lp64d"),
    "rv64gcv": Core("riscv64", "generic_rv64+m+a+f+d+c+v", "rv64gcv", "lp64d"),
    "rv32imc": Core("riscv32", "generic_rv32+m+c", "rv32imc_zicsr", "ilp32"),
    "rv32imfc": Core("riscv32", "generic_rv32+m+f+c", "rv32imfc_zicsr", "ilp32f"),
}
ISAS = tuple(CORES)


class ToolchainMissing(RuntimeError):
    """There is no compiler for RISC-V; the message says what was looked for and what to install."""


class BuildError(RuntimeError):
    """The cross compiler refused a program; the message holds its words."""


@dataclass(frozen=True)
class Toolchain:
    """A cross compiler: its command, and which family it belongs to."""

    command: tuple[str, ...]
    family: str
    """zig, clang or gcc."""

    @property
    def vectors(self) -> bool:
        """Whether it makes vector instructions from C (gcc before 14 only assembles them)."""
        return self.family != "gcc"

    @property
    def identity(self) -> str:
        """What it is, for cache keys: its command and its version."""
        return _version(self.command)

    def flags(self, isa: str) -> list[str]:
        """The flags for an instruction set, those of the language included."""
        if isa not in CORES:
            raise ValueError(f"isa '{isa}' is none of {', '.join(CORES)}")
        zig, features, march, abi = CORES[isa]
        if self.family == "zig":
            # zig adds run-time checks to C by default.
            named = ["-target", f"{zig}-freestanding-none", f"-mcpu={features}", "-fno-sanitize=all"]
        elif self.family == "clang":
            named = [f"--target={zig}-unknown-elf", f"-march={march}", "-fuse-ld=lld"]
        else:
            # the linker knows no relaxation of the code that other compilers made
            named = [f"-march={march}"]
        return [*named, f"-mabi={abi}", *FLAGS]

    def libraries(self, isa: str) -> list[str]:
        """The words that link no library but the compiler's own, for arithmetic that a core lacks: floats, 64 bits.

        >>> Toolchain(("clang",), "clang").libraries("rv64gc")
        ['-nostdlib']
        """
        if self.family == "gcc":
            return ["-nostdlib", _library_of_gcc(self.command, isa)]
        # zig links it by default; cores of 64 bits lack nothing, and for them it is not made for our addresses
        return [] if self.family == "zig" and isa.startswith("rv32") else ["-nostdlib"]


def find_toolchain(family: str | None = None) -> Toolchain:
    """The cross compiler to use: ``BRINGUP_RISCV_CC``, else of a family, else the first of zig, clang and gcc.

    >>> find_toolchain().family  # doctest: +SKIP
    'zig'
    """
    return _find(family, os.environ.get("BRINGUP_RISCV_CC", ""), os.environ.get("PATH", ""))


@functools.lru_cache(maxsize=16)
def _find(family: str | None, chosen: str, path: str) -> Toolchain:
    if chosen.strip() and family is None:
        words = shlex.split(chosen)
        program = shutil.which(words[0], path=path)
        if program is None:
            raise ToolchainMissing(f"BRINGUP_RISCV_CC={chosen}: there is no program '{words[0]}'")
        kind = "zig" if "zig" in chosen else "clang" if "clang" in chosen else "gcc"
        return Toolchain((program, *words[1:]), kind)
    for kind in ("zig", "clang", "gcc") if family is None else (family,):
        if kind == "zig" and importlib.util.find_spec("ziglang"):
            return Toolchain(_zig(), kind)
        names = {"clang": ("clang-19", "clang"), "gcc": ("riscv64-unknown-elf-gcc", "riscv64-elf-gcc")}.get(kind, ())
        for name in names:
            program = shutil.which(name, path=path)
            if program and (kind != "clang" or _knows_riscv(program)):
                return Toolchain((program,), kind)
    if family is not None:
        looked, advice = _MISSING[family]
        raise ToolchainMissing(f"no RISC-V compiler of the family {family}: looked for {looked}; {advice}")
    looked = ", ".join(words for words, _ in _MISSING.values())
    advice = ", or ".join(words for _, words in _MISSING.values())
    raise ToolchainMissing(f"no RISC-V compiler: looked for {looked}; {advice}, or set BRINGUP_RISCV_CC")


#: For each family: what was looked for, and what to do.
_MISSING = {
    "zig": ("the Python package ziglang", "pip install ziglang"),
    "gcc": ("riscv64-unknown-elf-gcc", "apt-get install gcc-riscv64-unknown-elf"),
    "clang": ("clang with the target riscv64, and ld.lld", "apt-get install clang lld"),
}


@functools.lru_cache(maxsize=16)
def _library_of_gcc(command: tuple[str, ...], isa: str) -> str:
    """The file of libgcc: -lgcc alone is that of another core where -march names more than letters."""
    _, _, march, abi = CORES[isa]
    asked = [*command, f"-march={march.partition('_')[0]}", f"-mabi={abi}", "-print-libgcc-file-name"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _zig() -> tuple[str, ...]:
    """The program in the package: to start it by ``python -m ziglang`` would start Python first."""
    spec = importlib.util.find_spec("ziglang")
    places = spec.submodule_search_locations if spec else None
    program = Path(places[0], "zig") if places else None
    if program is not None and os.access(program, os.X_OK):
        return str(program), "cc"
    return sys.executable, "-m", "ziglang", "cc"


@functools.lru_cache(maxsize=16)
def _version(command: tuple[str, ...]) -> str:
    said = subprocess.run([*command, "--version"], capture_output=True, text=True)
    return f"{shlex.join(command)} {said.stdout.partition(chr(10))[0]}"


def _knows_riscv(clang: str) -> bool:
    listed = subprocess.run([clang, "--print-targets"], capture_output=True, text=True)
    return "riscv64" in listed.stdout and shutil.which("ld.lld") is not None


def build(
    sources: Mapping[str, str | bytes],
    isa: str,
    link: Sequence[str],
    toolchain: Toolchain | None = None,
    extra: Sequence[str] = (),
) -> bytes:
    """Compiles and links files (name → text; headers and linker scripts too) in an empty folder; gives the ELF.

    ``link`` holds the linker's words, such as ``-Wl,-T,link.ld``.
    """
    toolchain = toolchain or find_toolchain()
    with tempfile.TemporaryDirectory(prefix="bringup-riscv-") as name:
        folder = Path(name)
        for file, text in sources.items():
            (folder / file).write_bytes(text.encode() if isinstance(text, str) else text)
        units = [file for file in sources if file.endswith((".c", ".S"))]
        command = [
            *toolchain.command,
            *toolchain.flags(isa),
            *extra,
            "-static",
            *units,
            *toolchain.libraries(isa),
            *link,
        ]
        run_compiler([*command, "-o", "program.elf"], folder)
        return (folder / "program.elf").read_bytes()


def run_compiler(command: Sequence[str], folder: Path) -> None:
    """Runs a compiler's command in a folder; raises BuildError with its words."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    except OSError as error:
        raise ToolchainMissing(f"the compiler {command[0]} cannot be started: {error.strerror}") from None
    if done.returncode:
        words = "\n".join(done.stderr.strip().splitlines()[:30])
        raise BuildError(f"{shlex.join(command)}\n{words}")
