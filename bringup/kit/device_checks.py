"""Checks of a driver as PyTorch's device: ``bringup check --level profiler``, ``dlpack`` and ``ipc``.

Each check is a function whose docstring is its meaning. It gets the device, and raises Wrong where it found something,
or Skip where the driver does not offer what it is about.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.kit import dlpack_checks, ipc_checks, profiler_checks
from bringup.kit.driver_checks import CheckResult, Skip, Wrong, place_of

if TYPE_CHECKING:
    import torch

#: Level → its checks, in the order they run.
CHECKS: dict[str, tuple[Callable[[torch.device], None], ...]] = {
    "profiler": profiler_checks.CHECKS,
    "dlpack": dlpack_checks.CHECKS,
    "ipc": ipc_checks.CHECKS,
}


def run_device_checks(level: str, device: torch.device, show: Callable[[CheckResult], None]) -> list[CheckResult]:
    """Runs the checks of a level on a device of an active driver, and returns what each found."""
    results = []
    for check in CHECKS[level]:
        began = time.perf_counter()
        status, message = "pass", ""
        try:
            check(device)
        except Skip as reason:
            status, message = "skip", str(reason)
        except Wrong as error:
            status, message = "fail", str(error)
        except Exception as error:  # a check that cannot go on has found something as well
            status, message = "fail", f"{type(error).__name__}: {error}{place_of(error.__cause__ or error)}"
        result = CheckResult(check.__name__, status, message, time.perf_counter() - began)  # type: ignore[arg-type]
        show(result)
        results.append(result)
    return results


def main_device(level: str, driver: str, index: int, json_file: str | None) -> int:
    """What ``bringup check --level …`` runs; returns its exit status."""
    os.environ["BRINGUP_DRIVERS"] = driver
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it announces each profile otherwise
    import bringup

    try:
        device = bringup.device(index=index)
    except (RuntimeError, ValueError) as error:
        print(f"bringup check: {error}", file=sys.stderr)
        return 2
    width = max(len(check.__name__) for check in CHECKS[level])

    def show(result: CheckResult) -> None:
        reason = f": {result.message}" if result.message else ""
        print(f"{result.name:<{width}}  {result.status}  {result.seconds:6.2f} s{reason}", flush=True)

    results = run_device_checks(level, device, show)
    counts = {status: sum(result.status == status for result in results) for status in ("pass", "fail", "skip")}
    print(f"{driver}, {level}: {counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped")
    if json_file:
        rows = [dataclasses.asdict(result) for result in results]
        Path(json_file).write_text(
            json.dumps({"driver": driver, "level": level, "results": rows}, indent=1) + "\n", encoding="utf-8"
        )
        print(f"written: {json_file}")
    if counts["fail"]:
        return 1
    if not counts["pass"]:
        print(f"bringup check: {driver} has nothing that --level {level} could check", file=sys.stderr)
        return 2
    return 0
