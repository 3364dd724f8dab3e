"""Puts known mistakes back into the runtime, one at a time, and shows that the stress programs find each.

From the repository root: ``python -m tests.sanitize.put_back [name …] [--record]``. Each mistake is a replacement of
text in ``bringup/csrc/runtime``; the programs are built under ThreadSanitizer. Takes about 20 seconds per mistake.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALLOCATOR = ("allocator", "block_pool")
SOURCES = {
    "allocator_stress": ALLOCATOR,
    "runtime_stress": ("device", "waiting", "recording", *ALLOCATOR),
}


#: A program with a mistake must fail in one of so many runs, one without in none: a race is a matter of luck.
RUNS = 3


@dataclass(frozen=True)
class Mistake:
    """Replacements of text, each of which must occur exactly once, and the program that must fail then."""

    program: str
    edits: tuple[tuple[str, str, str], ...]


MISTAKES = {
    "segments are freed while their stream works": Mistake(
        "allocator_stress",
        (("allocator.cpp", "idle[stream] = backend.finish_work(stream)", "idle[stream] = true"),),
    ),
    "a graph's segments are freed while a stream replays": Mistake(
        "allocator_stress", (("allocator.cpp", ": kAllStreams;", ": 0;"),)
    ),
    "recording an event again destroys what others wait for": Mistake(
        "runtime_stress",
        (
            ("waiting.cpp", "EventSlot::Mark::~Mark() { device.destroy(event); }", "EventSlot::Mark::~Mark() {}"),
            (
                "waiting.cpp",
                "  mark_.swap(mark);",
                "  mark_.swap(mark);\n  if (mark) mark->device.destroy(mark->event);",
            ),
        ),
    ),
    "the mark of an event is swapped without its mutex": Mistake(
        "runtime_stress",
        (("waiting.cpp", "  std::lock_guard lock(mutex_);\n  mark_.swap(mark);", "  mark_.swap(mark);"),),
    ),
    "a device opens while another thread still registers": Mistake(
        "runtime_stress",
        (
            (
                "opening.cpp",
                "  std::lock_guard lock(mutex_);\n  if (done_) return;",
                "  if (done_ || runner_.load() != std::thread::id()) return;",
            ),
        ),
    ),
    "a registration that failed is not tried again": Mistake(
        "runtime_stress",
        (
            (
                "opening.cpp",
                "    runner_ = std::thread::id();\n    throw;",
                "    runner_ = std::thread::id();\n    done_ = true;\n    throw;",
            ),
        ),
    ),
    "a capture is used after it has ended": Mistake(
        "runtime_stress",
        (
            (
                "recording.cpp",
                "return streams_[stream].recording;",
                "return {std::shared_ptr<Recording>(), streams_[stream].recording.get()};",
            ),
        ),
    ),
    "work is added to a capture that has ended": Mistake(
        "runtime_stress", (("recording.cpp", "  if (ended_) return false;\n", ""),)
    ),
    "generators that share a state do not share a mutex": Mistake(
        "runtime_stress",
        (
            (
                "recording.h",
                "    std::lock_guard lock(mutex_);\n    const RandomState before",
                "    const RandomState before",
            ),
        ),
    ),
    "a wait of the allocator takes the user's error": Mistake(
        "runtime_stress", (("waiting.cpp", "  if (met) keep_failure(stream, *met);\n", ""),)
    ),
    "a user's wait passes one that has taken an error and not kept it": Mistake(
        "runtime_stress",
        (
            ("waiting.cpp", "  destroy(event);\n  await_quiet_waits(stream);\n", "  destroy(event);\n"),
            ("waiting.cpp", "  await_quiet_waits(event.stream);\n", ""),
        ),
    ),
    "a stream counts as idle while an error of it is on its way": Mistake(
        "runtime_stress", (("waiting.cpp", "if (done && alone && ", "if (done && "),)
    ),
    "an event is destroyed while a user's wait asks for it": Mistake(
        "runtime_stress",
        (("waiting.cpp", "    slot.quiet_changed.wait(lock, [&] { return mine->second.asking == 0; });\n", ""),),
    ),
    "a second failure replaces the one that is kept": Mistake(
        "runtime_stress",
        (("waiting.cpp", "else if (std::string text = slot.failure->what();", "else if (std::string text;"),),
    ),
    "synchronize stops at the first stream that failed": Mistake(
        "runtime_stress", (("waiting.cpp", "      first = first ?", "      throw error;\n      first = first ?"),)
    ),
}


def build(folder: Path, program: str, edits: tuple[tuple[str, str, str], ...] = (), clean: Path | None = None) -> None:
    """Builds the program in ``folder``; objects of files that a mistake does not touch come from ``clean``."""
    runtime = folder / "runtime"
    shutil.copytree(ROOT / "bringup/csrc/runtime", runtime)
    for name, old, new in edits:
        text = (runtime / name).read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{name} has {text.count(old)} times, not once: {old!r}")
        (runtime / name).write_text(text.replace(old, new))
    edited = {name for name, *_ in edits}
    flags = ["-std=c++20", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{folder}", f"-I{ROOT / 'bringup/include'}"]
    if program == "runtime_stress":
        flags.append("-DBRINGUP_YIELD_POINTS")
    objects = []
    for source in (ROOT / f"tests/sanitize/{program}.cpp", *(runtime / f"{name}.cpp" for name in SOURCES[program])):
        if clean and source.name not in edited and not any(name.endswith(".h") for name in edited):
            objects.append(str(clean / f"{source.stem}.o"))
            continue
        objects.append(str(folder / f"{source.stem}.o"))
        subprocess.run(["g++", *flags, "-c", str(source), "-o", objects[-1]], check=True)
    subprocess.run(["g++", "-fsanitize=thread", "-pthread", *objects, "-o", str(folder / program)], check=True)


def fails(folder: Path, program: str) -> tuple[bool, str]:
    """Whether the program fails in one of its runs, and its last line about it."""
    fixed = ["setarch", "-R"] if subprocess.run(["setarch", "-R", "true"], capture_output=True).returncode == 0 else []
    for _ in range(RUNS):
        try:
            ran = subprocess.run([*fixed, str(folder / program)], capture_output=True, text=True, timeout=1800)
        except subprocess.TimeoutExpired:
            return False, "no end within half an hour"
        if ran.returncode != 0:
            break
    lines = (ran.stdout + ran.stderr).splitlines()
    marks = ("FAILED", "SUMMARY", "WARNING: ThreadSanitizer")
    said = next((line for mark in marks for line in lines if mark in line), lines[-1] if lines else "")
    return ran.returncode != 0, said.replace(str(folder), "…").strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize.put_back", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="mistakes; all without")
    parser.add_argument("--record", action="store_true", help="write results/put_back.json")
    options = parser.parse_args()
    if options.record and options.names:
        parser.error("--record is for all of them")
    if unknown := set(options.names) - set(MISTAKES):
        parser.error(f"no such mistake: {', '.join(sorted(unknown))}")
    clean, rows = {}, []
    with tempfile.TemporaryDirectory() as whole:
        for program in SOURCES:
            folder = Path(whole) / program
            folder.mkdir()
            build(folder, program)
            failed, said = fails(folder, program)
            print(f"| {program} as it is | {'FAILS: ' + said if failed else 'clean'} |", flush=True)
            clean[program] = not failed
        for name in options.names or MISTAKES:
            program = MISTAKES[name].program
            with tempfile.TemporaryDirectory() as folder:
                build(Path(folder), program, MISTAKES[name].edits, Path(whole) / program)
                failed, said = fails(Path(folder), program)
            rows.append({"mistake": name, "program": program, "found": failed, "said": said})
            print(f"| {name} | {'found' if failed else 'MISSED'}: {said[:110]} |", flush=True)
    if options.record:
        from benchmarks.recording import record

        data = {"clean": clean, "found": sum(row["found"] for row in rows), "mistakes": rows}
        print(record("put_back", data, command="python -m tests.sanitize.put_back --record"))
    return 0 if all(clean.values()) and all(row["found"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
