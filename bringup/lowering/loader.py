"""Kernels onto devices: verified, simplified, rendered for the driver's target, compiled (or found on disk), loaded.

The disk cache knows a kernel by the text of its IR, so a kernel that some process has made costs its lowering, one
file and the load: verifying, simplifying and rendering it again took 2 to 20 ms.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import TypeAlias

from bringup.driver import Driver
from bringup.ir.cost import Cost, cost
from bringup.ir.kernel import Kernel
from bringup.ir.printer import kernel_text
from bringup.ir.simplify import simplify
from bringup.ir.verify import verify
from bringup.lowering.call import ForeignKernel
from bringup.lowering.compile_failure import NotCompiled
from bringup.lowering.index_code import function_code, made_function
from bringup.lowering.observation import KernelRecord, Origin
from bringup.targets.c import render
from bringup.targets.generation import generation
from bringup.targets.source import Source
from bringup.targets.target import Target

#: (work units, flops, bytes) of a launch, from the kernel's sizes in their order.
Measure: TypeAlias = Callable[..., tuple[int, int, int]]
_MEASURE = "measure"


@dataclass(frozen=True)
class Compiled:
    """A kernel on a device; a foreign kernel has no ``measure``, as it brings its formulas along."""

    handle: int
    measure: Measure | None


@cache
def target_of(driver: Driver) -> Target:
    """What the driver's kernels are rendered for."""
    return Target.parse(driver.target())


@dataclass(frozen=True)
class Rendered:
    """A kernel as it will run, its source and its cost, and the seconds each step took."""

    kernel: Kernel
    source: Source
    cost: Cost
    seconds: dict[str, float]

    def measure_code(self) -> str:
        """``Measure`` as Python source."""
        formulas = (self.source.units, self.cost.flops, self.cost.read + self.cost.written)
        return function_code(_MEASURE, [size.name for size in self.kernel.sizes], formulas)


def rendered(kernel: Kernel, target: Target) -> Rendered:
    """Takes a kernel to its source; one that breaks a rule is a VerifyError."""
    start = perf_counter()
    verify(kernel)
    verified = perf_counter()
    simple = simplify(kernel)
    simplified = perf_counter()
    source = render(simple, target)
    written = perf_counter()
    numbers = cost(simple)
    seconds = {
        "verify": verified - start,
        "simplify": simplified - verified,
        "render": written - simplified,
        "cost": perf_counter() - written,
    }
    return Rendered(simple, source, numbers, seconds)


def packed(entry: str, measure_code: str, binary: bytes) -> bytes:
    """A made kernel as the disk cache keeps it.

    >>> unpacked(packed("f", "def measure(): ...", b"ELF"))
    ('f', 'def measure(): ...', b'ELF')
    """
    return json.dumps([entry, measure_code]).encode() + b"\n" + binary


def unpacked(data: bytes) -> tuple[str, str, bytes]:
    """The other way round."""
    head, _, binary = data.partition(b"\n")
    entry, measure_code = json.loads(head)
    return entry, measure_code, binary


class Loader:
    """Every kernel is compiled and loaded once per device."""

    def __init__(self, driver_of: Callable[[int], Driver], load: Callable[[int, bytes, str], int]) -> None:
        self._driver_of = driver_of
        self._load = load
        self._loaded: dict[tuple[int, str], Compiled] = {}
        self._lock = threading.Lock()

    def __call__(
        self, device: int, kernel: Kernel | ForeignKernel, records: list[KernelRecord] | None = None
    ) -> Compiled:
        """The kernel on a device. ``records``, if given, gets what became of it."""
        text = kernel.text if isinstance(kernel, ForeignKernel) else kernel_text(kernel)
        loaded = self._loaded.get((device, text))
        if loaded is None:
            loaded = self._make(device, kernel, text, records)
            with self._lock:
                # Loaded twice at the same time is harmless: the first handle stays.
                return self._loaded.setdefault((device, text), loaded)
        if records is not None:
            records.append(_record(kernel, self._driver_of(device), "memory", {}))
        return loaded

    def _make(
        self, device: int, kernel: Kernel | ForeignKernel, text: str, records: list[KernelRecord] | None
    ) -> Compiled:
        from bringup.kernel_cache import compiled, driver_key, kept

        driver = self._driver_of(device)
        made: Rendered | None = None
        seconds: dict[str, float] = {}

        def build(source: str) -> bytes:
            start = perf_counter()
            try:
                binary = driver.compile(source)
            except Exception as error:
                raise NotCompiled(driver, kernel.name, source, error) from error
            seconds["compile"] = perf_counter() - start
            return binary

        def make() -> bytes:
            nonlocal made
            assert isinstance(kernel, Kernel)
            made = rendered(kernel, target_of(driver))
            return packed(made.source.entry, made.measure_code(), build(made.source.text))

        start = perf_counter()
        try:
            driver.compiler_identity()
        except Exception as error:  # there is no compiler
            raise NotCompiled(driver, kernel.name, _source_text(kernel, driver), error) from error
        if isinstance(kernel, ForeignKernel):
            entry, code, binary = kernel.name, "", compiled(driver, text, build)
        else:
            entry, code, binary = unpacked(kept(driver_key(driver, generation(), text), make))
        if "compile" not in seconds:
            seconds["cache"] = perf_counter() - start
        start = perf_counter()
        try:
            handle = self._load(device, binary, entry)
        except Exception as error:
            raise NotCompiled(driver, kernel.name, _source_text(kernel, driver), error) from error
        seconds["load"] = perf_counter() - start
        if records is not None:
            origin: Origin = "compiled" if "compile" in seconds else "disk cache"
            records.append(_record(kernel, driver, origin, seconds, made))
        return Compiled(handle, made_function(code, _MEASURE) if code else None)


def _source_text(kernel: Kernel | ForeignKernel, driver: Driver) -> str:
    return kernel.text if isinstance(kernel, ForeignKernel) else rendered(kernel, target_of(driver)).source.text


def _record(
    kernel: Kernel | ForeignKernel,
    driver: Driver,
    origin: Origin,
    seconds: dict[str, float],
    made: Rendered | None = None,
) -> KernelRecord:
    """What became of a kernel; one that the disk cache knew is rendered here, for those who want to see it."""
    if isinstance(kernel, ForeignKernel):
        return KernelRecord(kernel, Source(kernel.text, kernel.name, kernel.units), None, origin, seconds)
    made = made or rendered(kernel, target_of(driver))
    return KernelRecord(made.kernel, made.source, made.cost, origin, {**made.seconds, **seconds})
