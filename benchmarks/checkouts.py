"""Another commit beside this one: checked out, built, and importable by programs that this Python runs.

>>> with checkout("1d12182") as before:            # doctest: +SKIP
...     before.run("-c", "import bringup; print(bringup.__file__)")

The commit lies in ``build/checkouts/`` and stays there, built, for the next time.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from recording import ROOT

#: The last commit before the package was put into layers.
BEFORE = "1d12182"


@dataclass(frozen=True)
class Checkout:
    """A tree with a built bringup, and the name that tables have for it."""

    name: str
    path: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to import this tree's package, with a kernel cache of its own."""
        cache = self.path / "build" / "kernel_cache"
        return {**os.environ, "PYTHONPATH": str(self.path), "BRINGUP_CACHE": str(cache)}

    def run(self, *arguments: str, more: Mapping[str, str] | None = None) -> str:
        """Returns what ``python *arguments`` printed, run in the tree; RuntimeError with its words if it failed."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.path,
            env={**self.environment, **(more or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{self.name}: python {' '.join(arguments)[:200]} failed:\n{done.stderr[-3000:]}")
        return done.stdout


def here() -> Checkout:
    """This tree, as it lies here (built by ``make build``)."""
    return Checkout("after", ROOT)


def before(commit: str = BEFORE) -> Checkout:
    """Another commit, checked out and built on its first use (minutes)."""
    path = ROOT / "build" / "checkouts" / commit
    tree = Checkout("before", path)
    if not path.exists():
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(["git", "worktree", "add", "--detach", str(path), commit], cwd=ROOT, check=True)
    if not list(path.glob("bringup/_C.*.so")):
        build(tree)
    # Its own entry points and not those of the installed package: metadata that lies nearer is found first.
    if not list(path.glob("*.egg-info")):
        tree.run("setup.py", "-q", "egg_info", more={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    return tree


def build(tree: Checkout, *arguments: str) -> float:
    """Compiles a tree's C and C++ as ``make build`` does, without ccache; returns the CPU seconds, all cores."""
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    more = {"CCACHE_DISABLE": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    tree.run("setup.py", "build_ext", "--inplace", *arguments, more=more)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime


def build_from_nothing(tree: Checkout) -> float:
    """Returns the CPU seconds of a build of a fresh checkout of the tree's commit; what the tree itself holds stays."""
    fresh = ROOT / "build" / "checkouts" / f"{tree.name}-fresh"
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tree.path, capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        subprocess.run(["git", "worktree", "add", "-f", "--detach", str(fresh), commit], cwd=ROOT, check=True)
        return build(Checkout(tree.name, fresh))
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(fresh)], cwd=ROOT, check=False)
