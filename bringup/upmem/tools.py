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

from .compiler import compile_program
from .host import LIBRARY
from .toolchain import HOST_HEADERS

_SWALLOWED = {"-g", "-Wall", "-Wextra", "-Werror", "-pedantic", "-flto", "-save-temps"}


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
    sources: list[Path] = []
    flags: list[str] = []
    output, rest = Path("a.out"), iter(words)
    for word in rest:
        if word == "-o":
            output = Path(next(rest, "a.out"))
        elif word in ("-I", "-D", "-include", "-U"):
            flags += [word, next(rest, "")]
        elif word.startswith(("-I", "-D", "-U")):
            flags.append(word)
        elif word.endswith(".c"):
            sources.append(Path(word))
        elif word in ("-c", "-S", "-E") or word.endswith((".o", ".a")):
            print(f"dpu-upmem-dpurte-clang: {word}: here a DPU program is compiled from its sources in one call")
            return 1
        elif not (word in _SWALLOWED or word.startswith(("-O", "-f", "-W", "-m", "-std", "--target", "-l", "-g"))):
            print(f"dpu-upmem-dpurte-clang: what does {word} mean?", file=sys.stderr)
            return 1
    if not sources:
        print("dpu-upmem-dpurte-clang: no C file", file=sys.stderr)
        return 1
    if not any(flag.startswith("-DNR_TASKLETS=") for flag in flags):
        flags.append("-DNR_TASKLETS=1")
    try:
        output.write_bytes(compile_program(sources, flags=flags))
    except (RuntimeError, OSError) as error:
        print(f"dpu-upmem-dpurte-clang: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
