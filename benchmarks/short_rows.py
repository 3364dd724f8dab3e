"""The rows of ``before_after.py --short``: one process of either tree, on programs that stand here and not in the tree.

    python benchmarks/short_rows.py eager --json build/rows.json

A whole round of the long form takes half an hour for each process, most of it inductor's: it compiles every model as
the control, twice. Here the control is the CPU's own eager run of the same statement, in bursts beside ours, and rows
have fewer of them; how sure a row is, five rounds say as they do in the long form.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from timing import Side, calls_of_burst, compare

#: Networks of every kind, and graphs that only move memory.
MODELS = ("mlp", "lstm", "gpt2", "vit_tiny", "dlrm", "mobilenetv3", "layer_norm", "softmax", "log_softmax", "adamw")
EAGER_ROUNDS = 30
SECONDS = 1.5  # of bursts, for each compiled row
ENVIRONMENT = {
    "BRINGUP_DRIVERS": "sim",
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),  # as benchmarks/compile.py has it
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(1 << 26),
}


def eager() -> dict[str, float]:
    """Device against CPU, for tiny and large ops in library mode."""
    import torch
    from eager import LARGE_OPS, TINY_OPS, names_on, open_device

    device = open_device("sim")
    on_cpu, on_device = names_on(torch.device("cpu"), False), names_on(device, False)
    wait = lambda: torch.accelerator.synchronize(device)  # noqa: E731
    return {
        name: compare(Side(statement, on_cpu), Side(statement, on_device, wait), EAGER_ROUNDS).ratio
        for name, statement in {**TINY_OPS, **LARGE_OPS}.items()
    }


def compiled(models: tuple[str, ...]) -> dict[str, float]:
    """Compiled graphs on generated kernels against the CPU's eager run."""
    import torch
    from compile import PHASES, Question, runner
    from workloads import EVERYTHING

    cpu, device = torch.device("cpu"), torch.device("sim")
    wait = lambda: torch.accelerator.synchronize(device)  # noqa: E731
    rows = {}
    for model in models:
        for phase in PHASES:
            if phase == "training" and EVERYTHING[model].loss is None:
                continue
            asked = Question(model, phase, 1, "generated", EVERYTHING[model].memory_bound, "bringup", SECONDS)
            torch._dynamo.reset()
            ours = runner(asked, device, lambda f: torch.compile(f, backend="bringup"))
            plain = runner(asked, cpu, lambda f: f)
            for run in (ours, plain) * 2:
                run()
            wait()
            start = perf_counter()
            ours(), wait(), plain()
            longest = (perf_counter() - start) / 2
            rounds = max(3, min(40, int(SECONDS / 12 / longest / (1 + calls_of_burst(longest)))))
            pair = compare(Side("f()", {"f": plain}), Side("f()", {"f": ours}, wait), rounds)
            rows[f"{model} {phase}"] = pair.ratio
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("eager", "compile"))
    parser.add_argument("--models", default=",".join(MODELS), help="for compile, by commas")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the rows go")
    options = parser.parse_args()
    wanted = {**ENVIRONMENT, "BRINGUP_SIM": "mode=library" if options.what == "eager" else "mode=kernels,threads=1"}
    if any(os.environ.get(name) != value for name, value in wanted.items()):  # malloc reads its words at the start
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})
    import torch

    torch.set_num_threads(1)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    rows: dict[str, Any] = eager() if options.what == "eager" else compiled(tuple(options.models.split(",")))
    options.json.write_text(json.dumps({"rows": [{"name": name, "value": value} for name, value in rows.items()]}))


if __name__ == "__main__":
    main()
