"""The host's C compiler: finds it, asks what the CPU can do, and turns a C text into a shared object.

    binary = compile_c("void k(…) {…}", host_target())

Environment: ``BRINGUP_CC`` chooses the compiler (default: ``$CC``, cc, gcc, clang, the PyPI package ziglang), and
``BRINGUP_MARCH`` the instruction set (default: what the CPU has).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bringup.cache_directory import FAILED, UnsafeDirectory, cache_directory, open_private
from bringup.targets.c.host_cpu import march_target, probed_target
from bringup.targets.c.target import CTarget

#: For every compiler of generated C, of this machine or another. The bits of a result do not depend on these: no
#: contraction, no reassociation. Signed integers wrap, as torch's do, and a buffer may be read as another type.
#: -fno-trapping-math only frees the order of exception flags.
LANGUAGE = (
    "-O2",
    "-std=gnu11",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",
    "-fno-strict-aliasing",
)
FLAGS = (
    *LANGUAGE,
    "-fPIC",
    "-shared",
    "-nostdlib",
    "-w",
    # The assembler runs beside the compiler instead of after it: 33 ms instead of 39 ms for a small kernel (gcc 12).
    "-pipe",
)
#: Passes of gcc that a packed contraction (c/contract.py) gains nothing by, as its loops are written out in vectors:
#: without them gcc 12 takes 0.67 of the time for one, and the kernel is as fast. Other kernels keep the passes: with
#: math functions in them they would be 3 to 6 % slower.
CONTRACTION_FLAGS = (
    "-fno-thread-jumps",
    "-fno-tree-dominator-opts",
    "-fno-tree-pta",
    "-fno-tree-pre",
    "-fno-tree-vrp",
    "-fno-tree-vectorize",
    "-fno-tree-slp-vectorize",
    "-fno-tree-tail-merge",
    "-fno-code-hoisting",
    "-fno-gcse",
    "-fno-rerun-cse-after-loop",
    "-fno-crossjumping",
    "-fira-region=one",
)
_MICRO_KERNEL = " bu_tile_"
_NAMES = ("cc", "gcc", "clang")
_SHOWN_LINES = 30
_ROOM = 16 << 20


class CompilerMissing(RuntimeError):
    """There is no C compiler; the message says what was looked for and how to choose one."""


class CompileError(RuntimeError):
    """The compiler refused a source; ``source_path`` is where the source was kept."""

    def __init__(self, message: str, source_path: Path) -> None:
        super().__init__(message)
        self.source_path = source_path


# ---- which compiler ----
def find_compiler() -> tuple[str, ...]:
    """The command of the C compiler, its program as an absolute path; raises CompilerMissing."""
    return _find_compiler(os.environ.get("BRINGUP_CC", ""), os.environ.get("CC", ""), os.environ.get("PATH", ""))


@functools.lru_cache(maxsize=16)
def _find_compiler(chosen: str, conventional: str, path: str) -> tuple[str, ...]:
    names = [("", name) for name in _NAMES]
    wanted = [("BRINGUP_CC", chosen)] if chosen.strip() else [("CC", conventional), *names]
    for _, text in wanted:
        words = shlex.split(text)
        program = shutil.which(words[0], path=path) if words else None
        if program:
            return (os.path.abspath(program), *words[1:])
    if not chosen.strip() and importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "cc")
    looked = [f"{variable}={text}" if variable else text for variable, text in wanted if text.strip()]
    if not chosen.strip():
        looked.append("the Python package ziglang")
    raise CompilerMissing(
        f"no C compiler to build kernels with: looked for {', '.join(looked)} on PATH; install one (apt-get install "
        "gcc, or pip install ziglang), or set BRINGUP_CC to a compiler's command"
    )


@functools.lru_cache(maxsize=16)
def compiler_version(command: tuple[str, ...]) -> str:
    """The first line of ``cc --version``, read once per process and compiler."""
    result = _run([*command, "--version"], b"")
    lines = result.stdout.decode("utf-8", "replace").splitlines()
    if result.returncode != 0 or not lines:
        reason = result.stderr.decode("utf-8", "replace").strip() or _how_it_ended(result.returncode)
        raise CompilerMissing(
            f"the C compiler {shlex.join(command)} does not work: {reason}; set BRINGUP_CC to another"
        )
    return lines[0]


def identity(target: CTarget) -> str:
    """What besides the source decides the binary: compiler, its version, flags, instruction set. For cache keys."""
    command = find_compiler()
    flags = [*_all_flags(command, target), *CONTRACTION_FLAGS]
    return "\n".join([shlex.join(command), compiler_version(command), *flags])


# ---- which instruction set ----
def host_target() -> CTarget:
    """What the CPU of this machine can do, or what ``BRINGUP_MARCH`` asks for."""
    march = os.environ.get("BRINGUP_MARCH", "").strip()
    return march_target(march, _predefined) if march else probed_target()


def _predefined(march: str) -> frozenset[str]:
    """The macros the compiler predefines for a -march: how it says what an instruction set has."""
    command = find_compiler()
    macros, complaint = _macros(command, *_spelled(command, march))
    if complaint is not None:
        raise ValueError(f"BRINGUP_MARCH={march}: {shlex.join(command)} does not know it: {complaint}")
    return macros


@functools.lru_cache(maxsize=16)
def _is_gcc(command: tuple[str, ...]) -> bool:
    """Whether it takes gcc's names of passes; clang, which refuses some, says that it is GNU C as well."""
    macros, _ = _macros(command)
    return "__GNUC__" in macros and "__clang__" not in macros


def _macros(command: tuple[str, ...], *flags: str) -> tuple[frozenset[str], str | None]:
    """What the compiler predefines, and its words if it fails."""
    result = _run([*command, *flags, "-dM", "-E", "-x", "c", "-"], b"")
    if result.returncode != 0:
        words = result.stderr.decode("utf-8", "replace").strip().splitlines()
        return frozenset(), " ".join(words[:2])
    lines = result.stdout.decode("utf-8", "replace").splitlines()
    return frozenset(line.split()[1] for line in lines if line.startswith("#define ")), None


def _all_flags(command: tuple[str, ...], target: CTarget) -> list[str]:
    march = _spelled(command, target.isa) if target.isa else []
    # 2 mappings per loaded kernel instead of 4 (a process may have 65,530), 5 KB instead of 13; zig refuses the flag.
    link = [] if "ziglang" in command else ["-Wl,-z,noseparate-code"]
    return [*FLAGS, *link, *march]


def _spelled(command: tuple[str, ...], march: str) -> list[str]:
    # zig has its own names, with underscores: x86_64_v3.
    return [f"-march={march.replace('-', '_') if 'ziglang' in command else march}"]


# ---- compiling ----
def is_contraction(text: str) -> bool:
    """Whether CONTRACTION_FLAGS are for this source.

    >>> is_contraction("static void bu_tile_12(int64_t kc, …")
    True
    """
    return _MICRO_KERNEL in text


def compile_c(text: str, target: CTarget, extra_flags: Sequence[str] = ()) -> bytes:
    """The shared object of a C text; may be called from many threads and processes.

    The source goes in through a pipe and the object lies in memory (/dev/shm) where there is one: beyond the
    compiler's own time this costs about 1 ms. Raises CompileError, or CompilerMissing.
    """
    command = find_compiler()
    passes = CONTRACTION_FLAGS if is_contraction(text) and _is_gcc(command) else ()
    flags = [*_all_flags(command, target), *passes, *extra_flags]
    with tempfile.TemporaryDirectory(prefix="bringup-cc-", dir=_memory_directory()) as folder:
        output = os.path.join(folder, "kernel.so")
        result = _run([*command, *flags, "-x", "c", "-", "-o", output], text.encode(), folder)
        if result.returncode == 0:
            try:
                with open(output, "rb") as file:
                    return file.read()
            except OSError as error:
                result.stderr += f"it wrote no output: {error.strerror}".encode()
    raise _compile_error(command, flags, text, result)


def _compile_error(
    command: tuple[str, ...], flags: list[str], text: str, result: subprocess.CompletedProcess[bytes]
) -> CompileError:
    path = keep_source(text)
    words = result.stderr.decode("utf-8", "replace").replace("<stdin>", str(path)).strip().splitlines()
    shown = words[:_SHOWN_LINES] + ([f"… and {len(words) - _SHOWN_LINES} more lines"] if words[_SHOWN_LINES:] else [])
    again = shlex.join([*command, *flags, str(path), "-o", "kernel.so"])
    ending = _how_it_ended(result.returncode)
    return CompileError(
        "\n".join([f"the C compiler refused a kernel ({ending}); its source: {path}", *shown, f"again: {again}"]), path
    )


def keep_source(text: str) -> Path:
    """Writes a source that did not compile where the user can look at it: beside the cache, or in a new directory."""
    name = f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.c"
    base = cache_directory()
    if base is not None:
        try:
            os.close(open_private(base))
            (base / FAILED).mkdir(mode=0o700, exist_ok=True)
            (base / FAILED / name).write_text(text, encoding="utf-8")
            return base / FAILED / name
        except (OSError, UnsafeDirectory):
            pass  # the cache itself warns about it
    path = Path(tempfile.mkdtemp(prefix="bringup-failed-")) / name
    path.write_text(text, encoding="utf-8")
    return path


def _run(command: Sequence[str], source: bytes, folder: str | None = None) -> subprocess.CompletedProcess[bytes]:
    # English messages; and its temporary files where ours are.
    environment = {**os.environ, "LC_ALL": "C", **({"TMPDIR": folder} if folder else {})}
    try:
        return subprocess.run(command, input=source, capture_output=True, env=environment)
    except OSError as error:
        raise CompilerMissing(f"the C compiler {command[0]} cannot be started: {error.strerror}") from None


def _how_it_ended(returncode: int) -> str:
    if returncode < 0:
        return f"killed by {signal.Signals(-returncode).name}"
    return f"exit status {returncode}"


def _memory_directory() -> str | None:
    """/dev/shm if it has room (containers often give it 64 MiB); None: the usual place of temporary files."""
    try:
        free = os.statvfs("/dev/shm")
    except OSError:
        return None
    roomy = free.f_bavail * free.f_frsize >= _ROOM and os.access("/dev/shm", os.W_OK | os.X_OK)
    return "/dev/shm" if roomy else None
