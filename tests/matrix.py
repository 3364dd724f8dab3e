"""Builds bringup and runs its tests with other versions of torch; the results are rows of ``results/matrix.json``.

python -m tests.matrix 2.12.1 2.15.0            each in a copy of this tree and a .venv of its own, deleted afterwards
python -m tests.matrix --here                   with the torch and the build that are here: no .venv, no network
python -m tests.matrix --here -- tests/unit     what follows -- goes to pytest
python -m tests.matrix --again 2.12.1           only what failed there, after a repair; the row says what was run again

Versions are tried one at a time: a torch with its CUDA libraries takes 5 GB. A copy is built by its own Makefile, so
that what is built here stays as it is. A run that is stopped (Ctrl-C, SIGTERM) leaves a row of what it had found.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.recording import RESULTS, ROOT, commit, record, recorded
from tests.outcomes import outcomes_in

FOLDER = ROOT / "build" / "matrix"
#: Packages without which some tests are skipped; a row names those that were not there.
OPTIONAL = "expecttest hypothesis pytest_timeout rich scipy_openblas32 typer xdist ziglang".split()
VERSION = "import torch; print(torch.__version__)"
#: Failing tests that a row names; it always counts them all.
NAMED = 200
#: The exit status in the row of a run that was stopped: the shell's for Ctrl-C.
STOPPED = 130
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


def counted(outcomes: Mapping[str, str]) -> Row:
    """Counts what became of tests; names those that failed, and those during which the run ended."""
    row: Row = {kind: list(outcomes.values()).count(kind) for kind in ("passed", "failed", "skipped")}
    row["failing"] = sorted(test for test, kind in outcomes.items() if kind == "failed")[:NAMED]
    if ended := sorted(test for test, kind in outcomes.items() if kind == "started"):
        row["not finished"] = ended[:NAMED]
    return row


def counted_again(row: Row, outcomes: Mapping[str, str]) -> Row:
    """Returns a row after some of its failing tests ran again; it keeps its commit and names the one of these."""
    again = counted(outcomes)
    return {
        **{name: value for name, value in row.items() if name != "not finished"},
        "passed": row["passed"] + again["passed"],
        "skipped": row["skipped"] + again["skipped"],
        "failed": row["failed"] - len(set(outcomes) & set(row["failing"])) + again["failed"],
        "failing": sorted({*again["failing"], *(set(row["failing"]) - set(outcomes))}),
        **({"not finished": again["not finished"]} if "not finished" in again else {}),
        "run again": {"tests": sorted(outcomes), "commit": commit(), "date": today()},
    }


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def not_tested(why: str) -> Row:
    """A row without counts."""
    return {"failed": why, "commit": commit(), "date": today()}


def run_tests(python: str, tree: Path, arguments: list[str]) -> tuple[Row, dict[str, str]]:
    """Runs pytest in a tree that is built; returns its row, and what became of each test."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BRINGUP_")}
    environment["PYTHONPATH"] = str(tree)
    environment.setdefault("CUDA_VISIBLE_DEVICES", "")  # bringup leaves a process with a GPU alone unless it is asked

    def ask(code: str) -> str:
        command = [python, "-c", code]
        done = subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    missing = ask(f"from importlib.util import find_spec as f; print(*[n for n in {OPTIONAL} if not f(n)])").split()
    with tempfile.TemporaryDirectory() as folder:
        outcomes, cpu = Path(folder, "outcomes.jsonl"), Path(folder, "cpu.json")
        command = [python, "-m", "pytest", f"--outcomes={outcomes}", f"--cpu-times={cpu}"]
        command += ["-n", "2", "--dist", "loadfile"] if "xdist" not in missing and "-n" not in arguments else []
        start = time.time()
        try:
            status = subprocess.run([*command, *arguments], cwd=tree, env=environment, check=False).returncode
        except KeyboardInterrupt:
            status = STOPPED
        found = outcomes_in(outcomes)
        minutes = json.loads(cpu.read_text())["data"]["CPU minutes"] if cpu.exists() else None
    if not found and status != STOPPED:
        return not_tested(f"pytest ended with status {status}"), found
    row = {
        **counted(found),
        "exit status": status,
        "tests": " ".join(arguments) or "all",
        "python": ask("import platform; print(platform.python_version())"),
        "machine": platform.machine(),
        "missing packages": missing,
        "CPU minutes": minutes,
        "minutes": round((time.time() - start) / 60, 1),
        "commit": commit(),
        "date": today(),
    }
    if status == STOPPED:
        row["tests"] += ", stopped before its end"
    return row, found


def built(version: str) -> str | None:
    """Copies this tree and builds it there with that torch; returns the Python to run, None if the build failed."""
    tree = FOLDER / version
    copy_tree(tree)
    done = subprocess.run(["make", "build", f"TORCH=torch=={version}", "VENV=.venv"], cwd=tree, check=False)
    return str(tree / ".venv" / "bin" / "python") if done.returncode == 0 else None


def tested(version: str, arguments: list[str], before: Row | None) -> Row:
    """Tests that version in its copy: everything, or what failed ``before``; a row without counts says why not."""
    failing = [*before["failing"], *before.get("not finished", [])] if before else []
    if before is None:
        shutil.rmtree(FOLDER / version, ignore_errors=True)
    elif not failing:
        return before
    python = built(version)
    if python is None:
        return not_tested("the build failed")
    if before is None:
        return run_tests(python, FOLDER / version, arguments)[0]
    return counted_again(before, run_tests(python, FOLDER / version, [*arguments, *failing])[1])


def rows_before() -> dict[str, Row]:
    return recorded("matrix")["data"] if (RESULTS / "matrix.json").exists() else {}


def add_row(version: str, row: Row) -> None:
    rows = rows_before()
    rows[version] = row
    ordered = sorted(rows, key=lambda name: [int(part) for part in name.partition("+")[0].split(".")])
    file = record("matrix", {name: rows[name] for name in ordered})
    summary = {name: value for name, value in row.items() if name != "failing"}
    print(f"torch {version}: {summary}\n{file.relative_to(ROOT)} has it", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", help="of torch, as pip names them")
    parser.add_argument("--here", action="store_true", help="test the torch and the build that are here")
    parser.add_argument("--again", action="store_true", help="run only what the recorded row names as failing")
    parser.add_argument("--keep", action="store_true", help="leave the copies and their .venv in build/matrix")
    parser.add_argument("--no-record", action="store_true", help="print the rows and leave results/ alone")
    given, arguments = sys.argv[1:], []
    if "--" in given:
        place = given.index("--")
        given, arguments = given[:place], given[place + 1 :]
    options = parser.parse_args(given)
    if options.here == bool(options.versions):
        parser.error("name versions of torch, or say --here")
    if options.again and (options.here or not set(options.versions) <= set(rows_before())):
        parser.error(f"--again needs a version that results/matrix.json has: {' '.join(rows_before())}")
    if options.here and importlib.util.find_spec("bringup._C") is None:
        parser.error("bringup is not built here: python setup.py build_ext --inplace")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a time limit, too, leaves a row
    rows = {}
    if options.here:
        version = subprocess.run([sys.executable, "-c", VERSION], check=True, capture_output=True, text=True)
        rows[version.stdout.strip()] = run_tests(sys.executable, ROOT, arguments)[0]
    for version in options.versions:
        try:
            rows[version] = tested(version, arguments, rows_before()[version] if options.again else None)
        finally:
            if not options.keep:
                shutil.rmtree(FOLDER / version, ignore_errors=True)
        if not options.no_record:
            add_row(version, rows[version])
            # The next copy has this row, and a test compares the pages with it.
            subprocess.run([sys.executable, "benchmarks/pages.py"], cwd=ROOT, check=True)
        if rows[version].get("exit status") == STOPPED:
            break
    if options.here and not options.no_record:
        add_row(*next(iter(rows.items())))
    if options.no_record:
        print(json.dumps(rows, indent=1))
    return int(any(row["failed"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
