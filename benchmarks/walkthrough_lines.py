"""Counts the lines of tests/walkthrough/newcomer, step by step: results/walkthrough_lines.json."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.recording import ROOT, record

FOLDER = ROOT / "tests" / "walkthrough" / "newcomer"
#: What each step adds, and in which files.
STEPS = {
    "a device: five methods, every op on the CPU": ("heron/memory.py",),
    "kernels: ops run on the chip": ("heron/kernels.py",),
    "two functions of the chip's library": ("heron/chip.py", "heron/ops.toml"),
    "a pip package; `import torch` finds the chip": ("pyproject.toml", "heron/__init__.py"),
    "an operator as a formula, with its gradient": ("swish.py",),
    "a GPT, eager and compiled": ("train_gpt.py",),
    "a model on bare metal": ("bare_metal.py",),
}


def steps() -> list[dict[str, Any]]:
    """Counts the lines that are not blank."""
    found = []
    for number, (what, files) in enumerate(STEPS.items(), 1):
        lines = [line for name in files for line in (FOLDER / name).read_text().splitlines() if line.strip()]
        links = ", ".join(f"[`{name}`](../tests/walkthrough/newcomer/{name})" for name in files)
        found.append({"step": number, "what": what, "files": links, "lines": len(lines)})
    return found


def main() -> None:
    counted = steps()
    record("walkthrough_lines", {"steps": counted, "lines": sum(step["lines"] for step in counted)})


if __name__ == "__main__":
    main()
