"""Kernels onto devices: verified, simplified, rendered for the driver's target, compiled (or found on disk), loaded.

The disk cache knows a kernel by the text of its IR, so a kernel that some process has made costs its lowering, one
file and the load: verifying, simplifying and rendering it again took 2 to 20 ms.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias

from bringup.compile.compiled_together import Made, made_together
from bringup.compile.failure import NotCompiled
from bringup.compile.generation import generation
from bringup.compile.index_code import made_function
from bringup.compile.kernels import ForeignKernel, KernelRecord, Origin
from bringup.compile.rendering import MEASURE, Entry, Rendered, packed, rendered, target_of, unpacked
from bringup.driver import Driver
from bringup.ir.kernel import Kernel
from bringup.ir.printer import kernel_text
from bringup.targets.source import Source

#: (work units, flops, bytes) of a launch, from the kernel's sizes in their order.
Measure: TypeAlias = Callable[..., tuple[int, int, int]]


@dataclass(frozen=True)
class Compiled:
    """A kernel on a device; a foreign kernel has no ``measure``, as it brings its formulas along."""

    handle: int
    measure: Measure | None


class Loader:
    """Every kernel is compiled and loaded once per device."""

    def __init__(self, driver_of: Callable[[int], Driver], load: Callable[[int, bytes, str, int, int], int]) -> None:
        self._driver_of = driver_of
        self._load = load
        self._loaded: dict[tuple[int, str], Compiled] = {}
        self._together: Made = {}
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

    def all(self, device: int, kernels: Sequence[Kernel | ForeignKernel | None]) -> list[Compiled | None]:
        """The kernels of a graph on a device, None for None; compilers run side by side."""

        def one(kernel: Kernel | ForeignKernel | None) -> Compiled | None:
            return None if kernel is None else self(device, kernel)

        made = self._make_together(device, kernels)
        self._together.update(made)
        try:
            workers = len(os.sched_getaffinity(0))
            if workers < 2 or len(kernels) < 2:
                return [one(kernel) for kernel in kernels]
            with ThreadPoolExecutor(workers) as pool:
                return list(pool.map(one, kernels))
        finally:
            for key in made:  # those that another thread has loaded meanwhile
                self._together.pop(key, None)

    def _make_together(self, device: int, kernels: Sequence[Kernel | ForeignKernel | None]) -> Made:
        from bringup.compile.kernel_cache import default_cache, driver_key

        driver = self._driver_of(device)
        texts = {kernel_text(kernel): kernel for kernel in kernels if isinstance(kernel, Kernel)}
        unknown = {text: kernel for text, kernel in texts.items() if (device, text) not in self._loaded}
        if not driver.compiles_together or len(unknown) < 2:
            return {}
        _check_compiler(driver, next(iter(unknown.values())))
        keys = {
            driver_key(driver, generation(), target_of(driver).version, text): kernel
            for text, kernel in unknown.items()
        }
        cache = default_cache()
        return made_together(driver, {key: kernel for key, kernel in keys.items() if not cache.has(key)})

    def _make(
        self, device: int, kernel: Kernel | ForeignKernel, text: str, records: list[KernelRecord] | None
    ) -> Compiled:
        from bringup.compile.kernel_cache import WrongBinary, binary_of, compiled, driver_key, kept

        driver = self._driver_of(device)
        made: Rendered | None = None
        seconds: dict[str, float] = {}

        def build(source: str) -> bytes:
            start = perf_counter()
            try:
                binary = binary_of(driver, source)
            except WrongBinary:
                raise
            except Exception as error:
                raise NotCompiled(driver, kernel.name, source, error) from error
            seconds["compile"] = perf_counter() - start
            return binary

        def make() -> bytes:
            nonlocal made
            assert isinstance(kernel, Kernel)
            if (ready := self._together.pop(key, None)) is not None:
                seconds["compile"] = ready[1]
                return ready[0]
            made = rendered(kernel, target_of(driver))
            return packed(made.entry(), build(made.source.text))

        start = perf_counter()
        _check_compiler(driver, kernel)
        if isinstance(kernel, ForeignKernel):
            entry, binary = Entry(kernel.name, ""), compiled(driver, text, build)
        else:
            key = driver_key(driver, generation(), target_of(driver).version, text)
            entry, binary = unpacked(kept(key, make))
        if "compile" not in seconds:
            seconds["cache"] = perf_counter() - start
        start = perf_counter()
        try:
            handle = self._load(device, binary, entry.name, entry.block, entry.local_bytes)
        except Exception as error:
            raise NotCompiled(driver, kernel.name, _source_text(kernel, driver), error) from error
        seconds["load"] = perf_counter() - start
        if records is not None:
            origin: Origin = "compiled" if "compile" in seconds else "disk cache"
            records.append(_record(kernel, driver, origin, seconds, made))
        return Compiled(handle, made_function(entry.measure_code, MEASURE) if entry.measure_code else None)


def _check_compiler(driver: Driver, kernel: Kernel | ForeignKernel) -> None:
    """Raises NotCompiled if the driver has no compiler: then nothing has a key in the cache."""
    try:
        driver.compiler_identity()
    except Exception as error:
        raise NotCompiled(driver, kernel.name, _source_text(kernel, driver), error) from error


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
