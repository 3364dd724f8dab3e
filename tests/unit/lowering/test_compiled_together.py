"""The kernels of a graph are made in few runs of the compiler, and each counts as one kernel of the cache."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from bringup.compile import kernel_cache
from bringup.compile.failure import NotCompiled
from bringup.compile.loader import Loader
from bringup.driver import Driver
from bringup.ir.kernel import Kernel
from bringup.ir.parser import parse
from bringup.targets.toolchain import compile_c, host_target, identity

KERNELS = [
    parse(
        f"kernel add{n % 3} size n in x: float32[n] strides [1] out y: float32[n] strides [1] grid i < n "
        f"{{ store y[i] = (x[i] + float32({n}.0)) }}"
    )
    for n in range(6)
]


class Host(Driver):
    """A device that loads what the host's compiler makes; ``refuses``: a word in a source that it does not take."""

    name = "host"
    compiles_together = True

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.sources: list[str] = []

    def target(self) -> str:
        return host_target().describe()

    def compiler_identity(self) -> str:
        return identity(host_target())

    def compile(self, source: str) -> bytes:
        self.sources.append(source)
        if self.refuses and self.refuses in source:
            raise RuntimeError(f"found {self.refuses}")
        return compile_c(source, host_target())


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> kernel_cache.KernelCache:
    """An empty one, and a machine of one core."""
    monkeypatch.setattr(kernel_cache, "_default", kernel_cache.KernelCache(tmp_path / "cache"))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    return kernel_cache.default_cache()


def loader_of(driver: Driver) -> Loader:
    numbers = itertools.count()

    def load(device: int, binary: bytes, entry: str, block: int, local_bytes: int) -> int:
        assert b"\0" + entry.encode() + b"\0" in binary, "the symbol is not there"
        return next(numbers)

    return Loader(lambda device: driver, load)


def test_one_run_makes_all_of_them(cache: kernel_cache.KernelCache) -> None:
    driver = Host()
    loaded = loader_of(driver).all(0, [*KERNELS, None, KERNELS[0]])
    assert len(driver.sources) == 1
    assert loaded[6] is None
    assert loaded[7] is loaded[0]
    assert len({one.handle for one in loaded if one is not None}) == len(KERNELS)
    assert all(one.measure is not None and one.measure(1000)[1] == 1000 for one in loaded if one is not None)
    assert (cache.misses, cache.info().entries) == (len(KERNELS), len(KERNELS))


def test_another_process_finds_each_alone(cache: kernel_cache.KernelCache) -> None:
    loader_of(Host()).all(0, KERNELS)
    later, hits = Host(), cache.hits
    loader_of(later)(0, KERNELS[4])
    loader_of(later).all(0, KERNELS[1:4])
    assert not later.sources
    assert cache.hits == hits + 4


def test_a_driver_that_did_not_say_so_gets_one_kernel_at_a_time(cache: kernel_cache.KernelCache) -> None:
    class Plain(Host):
        compiles_together = False

    driver = Plain()
    loader_of(driver).all(0, KERNELS)
    assert len(driver.sources) == len(KERNELS)


def test_a_refused_kernel_is_named_and_the_others_are_made(cache: kernel_cache.KernelCache) -> None:
    driver = Host(refuses="other")
    bad = parse("kernel other size n out y: float32[n] strides [1] grid i < n { store y[i] = float32(1.0) }")
    load = loader_of(driver)
    with pytest.raises(NotCompiled, match="other"):
        load.all(0, [*KERNELS, bad])
    assert all(load(0, kernel).measure for kernel in KERNELS)


def test_a_cache_without_a_directory_keeps_them_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "_default", kernel_cache.KernelCache(None))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    driver = Host()
    kernels: list[Kernel] = KERNELS[:3]
    loader_of(driver).all(0, kernels)
    loader_of(driver).all(0, kernels)
    assert len(driver.sources) == 1
