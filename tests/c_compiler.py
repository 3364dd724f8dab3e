"""Compiles the small C programs and drivers that tests need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
INCLUDE = ROOT / "bringup" / "include"


def search_path() -> str:
    """PATH for torch's own builds: ninja of this Python, and ccache before the compiler where setup.py has put it."""
    tools = [ROOT / "build" / "ccache", Path(sys.executable).parent]
    return os.pathsep.join([*map(str, tools), os.environ.get("PATH", os.defpath)])


def compile_c(folder: Path, source: str, *flags: str, name: str = "program") -> Path:
    (folder / f"{name}.c").write_text(source)
    result = folder / (f"lib{name}.so" if "-shared" in flags else name)
    command = [
        "cc",
        "-Wall",
        "-Werror",
        f"-I{INCLUDE}",
        *flags,
        "-o",
        str(result),
        str(folder / f"{name}.c"),
        "-lpthread",
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return result
