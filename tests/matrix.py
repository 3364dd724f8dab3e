"""Builds bringup and runs its tests with other versions of torch; the results are rows of ``results/matrix.json``.

python -m tests.matrix 2.12.1 2.15.0            each in a copy of this tree and a .venv of its own, deleted afterwards
python -m tests.matrix --here                   with the torch and the build that are here: no .venv, no network
python -m tests.matrix --here -- tests/unit     what follows -- goes to pytest

Versions are tried one at a time: a torch with its CUDA libraries takes 5 GB. A copy is built by its own Makefile, so
that what is built here stays as it is.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.recording import RESULTS, ROOT, commit, record, recorded

FOLDER = ROOT / "build" / "matrix"
#: Packages without which some tests are skipped; a row names those that were not there.
OPTIONAL = "expecttest hypothesis pytest_timeout rich scipy_openblas32 typer unicorn xdist ziglang".split()
VERSION = "import torch; print(torch.__version__)"
#: Failing tests that a row names; it always counts them all.
NAMED = 200
Row = dict[str, Any]


def copy_tree(to: Path) -> None:
    """Copies what git knows or would add, as it is on the disk."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def failing(report: Path) -> tuple[dict[str, int], list[str]]:
    """Reads a JUnit file: how many tests passed, failed, were skipped; the names of those that failed."""
    counts, names = {"passed": 0, "failed": 0, "skipped": 0}, []
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        counts[kind] += 1
        if kind == "failed":
            names.append(f"{case.get('classname')}::{case.get('name')}")
    return counts, sorted(names)


def not_tested(why: str) -> Row:
    """A row without counts."""
    return {"failed": why, "commit": commit(), "date": time.strftime("%Y-%m-%d", time.gmtime())}


def run_tests(python: str, tree: Path, arguments: list[str]) -> Row:
    """Runs pytest in a tree that is built; returns its row."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BRINGUP_")}
    environment["PYTHONPATH"] = str(tree)
    environment.setdefault("CUDA_VISIBLE_DEVICES", "")  # bringup leaves a process with a GPU alone unless it is asked

    def ask(code: str) -> str:
        command = [python, "-c", code]
        done = subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    missing = ask(f"from importlib.util import find_spec as f; print(*[n for n in {OPTIONAL} if not f(n)])").split()
    with tempfile.TemporaryDirectory() as folder:
        report, cpu = Path(folder, "report.xml"), Path(folder, "cpu.json")
        command = [python, "-m", "pytest", f"--junitxml={report}", f"--cpu-times={cpu}"]
        command += ["-n", "2", "--dist", "loadfile"] if "xdist" not in missing and "-n" not in arguments else []
        start = time.time()
        status = subprocess.run([*command, *arguments], cwd=tree, env=environment, check=False).returncode
        if not report.exists():
            return not_tested(f"pytest ended with status {status}")
        counts, names = failing(report)
        minutes = json.loads(cpu.read_text())["data"]["CPU minutes"]
    return {
        **counts,
        "failing": names[:NAMED],
        "exit status": status,
        "tests": " ".join(arguments) or "all",
        "python": ask("import platform; print(platform.python_version())"),
        "machine": platform.machine(),
        "missing packages": missing,
        "CPU minutes": minutes,
        "minutes": round((time.time() - start) / 60, 1),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def in_its_own_environment(version: str, arguments: list[str], keep: bool) -> Row:
    """Builds a copy of this tree with that torch and tests it there; a row without counts says why it was not built."""
    tree = FOLDER / version
    shutil.rmtree(tree, ignore_errors=True)
    try:
        copy_tree(tree)
        built = subprocess.run(["make", "build", f"TORCH=torch=={version}", "VENV=.venv"], cwd=tree, check=False)
        if built.returncode != 0:
            return not_tested("the build failed")
        return run_tests(str(tree / ".venv" / "bin" / "python"), tree, arguments)
    finally:
        if not keep:
            shutil.rmtree(tree, ignore_errors=True)


def add_row(version: str, row: Row) -> None:
    rows = recorded("matrix")["data"] if (RESULTS / "matrix.json").exists() else {}
    rows[version] = row
    ordered = sorted(rows, key=lambda name: [int(part) for part in name.partition("+")[0].split(".")])
    file = record("matrix", {name: rows[name] for name in ordered})
    summary = {name: value for name, value in row.items() if name != "failing"}
    print(f"torch {version}: {summary}\n{file.relative_to(ROOT)} has it", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", help="of torch, as pip names them")
    parser.add_argument("--here", action="store_true", help="test the torch and the build that are here")
    parser.add_argument("--keep", action="store_true", help="leave the copies and their .venv in build/matrix")
    parser.add_argument("--no-record", action="store_true", help="print the rows and leave results/ alone")
    given, arguments = sys.argv[1:], []
    if "--" in given:
        place = given.index("--")
        given, arguments = given[:place], given[place + 1 :]
    options = parser.parse_args(given)
    if options.here == bool(options.versions):
        parser.error("name versions of torch, or say --here")
    rows = {}
    if options.here:
        if importlib.util.find_spec("bringup._C") is None:
            parser.error("bringup is not built here: python setup.py build_ext --inplace")
        version = subprocess.run([sys.executable, "-c", VERSION], check=True, capture_output=True, text=True)
        rows[version.stdout.strip()] = run_tests(sys.executable, ROOT, arguments)
    for version in options.versions:
        rows[version] = in_its_own_environment(version, arguments, options.keep)
        if not options.no_record:
            add_row(version, rows[version])
    if options.here and not options.no_record:
        add_row(*next(iter(rows.items())))
    if options.no_record:
        print(json.dumps(rows, indent=1))
    return int(any(row["failed"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
