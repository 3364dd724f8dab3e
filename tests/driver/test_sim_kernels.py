"""The sim driver in mode=kernels: load and launch through the contract, with kernels written by hand."""

from __future__ import annotations

import array
import ctypes
import os
import threading
import time
from collections.abc import Callable
from functools import cache

import pytest

from bringup.driver import Launch, Placement, PlacementKind
from bringup.drivers import sim
from bringup.targets.registry import parse_target
from bringup.targets.toolchain import compile_c, host_target
from tests.driver.kernel_sources import ADD, GATHER, LATE, MEET, SLOW
from tests.driver.through_the_contract import D2H, H2D, HOST, address_of, in_new_process, read, synchronize, write

INLINE, SHARED, QUEUED, SPLIT = 0.0, 1e7, 2.5e7, 1e8  # bytes of a launch: shared ones run inline, with helpers


@cache
def binary(source: str) -> bytes:
    return compile_c(source, host_target())


def load(driver: sim.Driver, source: str, entry: str, device: int = 0) -> int:
    return driver.load(device, binary(source), entry)


@pytest.fixture(scope="module")
def driver(make_sim: Callable[..., sim.Driver]) -> sim.Driver:
    return make_sim("devices=2,memory=64M,mode=kernels,threads=4")


def int64(values: list[int]) -> bytes:
    return array.array("q", values).tobytes()


def floats(count: int, start: float = 0.0) -> array.array[float]:
    return array.array("f", [start + i for i in range(count)])


class Add:
    """Buffers for c = a + b on one device."""

    def __init__(self, driver: sim.Driver, count: int = 1000, device: int = 0) -> None:
        self.driver, self.count, self.device = driver, count, device
        self.kernel = load(driver, ADD, "add", device)
        self.a, self.b, self.c = (driver.alloc(device, 4 * count) for _ in range(3))
        write(driver, self.a, floats(count).tobytes(), device=device)
        write(driver, self.b, floats(count, 0.5).tobytes(), device=device)
        write(driver, self.c, bytes(4 * count), device=device)

    def launch(self, nbytes: float = INLINE, stream: int = 0) -> bool:
        args = (self.a, self.b, self.c, self.count)
        launch = Launch(args, -(-self.count // 256), stream, bytes=nbytes, address_count=3)
        return self.driver.launch(self.device, self.kernel, launch)

    def check(self, stream: int = 0) -> None:
        got = array.array("f", read(self.driver, self.c, 4 * self.count, stream, device=self.device))
        assert got == array.array("f", [2 * i + 0.5 for i in range(self.count)])


# ---- what is offered ----
def test_only_kernels_mode_offers_kernels(make_sim):
    group = ("target", "compile", "load", "launch")
    for options, offered in [
        ("mode=kernels", True),
        ("mode=library", False),
        ("", True),
        ("mode=kernels,partitions=4,placement=shard", True),
        ("mode=library,partitions=4", False),
    ]:
        one = make_sim(options, open_devices=False)
        assert [one.offers(method) for method in group] == [offered] * 4, options


def test_the_core_gets_the_librarys_own_struct(driver):
    """No callback into Python on the way of an eager op: compile and target are Python's and are not in the struct."""
    struct = driver._functions()
    assert driver.struct_address == ctypes.addressof(struct)
    assert not struct.compile
    assert not struct.target
    assert struct.launch


def test_target_describes_this_cpu(driver):
    assert parse_target(driver.target()) == host_target()
    assert driver.compiler_identity()


def test_threads_is_checked(make_sim):
    for wrong in ("0", "257", "all"):
        with pytest.raises(RuntimeError, match=f"threads={wrong}: allowed is 1 to 256"):
            make_sim(f"threads={wrong}", open_devices=False)


# ---- running ----
@pytest.mark.parametrize("nbytes", [INLINE, SHARED, QUEUED, SPLIT])
@pytest.mark.parametrize("count", [1, 255, 256, 100_000])
def test_a_launch_computes(driver, nbytes, count):
    work = Add(driver, count)
    finished = work.launch(nbytes)
    assert finished == (nbytes < QUEUED)
    work.check()


def test_compile_is_the_hosts_compiler(driver):
    kernel = driver.load(0, driver.compile(ADD), "add")
    assert kernel != driver.load(0, driver.compile(ADD), "add")


def test_a_busy_stream_queues_short_work_in_order(driver):
    gate, work = threading.Event(), Add(driver)
    driver.host_function(0, 0, gate.wait)
    assert work.launch(INLINE) is False  # behind the gate
    event = driver.event_record(0, 0)
    assert not driver.event_query(0, event)
    gate.set()
    work.check()
    driver.event_destroy(0, event)


def test_arguments_are_copied_when_the_launch_is_queued(driver):
    """What becomes of the caller's arguments does not matter: the ctypes array is gone when launch returns."""
    gate, work = threading.Event(), Add(driver)
    driver.host_function(0, 0, gate.wait)
    for _ in range(100):
        work.launch(QUEUED)
    gate.set()
    work.check()


def test_two_streams_run_at_once(driver):
    busy, gate = driver.stream_create(0, 0), threading.Event()
    driver.host_function(0, busy, gate.wait)
    waiting, work = Add(driver), Add(driver)
    waiting.launch(QUEUED, busy)
    work.launch(QUEUED)
    work.check()  # while the other stream stands still
    assert not any(read(driver, waiting.c, 4 * waiting.count))
    gate.set()
    waiting.check(busy)
    driver.stream_destroy(0, busy)


def test_a_split_launch_runs_on_two_threads_at_once(make_sim):
    """Two units that wait for each other meet only if two threads run them."""
    for threads, expected in ((1, 0), (2, 2)):
        one = make_sim(f"devices=1,memory=1M,mode=kernels,threads={threads}")
        kernel, cells = load(one, MEET, "meet"), one.alloc(0, 16)
        write(one, cells, bytes(16))
        one.launch(0, kernel, Launch((cells, cells + 8, 2), 2, 0, bytes=SPLIT, address_count=2))
        begun, met = array.array("q", read(one, cells, 16))
        assert begun == 2
        assert met >= expected
        if threads == 1:
            assert met <= 1  # the second unit finds that both have begun


def test_every_unit_runs_exactly_once_however_it_is_split(make_sim):
    one = make_sim("devices=1,memory=16M,mode=kernels,threads=8")
    kernel = load(one, SLOW, "slow")
    for grid in (1, 2, 3, 63, 64, 65, 1000, 12345):
        cells = one.alloc(0, 8 * grid)
        write(one, cells, bytes(8 * grid))
        for nbytes in (INLINE, SHARED, QUEUED, SPLIT, 2 * SPLIT):
            one.launch(0, kernel, Launch((cells, 1), grid, 0, bytes=nbytes, address_count=1))
        assert set(array.array("q", read(one, cells, 8 * grid))) == {5}
        one.free(0, cells)


def test_many_threads_launch_at_once(driver):
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            stream = driver.stream_create(number % 2, 0)
            mine = Add(driver, 700 + number, device=number % 2)
            for turn in range(40):
                mine.launch((INLINE, SHARED, QUEUED, SPLIT)[turn % 4], stream)
            mine.check(stream)
            driver.stream_destroy(number % 2, stream)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_nothing_to_do_is_fine(driver):
    work = Add(driver)
    assert driver.launch(0, work.kernel, Launch((work.a, work.b, work.c, 0), 0, 0, address_count=3))
    empty = Launch((0, 0, 0, 0), 1, 0, address_count=3)  # empty tensors have no address
    assert driver.launch(0, work.kernel, empty)


def test_with_a_trap_kernels_see_memory_that_the_host_may_not(sim_library):
    code = """
        from bringup.driver import Launch
        from tests.driver.kernel_sources import ADD
        import array
        driver = Driver("devices=1,memory=1M,mode=kernels,trap=1")
        assert driver.open(0).host_offset != 0
        kernel = driver.load(0, driver.compile(ADD), "add")
        a, c = driver.alloc(0, 4000), driver.alloc(0, 4000)
        data = (ctypes.c_float * 1000)(*range(1000))
        driver.copy(0, a, ctypes.addressof(data), 4000, CopyKind.HOST_TO_DEVICE, 0)
        for nbytes in (0.0, 1e6):
            driver.launch(0, kernel, Launch((a, a, c, 1000), 4, 0, bytes=nbytes, address_count=3))
        event = driver.event_record(0, 0)
        driver.event_wait(0, event, 0, -1)
        driver.copy(0, ctypes.addressof(data), c, 4000, CopyKind.DEVICE_TO_HOST, 0)
        assert list(data) == [2.0 * i for i in range(1000)]
        print(ctypes.CDLL(str(Driver.library)).sim_trap_count())
    """
    child = in_new_process(code, sim_library)
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == "0"  # nothing touched the closed side


# ---- time ----
def test_the_device_clock_moves_by_the_kernels_cost(make_sim):
    one = make_sim("devices=1,memory=1M,mode=kernels,peak_flops.float32=1e12,bandwidth=1e11,launch_ns=100")
    work = Add(one)
    launch = Launch((work.a, work.b, work.c, 1000), 4, 0, flops=4e6, bytes=1e5, address_count=3)
    before = one.clock(0)
    one.launch(0, work.kernel, launch)
    synchronize(one)
    assert one.clock(0) - before == 100 + 4000  # flops: 4 µs, bytes: 1 µs


def test_faults_can_be_injected(make_sim):
    one = make_sim("devices=1,memory=1M,mode=kernels,fail=launch:0.5,seed=3")
    work, reasons = Add(one), []
    for _ in range(40):
        try:
            work.launch()
        except RuntimeError as error:
            reasons.append(str(error))
    assert 5 < len(reasons) < 35
    assert all("injected fault: launch" in reason for reason in reasons)
    work.check()


# ---- an index out of range ----
class Gather:
    """out = table[index] on the device, with an index of 9 among 5 rows."""

    def __init__(self, driver: sim.Driver, index: list[int], device: int = 0) -> None:
        self.driver, self.units, self.device = driver, len(index), device
        self.kernel = load(driver, GATHER, "gather", device)
        self.table, self.index, self.out = (driver.alloc(device, max(8 * len(index), 40)) for _ in range(3))
        write(driver, self.table, int64([10, 11, 12, 13, 14]), device=device)
        write(driver, self.index, int64(index), device=device)

    def launch(self, nbytes: float, stream: int = 0) -> bool:
        args = (self.table, self.index, self.out, 5)
        launch = Launch(args, self.units, stream, bytes=nbytes, address_count=3)
        return self.driver.launch(self.device, self.kernel, launch)

    def result(self) -> list[int]:
        return list(array.array("q", read(self.driver, self.out, 8 * self.units, device=self.device)))


OUT_OF_RANGE = r"sim.*: index 9 is out of range for a dimension of 5 \(kernel gather\)"


def test_a_bad_index_inline_fails_this_launch(driver):
    work = Gather(driver, [4, 9, 0])
    with pytest.raises(IndexError, match=OUT_OF_RANGE):
        work.launch(INLINE)
    assert work.result() == [14, 10, 10]  # index 0 in place of the bad one; the stream goes on


@pytest.mark.parametrize("nbytes", [QUEUED, SPLIT])
@pytest.mark.parametrize("reporter", ["launch", "copy", "wait", "peer copy"])
def test_a_bad_index_in_queued_work_is_reported_once_by_the_next_call(driver, nbytes, reporter):
    work, other, stream = Gather(driver, [1] * 500 + [9]), Add(driver), driver.stream_create(0, 0)
    assert work.launch(nbytes, stream) is False
    before = driver.event_record(0, stream)
    while not driver.event_query(0, before):  # it has run; asking does not report
        pass
    word, peer = bytes(8), driver.alloc(1, 8)
    calls = {
        "launch": lambda: other.launch(stream=stream),
        "copy": lambda: driver.copy(0, work.out, address_of(word), 8, H2D, stream),
        "peer copy": lambda: driver.copy_peer(0, work.out, 1, peer, 8, stream),
        "wait": lambda: driver.event_wait(0, before, 0, HOST),
    }
    with pytest.raises(IndexError, match=OUT_OF_RANGE):
        calls[reporter]()
    driver.event_wait(0, before, 0, HOST)  # once
    other.launch(stream=stream)
    other.check(stream)
    driver.event_destroy(0, before)
    driver.stream_destroy(0, stream)


def test_waiting_for_the_copy_behind_a_bad_index_reports_it(driver):
    """The usual order of a program: launch, copy back, wait."""
    gate, work, back = threading.Event(), Gather(driver, [9]), bytes(8)
    driver.host_function(0, 0, gate.wait)
    work.launch(INLINE)
    driver.copy(0, address_of(back), work.out, 8, D2H, 0)
    gate.set()
    with pytest.raises(IndexError, match=OUT_OF_RANGE):
        synchronize(driver)
    assert back == int64([10])


def test_another_streams_bad_index_is_not_ours(driver):
    bad, good = driver.stream_create(0, 0), driver.stream_create(0, 0)
    Gather(driver, [9]).launch(QUEUED, bad)
    work = Add(driver)
    work.launch(QUEUED, good)
    work.check(good)
    driver.stream_destroy(0, good)
    driver.stream_destroy(0, bad)  # with nobody told: that ends with the stream
    fresh = [driver.stream_create(0, 0) for _ in range(4)]  # the slot is used again
    for stream in fresh:
        work.launch(QUEUED, stream)
        work.check(stream)
        driver.stream_destroy(0, stream)


def test_of_several_bad_indices_the_first_counts(make_sim):
    """Whichever thread was first: the same message every time."""
    one = make_sim("devices=1,memory=16M,mode=kernels,threads=4")
    kernel = load(one, LATE, "late")
    for _ in range(3):
        one.launch(0, kernel, Launch((), 100, 0, bytes=SPLIT))
        with pytest.raises(IndexError, match="index 0 is"):
            synchronize(one)


# ---- mistakes ----
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an ELF file"),
        (b"void add() {}", "not an ELF file"),
        (b"\x7fELF" + bytes(100), "another word size"),
        ("half", "cut short"),
        ("header", "cut short"),
        ("program", "not a shared object"),
        ("undefined", "undefined symbol: no_such_function"),
    ],
)
def test_a_bad_binary_is_an_error(driver, data, reason):
    if data == "half":
        data = binary(ADD)[: len(binary(ADD)) // 3]
    elif data == "header":
        data = binary(ADD)[:64]
    elif data == "program":
        data = binary(ADD)[:16] + b"\x01\x00" + binary(ADD)[18:]  # ET_REL
    elif data == "undefined":
        data = binary("void no_such_function(void); void add(void) { no_such_function(); }")
    with pytest.raises(ValueError, match=f"load: .*{reason}"):
        driver.load(0, data, "add")


def test_a_missing_function_is_an_error(driver):
    with pytest.raises(ValueError, match='has no function "sub"'):
        driver.load(0, binary(ADD), "sub")
    with pytest.raises(ValueError, match="no name"):
        driver.load(0, binary(ADD), "")


def test_binaries_that_follow_each_other_stay_apart(driver):
    """The loader knows libraries by their path, and descriptor numbers come back: every load must give its own code."""
    cell = driver.alloc(0, 8)
    for number in range(6):
        kernel = driver.load(
            0, binary(f"void k(const long *a, long b, long e, long *r) {{ *(long *)a[0] = {number}; }}"), "k"
        )
        driver.launch(0, kernel, Launch((cell,), 1, 0, address_count=1))
        assert read(driver, cell, 8) == int64([number])


def test_a_bad_handle_is_an_error(driver):
    work = Add(driver)
    launch = Launch((work.a, work.b, work.c, 1000), 4, 0, address_count=3)
    for handle in (0, 1, work.kernel + 1000, work.kernel | 1 << 63, 2**64 - 1, work.a):
        with pytest.raises(ValueError, match="was not loaded on device 0"):
            driver.launch(0, handle, launch)
    with pytest.raises(ValueError, match="was not loaded on device 1"):
        driver.launch(1, work.kernel, launch)


def test_bad_arguments_are_errors(driver):
    work = Add(driver)
    good = (work.a, work.b, work.c, 1000)
    for launch, reason in [
        (Launch(good[:3], 4, 0, address_count=3), "takes 4 arguments, not 3"),
        (Launch((*good, 1), 4, 0, address_count=3), "takes 4 arguments, not 5"),
        (Launch(good, 4, 0, address_count=5), "5 addresses among 4 arguments"),
        (Launch((1 << 60, *good[1:]), 4, 0, address_count=3), "launch argument: .*not in the memory"),
        (Launch(good, 1 << 60, 0, address_count=3), "too large"),
        (Launch(good, 4, 77, address_count=3), "stream 77"),
        (Launch(good, 4, 0, flops=float("nan"), address_count=3), "flops nan"),
        (Launch(good, 4, 0, bytes=-1, address_count=3), "bytes -1"),
    ]:
        with pytest.raises(ValueError, match=reason):
            driver.launch(0, work.kernel, launch)
    spread = tuple(Placement(PlacementKind.SHARD, 64) for _ in good)
    with pytest.raises(NotImplementedError, match="lies in several partitions"):
        driver.launch(0, work.kernel, Launch(good, 4, 0, placements=spread, address_count=3))
    work.launch()
    work.check()


# ---- life and death ----
def threads_now() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def test_close_finishes_what_is_queued(make_sim):
    one = make_sim("devices=1,memory=1M,mode=kernels,threads=2")
    kernel, cells = load(one, SLOW, "slow"), one.alloc(0, 64 * 8)
    write(one, cells, bytes(64 * 8))
    done, before = [], threads_now()
    for _ in range(5):
        one.launch(0, kernel, Launch((cells, 100_000), 64, 0, bytes=SPLIT, address_count=1))
    one.host_function(0, 0, lambda: done.append(True))
    one.close(0)
    assert done == [True]
    deadline = time.monotonic() + 5  # a thread that was joined may stay in /proc for a moment
    while threads_now() - before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not threads_now() - before  # the stream's worker and the helper are gone
    with pytest.raises(ValueError, match="not open"):
        one.launch(0, kernel, Launch((cells, 1), 64, 0, address_count=1))
    one.open(0)
    with pytest.raises(ValueError, match="was not loaded on device 0"):
        one.launch(0, kernel, Launch((cells, 1), 64, 0, address_count=1))
    Add(one).launch(SPLIT)  # with new helpers
    synchronize(one)


def test_inline_launches_start_no_thread(make_sim):
    one = make_sim("devices=1,memory=1M,mode=kernels,threads=8")
    work, before = Add(one), threads_now()
    for _ in range(10):
        work.launch(INLINE)
    assert threads_now() <= before


def test_a_forked_child_gets_an_error_and_can_open_other_devices(sim_library):
    code = """
        import os
        from bringup.driver import Launch
        from tests.driver.kernel_sources import SLOW
        driver = Driver("devices=2,memory=1M,mode=kernels,threads=4")
        driver.open(0)
        binary = driver.compile(SLOW)
        def run(device):
            kernel, cells = driver.load(device, binary, "slow"), driver.alloc(device, 64 * 8)
            driver.launch(device, kernel, Launch((cells, 1000), 64, 0, bytes=1e8, address_count=1))
            event = driver.event_record(device, 0)
            driver.event_wait(device, event, 0, -1)
            return ctypes.string_at(cells, 8)
        run(0)
        pid = os.fork()
        if pid == 0:
            try:
                run(0)
            except RuntimeError as error:
                assert "forked child" in str(error)
                driver.open(1)
                os._exit(3 if run(1) == b"\\1" + bytes(7) else 4)
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert run(0) == b"\\1" + bytes(7)
        print("both work")
    """
    child = in_new_process(code, sim_library)
    assert child.stdout.strip() == "both work", child.stderr


def test_a_process_may_end_while_kernels_run(sim_library):
    code = """
        from bringup.driver import Launch
        from tests.driver.kernel_sources import SLOW
        driver = Driver("devices=1,memory=1M,mode=kernels,threads=2")
        driver.open(0)
        kernel, cells = driver.load(0, driver.compile(SLOW), "slow"), driver.alloc(0, 64 * 8)
        for _ in range(50):
            driver.launch(0, kernel, Launch((cells, 1000000), 64, 0, bytes=1e8, address_count=1))
        print("over")
    """
    child = in_new_process(code, sim_library)
    assert (child.returncode, child.stdout.strip()) == (0, "over"), child.stderr
