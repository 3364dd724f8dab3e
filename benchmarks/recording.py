"""Writes and reads recorded runs: ``results/<name>.json``, with the commit, date, machine, torch and command of each.

>>> record("order", {"programs": 2000, "differences": 0})          # writes results/order.json
>>> recorded("order")["data"]["differences"]
0

A number in README or docs comes from such a file and from nowhere else.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def commit() -> str:
    """The short commit that is checked out, with ``+changes`` if tracked files differ from it."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results", ":!docs", ":!README.md")
    return (_git("rev-parse", "--short=10", "HEAD") or "unknown") + ("+changes" if changed else "")


def machine() -> str:
    """The processor, how many cores this process may use, and the memory, in words."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB"


def command_line() -> str:
    """This process's command as a person would type it in a checkout."""
    program = Path(sys.argv[0]).resolve()
    inside = program.relative_to(ROOT) if program.is_relative_to(ROOT) else Path(*program.parts[-2:])
    if program.name == "__main__.py":
        return shlex.join(["python", "-m", ".".join(inside.parent.parts), *sys.argv[1:]])
    if program.suffix == ".py":
        return shlex.join(["python", str(inside), *sys.argv[1:]])
    return shlex.join([program.name, *sys.argv[1:]])


def _torch_version() -> str:
    if find_spec("torch") is None:  # the matrix of versions has each in a .venv of its own
        return "none"
    import torch

    return torch.__version__


def record(name: str | Path, data: dict[str, Any], *, command: str | None = None) -> Path:
    """Writes ``data`` to ``results/<name>.json``, or to the file given, with where it comes from; returns the file."""
    file = name if isinstance(name, Path) else RESULTS / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    header = {
        "commit": commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "torch": _torch_version(),
        "python": platform.python_version(),
        "command": command or command_line(),
    }
    file.write_text(json.dumps({**header, "data": data}, indent=1, ensure_ascii=False) + "\n")
    return file


def recorded(name: str) -> dict[str, Any]:
    """Returns what ``record`` wrote under this name."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return content
