"""Kernels onto devices: verified, simplified, rendered for the driver's target, compiled (or found on disk), loaded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from bringup import debug
from bringup.driver import Driver
from bringup.ir.cost import cost
from bringup.ir.index import Index
from bringup.ir.kernel import Kernel
from bringup.ir.printer import kernel_text
from bringup.ir.simplify import simplify
from bringup.ir.verify import verify
from bringup.lowering.call import ForeignKernel
from bringup.targets.c import render
from bringup.targets.source import Source
from bringup.targets.target import Target


@dataclass(frozen=True)
class Compiled:
    """A kernel on a device: its handle, and formulas over its sizes for work units, flops and bytes."""

    handle: int
    units: Index
    flops: Index
    bytes: Index


@cache
def target_of(driver: Driver) -> Target:
    """What the driver's kernels are rendered for."""
    return Target.parse(driver.target())


def rendered(kernel: Kernel, target: Target) -> tuple[Kernel, Source]:
    """The kernel as it will run, and its source; a kernel that breaks a rule is a VerifyError."""
    verify(kernel)
    simple = simplify(kernel)
    return simple, render(simple, target)


class Loader:
    """Every kernel source is compiled and loaded once per device."""

    def __init__(self, driver_of: Callable[[int], Driver], load: Callable[[int, bytes, str], int]) -> None:
        self._driver_of = driver_of
        self._load = load
        self._handles: dict[tuple[int, str], int] = {}
        self._lock = threading.Lock()

    def __call__(self, device: int, kernel: Kernel | ForeignKernel) -> Compiled:
        """The kernel on a device."""
        driver = self._driver_of(device)
        if isinstance(kernel, ForeignKernel):
            handle = self._handle(device, driver, Source(kernel.text, kernel.name, kernel.units))
            return Compiled(handle, kernel.units, kernel.flops, kernel.bytes)
        simple, source = rendered(kernel, target_of(driver))
        debug.say(3, kernel_text(simple))
        numbers = cost(simple)
        return Compiled(self._handle(device, driver, source), source.units, numbers.flops, numbers.read + numbers.written)

    def _handle(self, device: int, driver: Driver, source: Source) -> int:
        debug.say(4, source.text)
        handle = self._handles.get((device, source.text))
        if handle is None:
            start = time.perf_counter()
            handle = self._make(device, driver, source)
            milliseconds = (time.perf_counter() - start) * 1e3
            debug.say(1, f"kernel {source.entry} for {driver.name}:{device} in {milliseconds:.1f} ms")
        return handle

    def _make(self, device: int, driver: Driver, source: Source) -> int:
        from bringup.kernel_cache import compiled

        binary = compiled(driver, source.text)  # two threads with the same source compile it once
        handle = self._load(device, binary, source.entry)
        with self._lock:
            # Loaded twice at the same time is harmless: the first handle stays.
            return self._handles.setdefault((device, source.text), handle)
