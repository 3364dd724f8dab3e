"""What the package is made of, before its layers and after: lines, classes, hops, build and import.

    python benchmarks/house.py --record            # results/house.json, then `make docs` writes docs/house.md
    python benchmarks/house.py --no-build          # without compiling both trees from nothing (5 CPU minutes)

Lines and classes are read from the sources, hops are counted by a profiler inside of one call, seconds are CPU time.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from checkouts import BEFORE, Checkout, before, build_from_nothing, here
from recording import record
from rich.console import Console
from rich.progress import track
from rich.table import Table

#: Row → what it is before and after.
Facts: TypeAlias = "dict[str, float | int | str]"

#: What one launch is described by on its way to the driver: the class, and the files it may stand in.
LAUNCHES = {
    "a kernel and what it gets, at any stage": (r"class Launch\b", ("bringup/compile/kernels.py",)),
    "what a lowering launches": (r"class Launch\b", ("bringup/lowering/call.py",)),
    "what a program launches": (r"class Launch\b", ("bringup/ir/program.py",)),
    "a kernel while it is fused": (r"class Piece\b", ("bringup/graph/fusion/piece.py",)),
    "a kernel of a graph": (r"class KernelCall\b", ("bringup/graph/program.py",)),
    "the same with its sizes": (r"class FilledLaunch\b", ("bringup/graph/structure.py", "bringup/compile/kernels.py")),
    "a step of a bare-metal program": (r"class Step\b", ("bringup/graph/bare_metal/static_program.py",)),
    "what the core launches": (r"struct KernelLaunch\b", ("bringup/csrc/aten/plan.h",)),
    "what a driver is called with": (r"class Launch\b", ("bringup/driver.py", "bringup/driver/types.py")),
}

#: Where an op can be defined: tables that something writes to, and C++ that has an op's arithmetic.
PLACES = {
    "one table of definitions": (r"^DEFINITIONS\b", ("bringup/lowering/registry.py",)),
    "table of lowerings": (r"^LOWERINGS: dict\[", ("bringup/lowering/registry.py",)),
    "table of lowerings for graphs": (r"^GRAPH_LOWERINGS: dict\[", ("bringup/lowering/registry.py", "bringup/graph")),
    "table of composed ops": (r"^COMPOSED: dict\[", ("bringup/lowering/composed.py", "bringup/lowering")),
    "table of decompositions": (r"^OWN: dict\[", ("bringup/graph", "bringup/graph/export")),
    "C++: recurrent cells": (r"lstm_cell|gru_cell", ("bringup/csrc",)),
    "C++: ops of random numbers": (r'own_kernel\("aten::(?:uniform_|normal_|random_)', ("bringup/csrc",)),
}

#: Counts the Python functions of the package that one call enters, their files, and calls from there into C++.
COUNTER = """
import json, sys, torch
import bringup
inside = str(__import__("pathlib").Path(bringup.__file__).parent)

class Hops:
    def __enter__(self):
        self.functions, self.files, self.into_core = set(), set(), 0
        self.program = sys._getframe().f_globals
        sys.setprofile(self.note)
        return self
    def __exit__(self, *_):
        sys.setprofile(None)
    def is_ours(self, frame):  # also what the package generates and runs
        file = frame.f_code.co_filename
        generated = file.startswith("<") and not file.startswith("<frozen") and frame.f_globals is not self.program
        return file.startswith(inside) or (generated and "torch" not in str(frame.f_globals.get("__name__")))
    def note(self, frame, event, argument):
        if event == "call" and self.is_ours(frame):
            code = frame.f_code
            self.functions.add((code.co_filename, code.co_firstlineno, code.co_name))
            self.files.add(code.co_filename)
        elif event == "c_call" and getattr(argument, "__module__", "") == "bringup._C":
            self.into_core += 1
    def result(self):
        return [len(self.functions), len(self.files), self.into_core]

def counted(work):
    with Hops() as hops:
        work()
    return hops.result()

found = {}
x, y = (torch.ones(4, device="sim") for _ in range(2))
x.mul(y)  # opens the device and loads what the first op needs
found["eager add, cold"] = counted(lambda: x.add(y))
found["eager add, warm"] = counted(lambda: x.add(y))
compiled = torch.compile(lambda a, b: ((a + b).relu() * b).sum(), backend="bringup")
first = torch.compile(lambda a: a.neg(), backend="bringup")
first(x)
found["compiled graph, cold"] = counted(lambda: compiled(x, y))
compiled(x, y)
found["compiled graph, warm"] = counted(lambda: compiled(x, y))
print(json.dumps(found))
"""
HOPS = ("Python functions", "files", "calls into the core")

IMPORT = "import time; start = time.process_time(); import torch; print(time.process_time() - start)"


def lines_of(tree: Checkout, inside: str = "bringup") -> dict[str, tuple[int, int]]:
    """Folder → (lines, files) of what git knows below ``inside``; top-level modules count as the folder itself."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", inside], cwd=tree.path, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    found: dict[str, tuple[int, int]] = {}
    for name in filter(None, listed):
        path = tree.path / name
        parts = path.relative_to(tree.path / inside).parts
        folder = parts[0] if len(parts) > 1 else "(top)"
        lines, files = found.get(folder, (0, 0))
        count = path.read_bytes().count(b"\n") if path.is_file() else 0
        found[folder] = (lines + count, files + 1)
    return found


def present(tree: Checkout, wanted: dict[str, tuple[str, Sequence[str]]]) -> list[str]:
    """Which of the named things a tree has, by a pattern in one of its files or folders."""
    found = []
    for name, (pattern, places) in wanted.items():
        files: list[Path] = []
        for place in map(tree.path.joinpath, places):
            files += (
                [place] if place.is_file() else [f for f in sorted(place.rglob("*")) if f.suffix in {".py", ".cpp"}]
            )
        if any(re.search(pattern, file.read_text(), re.MULTILINE) for file in files):
            found.append(name)
    return found


def hops(tree: Checkout) -> dict[str, list[int]]:
    """What one call of each kind goes through; see COUNTER."""
    with tempfile.TemporaryDirectory() as cache:  # cold: every kernel is compiled
        more = {"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "mode=kernels,threads=1", "BRINGUP_CACHE": cache}
        return dict(json.loads(tree.run("-c", COUNTER, more=more).splitlines()[-1]))


def import_seconds(trees: Sequence[Checkout], rounds: int) -> dict[str, float]:
    """The CPU seconds that each tree adds to ``import torch``: medians over alternating processes."""
    added: dict[str, list[float]] = {tree.name: [] for tree in trees}
    for number in track(range(rounds), "import torch, with and without"):
        for tree in trees if number % 2 else reversed(trees):
            seconds = {}
            for autoload in "01" if number % 2 else "10":
                seconds[autoload] = float(tree.run("-c", IMPORT, more={"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}))
            added[tree.name].append(seconds["1"] - seconds["0"])
    return {name: round(statistics.median(values), 3) for name, values in added.items()}


def facts_of(tree: Checkout) -> tuple[Facts, dict[str, list[str]]]:
    """Returns the rows of the table that need no clock, and the names behind the counts."""
    folders = lines_of(tree)
    named = {"classes for a launch": present(tree, LAUNCHES), "places an op can be defined": present(tree, PLACES)}
    facts: Facts = {
        "lines of the package": sum(lines for lines, _ in folders.values()),
        "files of the package": sum(files for _, files in folders.values()),
        "modules beside the folders": folders["(top)"][1],
        "lines of C++ in csrc/": folders["csrc"][0],
        **{what: len(names) for what, names in named.items()},
    }
    for call, counts in hops(tree).items():
        facts.update({f"{call}: {what}": count for what, count in zip(HOPS, counts)})
    return facts, named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default=BEFORE, help=f"what to compare with (default: {BEFORE})")
    parser.add_argument("--rounds", type=int, default=10, help="pairs of processes for the import's time (default: 10)")
    parser.add_argument("--no-build", dest="build", action="store_false", help="do not measure builds from nothing")
    parser.add_argument("--record", action="store_true", help="write results/house.json")
    options = parser.parse_args()
    trees = [before(options.commit), here()]
    found = {tree.name: facts_of(tree) for tree in trees}
    folders = {tree.name: lines_of(tree) for tree in trees}
    imports = import_seconds(trees, options.rounds)
    for tree in trees:
        facts = found[tree.name][0]
        facts["import torch, CPU seconds more"] = imports[tree.name]
        if options.build:
            facts["build from nothing, CPU seconds"] = round(build_from_nothing(tree))
    rows = [
        {"fact": fact, "before": value, "after": found["after"][0].get(fact, "–")}
        for fact, value in found["before"][0].items()
    ]
    names = sorted({*folders["before"], *folders["after"]})
    lines = [
        {"folder": name, **{when: folders[when].get(name, (0, 0))[0] for when in folders}}
        for name in sorted(names, key=lambda name: -folders["after"].get(name, (0, 0))[0])
    ]
    for title, table in ("", rows), ("lines by folder", lines):
        shown = Table(*table[0], title=title or None)
        for row in table:
            shown.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row.values()))
        Console().print(shown)
    if options.record:
        counted = [
            {"what": what, **{when: ", ".join(found[when][1][what]) for when in found}} for what in found["after"][1]
        ]
        print(record("house", {"rows": rows, "folders": lines, "counted": counted}))


if __name__ == "__main__":
    main()
