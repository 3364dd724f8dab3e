"""The riscv driver through the contract: guests that compute, trap, hang and go on."""

from __future__ import annotations

import _thread
import array
import threading
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from bringup.driver import Launch
from bringup.driver.lookup import find_driver
from bringup.drivers import riscv
from bringup.drivers.riscv.options import parse_options
from bringup.kit.driver_checks import run_driver_checks
from bringup.riscv.machine import GuestError, machine_class
from bringup.riscv.toolchain import BuildError, ToolchainMissing, find_toolchain
from tests.driver.kernel_sources import ADD, GATHER, SLOW
from tests.driver.through_the_contract import HOST, read, synchronize, write
from tests.optional_packages import skip_without_a_riscv_compiler

SHORT, LONG = 0.0, 1e9  # the bytes of a launch decide whether the calling thread runs it

#: Wrong in a way that args[0] chooses: a store to nowhere, a loop without end, an exit.
WRONG = """
#include <stdint.h>
void wrong(const uint64_t *args, int64_t begin, int64_t end, int64_t *report) {
  if (args[0] == 0) *(volatile uint64_t *)args[1] = 1;
  while (args[0] == 1) __asm__ volatile("");
  if (args[0] == 2) *(volatile uint32_t *)0x100000 = 0x3333 | 7 << 16;
}
"""

#: Uses what compilers address: constants, a table of jumps, calls, memset and memcpy.
ADDRESSES = """
#include <stdint.h>
static const int64_t powers[9] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
struct large { int64_t cells[64]; };
__attribute__((noinline)) static int64_t chosen(int64_t at, int64_t x) {
  switch (at) {
    case 0: return x * 3;
    case 1: return x ^ 21;
    case 2: return powers[x & 7];
    case 3: return -x;
    case 4: return x << 5;
    case 5: return x / 7;
    default: return 99;
  }
}
void addresses(const uint64_t *args, int64_t begin, int64_t end, int64_t *report) {
  struct large large = {0};
  for (int64_t u = begin; u < end; u++) large.cells[u] = chosen(u, powers[u]);
  *(struct large *)args[0] = large;
}
"""
ADDRESSED = [3, 10 ^ 21, 10**4, -1000, 10000 << 5, 100000 // 7, 99, 99, 99, *[0] * 55]


def int64(values: list[int]) -> bytes:
    return array.array("q", values).tobytes()


@cache
def binary(source: str, isa: str = "rv64gc") -> bytes:
    return riscv.Driver(f"isa={isa}").compile(source)


@pytest.fixture(scope="module")
def make_driver() -> Iterator[Callable[..., riscv.Driver]]:
    """make_driver("devices=1") is a driver with those options and all devices open; they are closed at the end."""
    skip_without_a_riscv_compiler()
    drivers = []

    def one(options: str = "devices=2,memory=16M") -> riscv.Driver:
        driver = riscv.Driver(options)
        drivers.append(driver)
        for device in range(driver.device_count()):
            driver.open(device)
        return driver

    yield one
    for driver in drivers:
        for device in range(driver.device_count()):
            driver.close(device)


@pytest.fixture(scope="module")
def driver(make_driver: Callable[..., riscv.Driver]) -> riscv.Driver:
    return make_driver()


@pytest.fixture(scope="module")
def impatient(make_driver: Callable[..., riscv.Driver]) -> riscv.Driver:
    return make_driver("devices=1,memory=16M,seconds=0.5")


def launch(driver: riscv.Driver, kernel: int, *args: int, grid: int = 1, cost: float = SHORT, stream: int = 0) -> bool:
    return driver.launch(0, kernel, Launch(args, grid, stream, bytes=cost))


# ---- the contract ----
@pytest.mark.parametrize("options", ["", "isa=rv64gcv,vlen=128", "machine=qemu", "machine=qemu,isa=rv64gcv"])
def test_the_checks_of_the_contract(options: str) -> None:
    driver = riscv.Driver(f"memory=64M,{options}")
    reason = machine_class(parse_options(options).machine).absent_reason()
    if reason:
        pytest.skip(reason)
    skip_without_a_riscv_compiler()
    results = run_driver_checks(driver, timeout=60)
    assert [result for result in results if result.status == "fail"] == []
    assert sum(result.name.startswith("kernel_") and result.status == "pass" for result in results) == 7
    for device in range(driver.device_count()):
        driver.close(device)


def test_it_is_found_by_its_name() -> None:
    assert isinstance(find_driver("riscv"), riscv.Driver)


def test_a_missing_compiler_means_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_RISCV_CC", "no-such-compiler")
    driver = riscv.Driver("")
    assert driver.device_count() == 0
    assert "there is no program 'no-such-compiler'" in driver.absent_reason()


def test_a_missing_emulator_means_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_a_riscv_compiler()
    monkeypatch.setattr(machine_class("qemu"), "absent_reason", classmethod(lambda cls: "install it"))
    driver = riscv.Driver("machine=qemu")
    assert driver.device_count() == 0
    assert driver.absent_reason() == "machine 'qemu' cannot run here: install it"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("devices=65", "devices=65: allowed is 1 to 64"),
        ("machine=spike", "allowed is interpreter or qemu"),
        ("isa=rv32imc", "allowed is rv64gc or rv64gcv"),
        ("isa=rv64gcv,vlen=200", "allowed is 128, 256, 512 or 1024"),
        ("vlen=256", "only isa=rv64gcv has vector registers"),
        ("memory=1K", "a size per device from 4M to 64G"),
        ("memory=-1M", "a size per device"),
        ("seconds=0", "a number above 0"),
        ("seconds=inf", "a number above 0"),
        ("speed=9", "allowed are devices=…, machine=…"),
        ("devices", "allowed are devices=…"),
    ],
)
def test_a_wrong_option_is_named(options: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"^BRINGUP_RISCV: .*{words}"):
        riscv.Driver(options)


# ---- kernels ----
@pytest.mark.parametrize("isa", ["rv64gc", "rv64gcv"])
@pytest.mark.parametrize("family", ["zig", "clang", "gcc"])
def test_a_kernel_runs_at_any_address(
    family: str, isa: str, make_driver: Callable[..., riscv.Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        monkeypatch.setenv("BRINGUP_RISCV_CC", " ".join(find_toolchain(family).command))
    except ToolchainMissing as reason:
        pytest.skip(str(reason))
    driver = make_driver(f"devices=1,memory=16M,isa={isa}")
    compiled = driver.compile(ADDRESSES)
    out = driver.alloc(0, 512)
    for _ in range(3):  # each at another place
        kernel = driver.load(0, compiled, "addresses")
        write(driver, out, bytes(512))
        launch(driver, kernel, out, grid=9)
        assert read(driver, out, 512) == int64(ADDRESSED)


@pytest.mark.parametrize(
    "declaration",
    [
        "static int64_t calls; int64_t next(void) { return ++calls; }",
        "static int64_t one(void) { return 1; } int64_t (*const functions[2])(void) = {one, one};",
    ],
)
def test_code_that_cannot_be_moved_is_refused(declaration: str) -> None:
    with pytest.raises(BuildError, match="neither variables nor absolute addresses"):
        riscv.Driver("").compile("#include <stdint.h>\n" + declaration)


def test_a_kernel_that_does_not_compile_is_kept(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CACHE", str(tmp_path))
    with pytest.raises(BuildError, match="nonsense") as caught:
        riscv.Driver("").compile("nonsense")
    assert [path.read_text() for path in tmp_path.rglob("*.c")] == ["nonsense"]
    assert str(next(tmp_path.rglob("*.c"))) in str(caught.value)


@pytest.mark.parametrize("cost", [SHORT, LONG])
def test_a_bad_index_is_told_once_and_the_device_goes_on(driver: riscv.Driver, cost: float) -> None:
    kernel = driver.load(0, binary(GATHER), "gather")
    table, index, out = (driver.alloc(0, 24) for _ in range(3))
    write(driver, table, int64([10, 11, 12]))
    write(driver, index, int64([2, 5, 1]))

    def gather() -> None:
        launch(driver, kernel, table, index, out, 3, grid=3, cost=cost)
        synchronize(driver)

    with pytest.raises(IndexError, match=r"index 5 is out of range for a dimension of 3 \(kernel gather\)"):
        gather()
    write(driver, index, int64([2, 0, 1]))
    gather()
    assert read(driver, out, 24) == int64([12, 10, 11])


def test_too_many_arguments_are_refused(driver: riscv.Driver) -> None:
    kernel = driver.load(0, binary(GATHER), "gather")
    with pytest.raises(ValueError, match="4097 arguments; allowed is up to 4096"):
        launch(driver, kernel, *range(4097))


# ---- guests that fail ----
@pytest.mark.parametrize("cost", [SHORT, LONG])
@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ((0, 16), r"store outside of memory and devices, at 0x10\n"),
        ((1, 0), r"ran longer than 0.5 s\n"),
        ((2, 0), "ended with exit code 7"),
    ],
    ids=["trap", "hang", "exit"],
)
def test_a_failing_kernel_is_an_error_and_the_device_goes_on(
    impatient: riscv.Driver, mistake: tuple[int, int], words: str, cost: float
) -> None:
    wrong, add = (impatient.load(0, binary(source), entry) for source, entry in ((WRONG, "wrong"), (ADD, "add")))
    a, b, c = (impatient.alloc(0, 12) for _ in range(3))
    write(impatient, a, array.array("f", [1, 2, 3]).tobytes())
    write(impatient, b, array.array("f", [10, 20, 30]).tobytes())
    before = impatient.clock(0)

    def fail() -> None:
        launch(impatient, wrong, *mistake, cost=cost)
        synchronize(impatient)

    with pytest.raises(RuntimeError, match=words) as caught:
        fail()
    if mistake[0] != 2:
        assert isinstance(caught.value, GuestError)
        assert caught.value.function == "wrong"
        assert len(caught.value.registers) == 32
        assert "sp 0x" in str(caught.value)
    assert impatient.clock(0) > before
    launch(impatient, add, a, b, c, 3)
    synchronize(impatient)
    assert read(impatient, c, 12) == array.array("f", [11, 22, 33]).tobytes()
    for address in (a, b, c):
        impatient.free(0, address)


@pytest.mark.usefixtures("keyboard")
def test_an_interrupt_stops_the_guest_and_the_device_goes_on(driver: riscv.Driver) -> None:
    """Ctrl-C while the calling thread waits for a kernel without end."""
    wrong, slow = (driver.load(0, binary(source), entry) for source, entry in ((WRONG, "wrong"), (SLOW, "slow")))
    cells = driver.alloc(0, 8)
    write(driver, cells, int64([41]))
    threading.Timer(0.3, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        launch(driver, wrong, 1, 0)
    launch(driver, slow, cells, 1)
    assert read(driver, cells, 8) == int64([42])


def test_an_error_belongs_to_the_stream_it_happened_on(impatient: riscv.Driver) -> None:
    kernel = impatient.load(0, binary(WRONG), "wrong")
    one, other = impatient.stream_create(0, 0), impatient.stream_create(0, 0)
    launch(impatient, kernel, 0, 16, cost=LONG, stream=one)
    synchronize(impatient, stream=other)
    with pytest.raises(GuestError):
        synchronize(impatient, stream=one)
    synchronize(impatient, stream=one)  # told once
    impatient.stream_destroy(0, one)
    impatient.stream_destroy(0, other)


def test_an_address_outside_of_device_memory_is_refused(driver: riscv.Driver) -> None:
    for address in (0, 0x8000_0000, driver.alloc(0, 64) + (1 << 40)):
        with pytest.raises(ValueError, match="not within device memory"):
            write(driver, address, b"over the guest's program")


# ---- streams, events, time ----
def test_a_stream_that_waits_holds_no_other(driver: riscv.Driver) -> None:
    kernel, cells = driver.load(0, binary(SLOW), "slow"), driver.alloc(0, 8)
    held, free = driver.stream_create(0, 0), driver.stream_create(0, 0)
    write(driver, cells, bytes(8))
    gate = threading.Event()
    driver.host_function(0, held, lambda: gate.wait() and None)
    launch(driver, kernel, cells, 1, stream=held)
    held_event = driver.event_record(0, held)
    launch(driver, kernel, cells, 1, stream=free, cost=LONG)
    synchronize(driver, stream=free)
    assert read(driver, cells, 8, stream=free) == int64([1])
    driver.event_wait(0, held_event, 0, free)
    launch(driver, kernel, cells, 1, stream=free)
    assert not driver.event_query(0, held_event)
    gate.set()
    assert read(driver, cells, 8, stream=free) == int64([3])


def test_long_work_does_not_hold_the_caller(driver: riscv.Driver) -> None:
    kernel, cells = driver.load(0, binary(SLOW), "slow"), driver.alloc(0, 8)
    write(driver, cells, bytes(8))
    gate = threading.Event()
    driver.host_function(0, 0, lambda: gate.wait() and None)
    assert launch(driver, kernel, cells, 1000) is False
    event = driver.event_record(0, 0)
    assert not driver.event_query(0, event)
    gate.set()
    driver.event_wait(0, event, 0, HOST)
    assert driver.event_query(0, event)
    assert read(driver, cells, 8) == int64([1])
    assert launch(driver, kernel, cells, 1000) is True  # nothing is under way, and it is short


def elapsed_of_slow(driver: riscv.Driver, rounds: int) -> float:
    kernel, cells = driver.load(0, binary(SLOW), "slow"), driver.alloc(0, 8)
    start = driver.event_record(0, 0)
    launch(driver, kernel, cells, rounds)
    end = driver.event_record(0, 0)
    synchronize(driver)
    return driver.event_elapsed(0, start, end)


def test_an_event_tells_instructions(driver: riscv.Driver, make_driver: Callable[..., riscv.Driver]) -> None:
    """The same launch takes the same time always, on every emulator: one nanosecond per instruction."""
    short, long = elapsed_of_slow(driver, 1000), elapsed_of_slow(driver, 2000)
    assert elapsed_of_slow(driver, 1000) == short
    assert round((long - short) * 1e6) % 1000 == 0  # so many instructions in each of the 1000 rounds more
    assert long > short > 0
    if machine_class("qemu").absent_reason() is None:
        assert elapsed_of_slow(make_driver("devices=1,memory=16M,machine=qemu"), 1000) == short


def test_another_device_waits_for_an_event(driver: riscv.Driver) -> None:
    kernel, source, target = driver.load(0, binary(SLOW), "slow"), driver.alloc(0, 8), driver.alloc(1, 8)
    write(driver, source, bytes(8))
    gate, seen = threading.Event(), []
    driver.host_function(0, 0, lambda: gate.wait() and None)
    launch(driver, kernel, source, 1)
    driver.event_wait(0, driver.event_record(0, 0), 1, 0)
    driver.host_function(1, 0, lambda: seen.append(driver.event_query(0, last)))
    last = driver.event_record(0, 0)
    gate.set()
    synchronize(driver, device=1)
    assert seen == [True]
    write(driver, target, read(driver, source, 8), device=1)
    assert read(driver, target, 8, device=1) == int64([1])


def test_instructions_are_counted_by_kernel(make_driver: Callable[..., riscv.Driver]) -> None:
    driver = make_driver("devices=1,memory=16M")
    machine = driver._opened[0].guest.machine
    machine.reset_counts()
    elapsed_of_slow(driver, 100)
    functions = machine.counts.by_function
    assert functions is not None
    assert functions["slow"].instructions > 10 * functions["main"].instructions
    assert functions["slow"].loads >= 100
