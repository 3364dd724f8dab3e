"""Tools that programs for UPMEM's SDK call by name, in one folder: their own Makefiles then work unchanged.

``dpu-upmem-dpurte-clang`` compiles DPU programs, ``dpu-pkg-config`` (and ``pkg-config --… dpu``) says where our headers
and libdpu are. ``bringup upmem path`` prints the folder.
"""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from bringup import __version__
from bringup.cache_directory import cache_directory, open_private

from .compiler import compile_object, compile_program
from .host import LIBRARY
from .toolchain import HOST_HEADERS

#: Words about warnings, speed, other machines and libraries, which mean nothing here.
_SWALLOWED = tuple(
    "-O -g -f -W -w -m -std --std --target -l -L -pedantic -save-temps --save-temps -pipe -s -v -MD -MMD -MP -nostd "
    "-pg --profiling".split()
)
#: Those that change what a program means.
_PASSED = {"-fgnu89-inline", "-fshort-enums", "-funsigned-char", "-fsigned-char", "-fms-extensions"}
#: Of these the next word is a part.
_TWO_WORDS = {"-MF", "-MT", "-MQ", "-target", "-Xlinker", "-Xclang", "-mllvm", "-x", "-T", "-L"}


def tools_folder() -> Path:
    """The folder with the tools, made when it is not there yet."""
    base = cache_directory()
    if base is None:
        raise RuntimeError("BRINGUP_CACHE=off leaves no place for the tools: name a directory")
    os.close(open_private(base))
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    folder = base / f"upmem-tools-{__version__}-{python}"
    folder.mkdir(mode=0o700, exist_ok=True)
    write_tools(folder)
    return folder


def write_tools(folder: Path) -> None:
    """Writes the tools into a folder."""
    flags = (
        f"-I{shlex.quote(str(HOST_HEADERS))} -L{shlex.quote(str(folder))} -Wl,-rpath,{shlex.quote(str(folder))} -ldpu"
    )
    module = f"exec {shlex.quote(sys.executable)} -m bringup.upmem.tools"
    answer = f"""#!/bin/sh
# Answers for libdpu; other packages are pkg-config's.
for word in "$@"; do
  case "$word" in dpu|libdpu) echo "{flags}"; exit 0;; esac
done
"""
    scripts = {
        "dpu-upmem-dpurte-clang": f'#!/bin/sh\n{module} "$@"\n',
        "dpu-pkg-config": answer + f'echo "{flags}"\n',
        "pkg-config": answer
        + f'PATH=$(echo ":$PATH:" | sed "s#:{folder}:#:#;s#^:##;s#:\\$##")\nexec pkg-config "$@"\n',
    }
    for name, text in scripts.items():
        _replace(folder / name, functools.partial(_write_script, text=text))
    _replace(folder / "libdpu.so", lambda path: path.symlink_to(LIBRARY))


def _write_script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    make(fresh)
    fresh.replace(path)


def main(words: list[str]) -> int:
    """What ``dpu-upmem-dpurte-clang`` runs: clang's usual words, of which those about machines mean nothing here."""
    files: list[Path] = []
    flags: list[str] = []
    output: Path | None = None
    objects, rest = False, iter(words)
    for word in rest:
        if word == "-o":
            output = Path(next(rest, "a.out"))
        elif word in ("-D", "-U"):
            flags.append(word + next(rest, ""))
        elif word in ("-I", "-include", "-isystem", "-iquote"):
            flags += [word, next(rest, "")]
        elif word.startswith(("-I", "-D", "-U")) or word in _PASSED:
            flags.append(word)
        elif word == "-c":
            objects = True
        elif word in ("--version", "-dumpversion"):
            print(f"dpu-upmem-dpurte-clang of bringup {__version__}")
            return 0
        elif word in _TWO_WORDS:
            next(rest, "")
        elif not word.startswith("-"):
            files.append(Path(word))
        elif not word.startswith(_SWALLOWED):
            return _refused(f"what does {word} mean?")
    if strange := [str(file) for file in files if file.suffix not in (".c", ".o", ".a")]:
        return _refused(f"{strange[0]} is no C file, object or archive")
    if not files:
        return _refused("no C file")
    if not any(flag.startswith("-DNR_TASKLETS=") for flag in flags):
        flags.append("-DNR_TASKLETS=1")
    if objects and output and len(files) > 1:
        return _refused("-o names one file, and -c makes one of each C file")
    try:
        if not objects:
            (output or Path("a.out")).write_bytes(compile_program(files, flags=flags))
        for file in files if objects else ():
            (output or Path(file.name).with_suffix(".o")).write_bytes(compile_object(file, flags))
    except (RuntimeError, OSError) as error:
        return _refused(str(error))
    return 0


def _refused(words: str) -> int:
    print(f"dpu-upmem-dpurte-clang: {words}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
