"""Kernels onto devices: verified, simplified, rendered for the driver's target, compiled (or found on disk), loaded.

The disk cache knows a kernel by the text of its IR, so a kernel that some process has made costs its lowering, one
file and the load: verifying, simplifying and rendering it again took 2 to 20 ms.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeAlias

from bringup import debug
from bringup.compile.failure import NotCompiled
from bringup.compile.index_code import made_function
from bringup.compile.kernel_cache import (
    WrongBinary,
    binary_of,
    compiled,
    default_cache,
    driver_key,
    generation,
    kept,
)
from bringup.compile.kernels import ForeignKernel, KernelRecord, Origin
from bringup.compile.rendering import MEASURE, Entry, Rendered, packed, rendered, target_of, unpacked
from bringup.driver import Driver
from bringup.ir.kernel import Kernel
from bringup.ir.printer import kernel_text
from bringup.targets.source import Source
from bringup.targets.toolchain import is_contraction

#: Kernels in one run of the compiler: eight take 0.65 of the time of eight runs (gcc 12). Each of them keeps the whole
#: binary in the disk cache, so more would cost more there.
_MOST = 8
#: By key: a kernel as the disk cache keeps it, and its part of the compiler's seconds.
Made: TypeAlias = dict[str, tuple[bytes, float]]
#: (work units, flops, bytes) of a launch, from the kernel's sizes in their order.
Measure: TypeAlias = Callable[..., tuple[int, int, int]]


@dataclass(frozen=True)
class Compiled:
    """A kernel on a device; a foreign kernel has no ``measure``, as it brings its formulas along."""

    handle: int
    measure: Measure | None


class Loader:
    """Every kernel is compiled and loaded once per device."""

    def __init__(
        self,
        driver_of: Callable[[int], Driver],
        load: Callable[[int, bytes, str, int, int], int],
        library_kernel: Callable[[str, int, int], int] | None = None,
        load_again: Callable[[int, int, bytes, str], None] | None = None,
    ) -> None:
        self._driver_of = driver_of
        self._load = load
        self._library_kernel = library_kernel
        self._load_again = load_again
        self._foreign: dict[str, ForeignKernel] = {}
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

    def again(self, device: int, handle: int) -> None:
        """Loads a kernel again, under the handle it has: the device was reset."""
        from bringup.ir.parser import parse

        assert self._load_again is not None
        (text,) = [key for (on, key), one in self._loaded.items() if on == device and one.handle == handle]
        entry, binary, _ = self._binary(self._driver_of(device), self._foreign.get(text) or parse(text), text, {})
        self._load_again(device, handle, binary, entry.name)

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
        return _made_together(driver, {key: kernel for key, kernel in keys.items() if not cache.has(key)})

    def _make(
        self, device: int, kernel: Kernel | ForeignKernel, text: str, records: list[KernelRecord] | None
    ) -> Compiled:
        driver = self._driver_of(device)
        seconds: dict[str, float] = {}
        if isinstance(kernel, ForeignKernel) and kernel.function:
            assert self._library_kernel is not None
            if records is not None:
                records.append(_record(kernel, driver, "memory", seconds))
            return Compiled(self._library_kernel(kernel.name, kernel.function, kernel.context), None)
        if isinstance(kernel, ForeignKernel):
            self._foreign[text] = kernel
        entry, binary, made = self._binary(driver, kernel, text, seconds)
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

    def _binary(
        self, driver: Driver, kernel: Kernel | ForeignKernel, text: str, seconds: dict[str, float]
    ) -> tuple[Entry, bytes, Rendered | None]:
        """A kernel's entry and binary, from the disk cache or compiled; ``seconds`` gets how long that took."""
        made: Rendered | None = None

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
        return entry, binary, made


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


# ---- the kernels of a graph in few runs of the compiler ----


def _made_together(driver: Driver, kernels: Mapping[str, Kernel]) -> Made:
    """Makes kernels, which are given by their keys, side by side on all cores.

    What the compiler refuses is not in the result: in a run of its own each kernel gets its own error.
    """
    workers = len(os.sched_getaffinity(0))
    most = min(_MOST, -(-len(kernels) // workers))
    if most < 2:
        return {}
    runs: list[Future[Made]] = []
    # Contractions apart, as the compiler gets other options for them. The next run is rendered beside the last one.
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
