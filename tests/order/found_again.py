"""Puts known bugs back into the core, one at a time, and measures how soon the checker finds each of them.

    python -m tests.order.found_again --record
    python -m tests.order.found_again --only "a source read" --minutes 1

Each bug is a small change of a copy of the tree, which is built in a folder of its own. A change whose text is no
longer in the source ends the run: then this file has to follow the source.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.recording import RESULTS, commit, record, recorded
from tests.order.check import OUT_OF_MEMORY, ROOT, Checker, Finding

COPY = ROOT / "build" / "found_again"
SOURCES = ("bringup", "setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")


@dataclass(frozen=True)
class Bug:
    """A wait or a duty of the core that a change takes away."""

    name: str
    file: str
    old: str
    new: str
    also: tuple[str, str, str] | None = None  # where two waits do the same: file, old and new text of the other


BUGS = (
    Bug(
        "memory goes back to the driver while its stream uses it",
        "bringup/csrc/runtime/allocator.cpp",
        "idle[stream] = backend.finish_work(stream);",
        "idle[stream] = true;",
    ),
    Bug(
        "a CPU kernel takes memory that another thread's queued work still writes",
        "bringup/csrc/pytorch/allocator.cpp",
        "if (C10_UNLIKELY(device.busy(stream)) && !device.finish_work(stream)) {",
        "if (false) {",
    ),
    Bug(
        "memory of another process is closed while queued work reads it",
        "bringup/csrc/python/storages.cpp",
        "if (device.usable() && device.finish_work(kAllStreams))",
        "if (device.usable())",
        ("bringup/torch_device/sharing.py", "if not _C.is_open(index) or _C.finish_work(index):", "if True:"),
    ),
    Bug(
        "an error of queued work is lost when the allocator waits",
        "bringup/csrc/runtime/waiting.cpp",
        "  if (met) keep_failure(stream, *met);\n",
        "",
    ),
    # Waits that have always been there: the checker would notice if one went missing.
    Bug(
        "a source read by a copy to another device is not waited for",
        "bringup/csrc/aten/copy.cpp",
        "    target.wait(copied, source, from_stream);\n",
        "",
    ),
    Bug(
        "a copy to another device does not wait for what it reads",
        "bringup/csrc/aten/copy.cpp",
        "    source.wait(ready, target, to_stream);\n",
        "",
    ),
    Bug(
        "ordinary host memory is read after the call",
        "bringup/csrc/aten/copy.cpp",
        "    if (!recorded) device.drain(current_stream(index)); // pageable memory may change as soon as we return\n",
        "    (void)recorded;\n",
    ),
    Bug(
        "pinned memory is reused while a copy reads it",
        "bringup/csrc/aten/copy.cpp",
        "is_pinned(host.const_data_ptr()) && record_pinned(host.storage().data_ptr(), stream_of(index));",
        "is_pinned(host.const_data_ptr());",
    ),
    Bug(
        "a tensor is sent to another process before it is computed",
        "bringup/csrc/python/storages.cpp",
        "      device.synchronize(); // the other process knows nothing of our streams\n",
        "",
    ),
    Bug(
        "record_stream does nothing",
        "bringup/csrc/pytorch/allocator.cpp",
        "if (device.memory_pool(id) != block->stream) owner.record_stream(block, id);",
        "(void)owner; (void)id;",
    ),
)


def put_back(bug: Bug) -> None:
    """Writes the change into the copy."""
    for file, old, new in ((bug.file, bug.old, bug.new), *((bug.also,) if bug.also else ())):
        text = (COPY / file).read_text()
        if text.count(old) != 1:
            sys.exit(f"{bug.name}: {file} has this text {text.count(old)} times, not once:\n{old}")
        (COPY / file).write_text(text.replace(old, new))


def build() -> None:
    """Builds the copy; what was compiled for this tree comes from ccache where there is one."""
    environment = {**os.environ, "CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    result = subprocess.run(command, cwd=COPY, env=environment, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"the copy does not build:\n{result.stdout[-4000:]}{result.stderr[-4000:]}")


def refresh() -> None:
    """Makes the copy equal to the tree; files that did not change keep their dates, and so what was built of them."""
    for name in SOURCES:
        for file in (ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name]:
            target = COPY / file.relative_to(ROOT)
            if file.is_dir() or "__pycache__" in file.parts or file.suffix == ".so":
                continue
            if not target.exists() or target.read_bytes() != file.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


def search(minutes: float) -> tuple[dict[str, Any], Finding | None]:
    """Returns how soon the checker finds a difference in the copy, and what it looks like when it is small."""
    start, programs, until = time.monotonic(), 0, time.monotonic() + minutes * 60
    with Checker(COPY) as checker:
        for _, finding in checker.seeds(range(10**9)):
            programs += 1
            if finding and not finding.text.startswith(OUT_OF_MEMORY):
                seconds = round(time.monotonic() - start, 1)
                return {"found": True, "seconds": seconds, "programs": programs}, checker.shrink(finding)
            if time.monotonic() > until:
                return {"found": False, "seconds": round(time.monotonic() - start, 1), "programs": programs}, None
    raise AssertionError("there is always another seed")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.order.found_again", description=__doc__)
    parser.add_argument("--only", default="", help="bugs with this text in their name")
    parser.add_argument("--minutes", type=float, default=5, help="how long to look for each (default 5)")
    parser.add_argument("--record", action="store_true", help="write results/order_found_again.json")
    options = parser.parse_args()
    rows = _recorded_so_far() if options.record else {}
    for bug in [bug for bug in BUGS if options.only in bug.name and bug.name not in rows]:
        refresh()
        put_back(bug)
        build()
        row, finding = search(options.minutes)
        rows[bug.name] = {"bug": bug.name, **row, "program": finding.report().splitlines() if finding else []}
        answer = f"found in {row['seconds']} s, program {row['programs']}" if finding else "NOT FOUND"
        print(f"{bug.name}: {answer}", flush=True)
        if finding:
            print(finding.report() + "\n", flush=True)
        if options.record:
            command = "python -m tests.order.found_again --record"
            record("order_found_again", {"bugs": list(rows.values())}, command=command)
    return 0 if all(row["found"] for row in rows.values()) else 1


def _recorded_so_far() -> dict[str, dict[str, Any]]:
    """Returns the bugs recorded at this commit: a run may be stopped and continued."""
    if (RESULTS / "order_found_again.json").exists() and recorded("order_found_again")["commit"] == commit():
        return {row["bug"]: row for row in recorded("order_found_again")["data"]["bugs"]}
    return {}


if __name__ == "__main__":
    sys.exit(main())
