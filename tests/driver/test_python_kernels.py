"""A driver in Python that compiles, loads and launches kernels on host memory; and the checks that catch a bad one."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from pathlib import Path

import pytest

from bringup.driver import DeviceSpec, Driver, Launch, c_functions
from bringup.driver import c_struct as abi
from bringup.driver.abi import adapt
from bringup.kit.driver_checks import run_driver_checks
from bringup.targets.toolchain import compile_c, host_target
from tests.driver.kernel_sources import GATHER


class HostKernels(Driver):
    """Memory from the host's heap, kernels through ctypes: what the kernels group needs at least."""

    name = "hostkernels"
    memory = 1 << 26

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, threading.Lock()
        self.blocks: dict[int, tuple[object, int]] = {}
        self.functions: list[object] = []

    def device_count(self) -> int:
        return 1

    def open(self, device: int) -> DeviceSpec:
        if device != 0:
            raise ValueError(f"there is no device {device}")
        return DeviceSpec(name="Host kernels", memory_bytes=self.memory, alignment=8, host_visible=True)

    def alloc(self, device: int, nbytes: int) -> int:
        self.open(device)
        with self.lock:
            if nbytes + sum(size for _, size in self.blocks.values()) > self.memory:
                raise MemoryError(f"no room for {nbytes} bytes")
            block = ctypes.create_string_buffer(nbytes)
            self.blocks[ctypes.addressof(block)] = (block, nbytes)
            return ctypes.addressof(block)

    def free(self, device: int, address: int) -> None:
        with self.lock:
            del self.blocks[address]

    def copy(self, device, dst, src, nbytes, kind, stream):  # type: ignore[no-untyped-def, override]
        ctypes.memmove(dst, src, nbytes)

    # ---- kernels ----
    def target(self) -> str:
        return host_target().describe()

    def compile(self, source: str) -> bytes:
        return compile_c(source, host_target())

    def load(self, device: int, binary: bytes, entry: str) -> int:
        path = self.folder / f"{len(self.functions)}.so"
        path.write_bytes(binary)
        self.functions.append(getattr(ctypes.CDLL(str(path)), entry))
        return len(self.functions) - 1

    def launch(self, device: int, kernel: int, launch: Launch) -> bool:
        if not 0 <= kernel < len(self.functions):
            raise ValueError(f"no kernel {kernel}")
        half = launch.grid // 2
        for begin, end in self.ranges(half, launch.grid):
            self.call(self.functions[kernel], launch, begin, end)
        return True

    def ranges(self, half: int, grid: int) -> list[tuple[int, int]]:
        return [(half, grid), (0, half)]

    def call(self, function, launch, begin, end):  # type: ignore[no-untyped-def]
        report = (ctypes.c_int64 * 3)()
        args = (ctypes.c_uint64 * len(launch.args))(*launch.args)
        function(args, ctypes.c_int64(begin), ctypes.c_int64(end), report)
        if report[0]:
            raise IndexError(f"index {report[1]} is out of range for a dimension of {report[2]}")


def test_it_passes_the_checks(tmp_path):
    results = run_driver_checks(HostKernels(tmp_path))
    assert [result for result in results if result.status == "fail"] == []
    assert len([result for result in results if result.name.startswith("kernel_") and result.status == "pass"]) == 7


class LosesAUnit(HostKernels):
    def ranges(self, half, grid):
        return [(0, grid - 1)]


class RunsAUnitTwice(HostKernels):
    def ranges(self, half, grid):
        return [(0, half + 1), (half, grid)]


class CutsArguments(HostKernels):
    def launch(self, device, kernel, launch):
        cut = (*launch.args[: launch.address_count], *(a & 0xFFFFFFFF for a in launch.args[launch.address_count :]))
        return super().launch(device, kernel, Launch(cut, launch.grid, launch.stream))


class RunsNothingAnyway(HostKernels):
    def ranges(self, half, grid):
        return [(0, max(grid, 1))]


class SwallowsBadIndices(HostKernels):
    def call(self, *arguments):
        with contextlib.suppress(IndexError):
            super().call(*arguments)


class ReportsForEver(HostKernels):
    failed = ""

    def call(self, *arguments):
        try:
            super().call(*arguments)
        except IndexError as error:
            self.failed = str(error)
        if self.failed:
            raise IndexError(self.failed)


class TakesAnyHandle(HostKernels):
    def launch(self, device, kernel, launch):
        return super().launch(device, kernel % len(self.functions), launch)


@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (LosesAUnit, "kernel_computes"),
        (RunsAUnitTwice, "kernel_computes"),
        (CutsArguments, "kernel_negative_argument"),
        (RunsNothingAnyway, "kernel_nothing"),
        (SwallowsBadIndices, "kernel_index_error"),
        (ReportsForEver, "kernel_index_error"),
        (TakesAnyHandle, "kernel_mistakes"),
    ],
)
def test_a_broken_one_is_caught(tmp_path, broken, caught_by):
    failed = [result.name for result in run_driver_checks(broken(tmp_path)) if result.status == "fail"]
    assert failed[:1] == [caught_by]


def test_the_core_sees_the_same_through_the_struct(tmp_path):
    """compile, load and launch as C calls them; a bad index is status 6, and finished is set."""
    driver = HostKernels(tmp_path)
    struct = adapt(driver).struct
    data, nbytes, free, kernel = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_uint64()
    references = [ctypes.byref(value) for value in (data, nbytes, free)]
    assert struct.compile(None, GATHER.encode(), *references) == abi.OK
    assert struct.load(None, 0, data, nbytes, b"gather", ctypes.byref(kernel)) == abi.OK
    c_functions.VOID_CALL(free.value)(data)
    table, index, out = (ctypes.c_int64 * 3)(10, 11, 12), (ctypes.c_int64 * 2)(2, 1), (ctypes.c_int64 * 2)()
    args = (ctypes.c_uint64 * 4)(*map(ctypes.addressof, (table, index, out)), 3)
    finished = ctypes.c_uint32(7)
    launch = abi.LaunchStruct(arg_count=4, address_count=3, grid=2, finished=ctypes.pointer(finished))
    launch.args = ctypes.cast(args, type(launch.args))
    assert struct.launch(None, 0, kernel, ctypes.byref(launch)) == abi.OK
    assert (list(out), finished.value) == ([12, 11], 1)
    index[1] = 3
    assert struct.launch(None, 0, kernel, ctypes.byref(launch)) == abi.INDEX_ERROR == 6
    reason = ctypes.create_string_buffer(200)
    struct.last_error(None, ctypes.addressof(reason), 200)
    assert reason.value == b"hostkernels.launch: IndexError: index 3 is out of range for a dimension of 3"


def test_a_launch_that_says_nothing_is_not_finished(tmp_path):
    class Silent(HostKernels):
        def launch(self, device, kernel, launch):
            super().launch(device, kernel, launch)

    driver = Silent(tmp_path)
    kernel = driver.load(0, driver.compile("void nothing(void) {}"), "nothing")
    finished = ctypes.c_uint32(7)
    launch = abi.LaunchStruct(grid=1, finished=ctypes.pointer(finished))
    assert adapt(driver).struct.launch(None, 0, kernel, ctypes.byref(launch)) == abi.OK
    assert finished.value == 0


def test_a_compiler_that_returns_nothing_is_named(tmp_path):
    class Nothing(HostKernels):
        def compile(self, source: str) -> bytes:
            return None  # type: ignore[return-value]

    results = {result.name: result for result in run_driver_checks(Nothing(tmp_path))}
    said = "driver 'hostkernels': compile returned None; it must return the binary as bytes"
    assert said in results["kernel_computes"].message
