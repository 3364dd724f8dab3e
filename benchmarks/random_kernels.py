"""Random kernels, compiled and interpreted: how many agree bit for bit (functions: within their stated ulp).

    python benchmarks/random_kernels.py --count 10000
    python benchmarks/random_kernels.py --count 2000 --march x86-64-v3
    python benchmarks/random_kernels.py --count 2000 --sanitize

Each kernel runs twice: all work units at once, and cut into three ranges in a random order. Exit status 1 if any
kernel disagrees; its text and its seed are printed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bringup.ir.arguments import bind_sizes
from bringup.ir.printer import kernel_text
from bringup.targets.c.target import CTarget
from bringup.targets.toolchain import find_compiler, host_target
from tests.loops.compiled import Compiled, compile_kernels, compile_packed, disagreement
from tests.loops.random_kernel import SHORT, Case, random_case

_BATCH = 25
#: Compiler flags for a run under the sanitizers: the first finding ends the process.
SANITIZE = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def cut(units: int, rng: random.Random) -> list[tuple[int, int]]:
    """The units in three ranges, in a random order."""
    places = sorted([0, rng.randint(0, units), rng.randint(0, units), units])
    ranges = list(itertools.pairwise(places))
    rng.shuffle(ranges)
    return ranges


def check(compiled: Compiled, case: Case, rng: random.Random) -> str:
    """How a compiled kernel differs from the interpreter, or nothing."""
    inputs = case.fresh_inputs()
    units = compiled.count(bind_sizes(case.kernel, inputs, case.sizes))
    for ranges in ([(0, units)], cut(units, rng)):
        arguments = (case.fresh_inputs(), case.fresh_inputs(), case.sizes, case.params)
        found = disagreement(compiled, *arguments, ulp=case.ulp, ranges=ranges)
        if found:
            return found
    return ""


def check_batch(
    seeds: range, target: CTarget, flags: tuple[str, ...], functions: bool, packed: bool, longest: int = SHORT
) -> list[str]:
    """Reports of the kernels of some seeds that disagree."""
    cases = [random_case(random.Random(seed), functions, longest) for seed in seeds]
    reports = []
    ready = list(zip(seeds, cases, compile_kernels([case.kernel for case in cases], target, flags)))
    if packed:
        others = [(seed, case, compile_packed(case.kernel, target, flags)) for seed, case in zip(seeds, cases)]
        ready += [(seed, case, other) for seed, case, other in others if other is not None]
    for seed, case, compiled in ready:
        found = check(compiled, case, random.Random(seed))
        if found:
            reports.append(f"seed {seed}: {found}\n{kernel_text(case.kernel)}")
    return reports


def under_sanitizers(*arguments: str) -> None:
    """Starts Python again on these arguments with the sanitizers' libraries, which must be the first ones loaded."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        return
    names = ("libasan.so", "libubsan.so")
    compiler = find_compiler()
    commands = [[*compiler, f"-print-file-name={name}"] for name in names]
    paths = [subprocess.run(command, capture_output=True, text=True).stdout.strip() for command in commands]
    environment = {**os.environ, "LD_PRELOAD": " ".join(paths), "ASAN_OPTIONS": "detect_leaks=0"}
    os.execve(sys.executable, [sys.executable, *arguments], environment)


def main() -> int:
    """Runs the kernels; 0 if all agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first kernel; the others follow")
    parser.add_argument("--march", default="", help="instruction set, such as x86-64-v3 (default: this CPU's)")
    parser.add_argument("--scalar", action="store_true", help="code without vectors")
    parser.add_argument("--functions", action="store_true", help="put a function such as exp before the store")
    parser.add_argument("--packed", action="store_true", help="also the emitter for contractions, where it applies")
    parser.add_argument("--longest", type=int, default=SHORT, help="points that one axis of a grid may have")
    parser.add_argument("--sanitize", action="store_true", help="with the address and undefined-behaviour sanitizers")
    options = parser.parse_args()
    if options.sanitize:
        under_sanitizers(*sys.argv)
    if options.march:
        os.environ["BRINGUP_MARCH"] = options.march
    target = host_target()
    if options.scalar:
        target = replace(target, vector_bytes=0)
    flags = SANITIZE if options.sanitize else ()
    reports: list[str] = []
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("kernels", total=options.count)
        for start in range(options.seed, options.seed + options.count, _BATCH):
            seeds = range(start, min(start + _BATCH, options.seed + options.count))
            found = check_batch(seeds, target, flags, options.functions, options.packed, options.longest)
            for report in found:
                progress.console.print(report, markup=False, highlight=False)
            reports += found
            progress.advance(task, len(seeds))
    how = f"{target.describe()}{', address,undefined sanitizers' if options.sanitize else ''}"
    print(f"{options.count} kernels from seed {options.seed}, {how}: {len(reports)} disagree")
    return 1 if reports else 0


if __name__ == "__main__":
    sys.exit(main())
