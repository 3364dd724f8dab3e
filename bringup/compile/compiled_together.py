"""The kernels of a graph in few runs of the compiler: eight at once take 0.65 of the time of eight runs (gcc 12)."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter

from bringup import debug
from bringup.compile.kernel_cache import binary_of
from bringup.compile.rendering import Rendered, packed, rendered, target_of
from bringup.driver import Driver
from bringup.ir.kernel import Kernel
from bringup.targets.toolchain import is_contraction

#: Kernels in one run. Each of them keeps the whole binary in the disk cache, so more would cost more there.
_MOST = 8

#: By key: a kernel as the disk cache keeps it, and its part of the compiler's seconds.
Made = dict[str, tuple[bytes, float]]


def made_together(driver: Driver, kernels: Mapping[str, Kernel]) -> Made:
    """Makes kernels, which are given by their keys, side by side on all cores.

    What the compiler refuses is not in the result: in a run of its own each kernel gets its own error.
    """
    workers = len(os.sched_getaffinity(0))
    most = min(_MOST, -(-len(kernels) // workers))
    if most < 2:
        return {}
    runs: list[Future[Made]] = []
    # Contractions apart, as the compiler is told something else for them. The next run is rendered beside the last one.
    waiting: defaultdict[bool, dict[str, Rendered]] = defaultdict(dict)
    with ThreadPoolExecutor(workers) as pool:
        for key, kernel in kernels.items():
            made = rendered(kernel, target_of(driver))
            kind = is_contraction(made.source.text)
            waiting[kind][key] = made
            if len(waiting[kind]) == most:
                runs.append(pool.submit(_one_run, driver, waiting.pop(kind)))
        runs += [pool.submit(_one_run, driver, rest) for rest in waiting.values()]
    return {key: one for run in runs for key, one in run.result().items()}


def _one_run(driver: Driver, kernels: Mapping[str, Rendered]) -> Made:
    joined = target_of(driver).together([made.source for made in kernels.values()])
    if joined is None:
        return {}
    text, entries = joined
    start = perf_counter()
    try:
        binary = binary_of(driver, text)
    except Exception as error:  # of a driver: whatever it raises, each kernel's own run raises it again with its name
        debug.say(1, f"{len(kernels)} kernels did not compile together, so each is compiled alone: {error}")
        return {}
    seconds = (perf_counter() - start) / len(kernels)
    named = zip(kernels.items(), entries)
    return {key: (packed(replace(made.entry(), name=entry), binary), seconds) for (key, made), entry in named}
