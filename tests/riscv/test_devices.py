"""The devices, accessed directly: registers, latency, errors. test_devices_firmware.py drives them from a guest."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from bringup.ir import interpret
from bringup.ir.parser import parse
from bringup.riscv import compute, echo, gemm
from bringup.riscv.compute import Compute
from bringup.riscv.device import Bus, Device, DeviceError, Memory
from bringup.riscv.echo import Echo
from bringup.riscv.gemm import Gemm

RAM = 0x8000_0000


class Clock:
    """A bus with one device at 0x10200000, and time that a test moves."""

    def __init__(self, device: Device) -> None:
        self.time = 0
        self.ram = np.zeros(1 << 16, np.uint8)
        self.bus = Bus({0x1020_0000: device}, self.ram, RAM, lambda: self.time)

    def read(self, offset: int, size: int = 4) -> int:
        return self.bus.read(0x1020_0000 + offset, size)

    def write(self, offset: int, value: int, size: int = 4) -> None:
        self.bus.write(0x1020_0000 + offset, size, value)


def test_echo_is_busy_for_its_latency_and_then_ready() -> None:
    clock = Clock(Echo(latency=3))
    clock.write(0, 0xDEAD_BEEF)
    statuses = []
    for clock.time in range(5):
        statuses.append(clock.read(8))
    assert statuses == [echo.BUSY] * 3 + [echo.READY] * 2
    assert clock.read(4) == clock.read(0) == 0xDEAD_BEEF


def test_echo_without_latency_is_ready_at_once() -> None:
    clock = Clock(Echo(latency=0))
    clock.write(0, 5)
    assert clock.read(8) == echo.READY


def test_a_reset_cancels_what_was_going_on() -> None:
    clock = Clock(Echo(latency=3))
    clock.write(0, 5)
    clock.write(0xC, echo.RESET)
    clock.time = 10
    assert [clock.read(offset) for offset in (0, 4, 8)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("access", "words"),
    [
        (lambda clock: clock.read(0x10), "no register at offset 0x10; it has 0x0 DATA_IN, 0x4 DATA_OUT"),
        (lambda clock: clock.read(0, 8), "32-bit registers; access of 8 bytes"),
        (lambda clock: clock.write(4, 1, 2), "32-bit registers; access of 2 bytes"),
        (lambda clock: clock.write(4, 1), "DATA_OUT is read only"),
        (lambda clock: clock.read(6), "misaligned access of 4 bytes"),
        (lambda clock: clock.bus.read(0x1030_0000, 4), "no device at 0x10300000"),
        (lambda clock: (clock.write(0, 1), clock.write(0, 2)), "written while busy"),
    ],
)
def test_wrong_accesses_to_echo_say_what_is_wrong(access, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        access(Clock(Echo()))


@pytest.mark.parametrize(
    ("operation", "a", "b", "result", "status"),
    [
        (compute.ADD, 0xFFFF_FFFF, 2, 1, compute.READY),
        (compute.SUB, 1, 2, 0xFFFF_FFFF, compute.READY),
        (compute.MUL, 0x8000_0001, 2, 2, compute.READY),
        (compute.DIV, 0xFFFF_FFFE, 3, 0x5555_5554, compute.READY),
        (compute.DIV, 1, 0, 0, compute.ERROR),
        (4, 1, 1, 0, compute.ERROR),
    ],
)
def test_compute(operation: int, a: int, b: int, result: int, status: int) -> None:
    clock = Clock(Compute(latency=2))
    for offset, value in ((0, a), (4, b), (8, operation), (0x14, compute.TRIGGER)):
        clock.write(offset, value)
    assert clock.read(0x10) == compute.BUSY
    clock.time = 2
    assert (clock.read(0xC), clock.read(0x10)) == (result, status)


def test_operands_are_taken_when_it_is_triggered() -> None:
    clock = Clock(Compute(latency=5))
    clock.write(0, 20)
    clock.write(0x14, compute.TRIGGER)
    clock.write(0, 1)
    clock.time = 5
    assert clock.read(0xC) == 20


def test_a_peer_answers_with_its_result() -> None:
    one = Compute(latency=3)
    other = Compute(peer=one)
    here, there = Clock(one), Clock(other)
    there.write(0, 40)
    there.write(4, 2)
    there.write(0x14, compute.TRIGGER)
    there.time = 8
    assert there.read(0xC) == 42
    here.write(0x18, 77)
    assert here.read(0x10) == 0, "the answer takes its time"
    assert there.read(0x10) == compute.READY, "who is asked notices nothing"
    here.time = 3
    assert here.read(0x10) == compute.PEER
    assert (here.read(0x18), here.read(0x1C), here.read(0x10)) == (77, 42, 0)


def test_a_reset_takes_back_the_question_to_the_peer() -> None:
    one = Compute(latency=3)
    Compute(peer=one)
    clock = Clock(one)
    clock.write(0x18, 1)
    clock.write(0x14, compute.RESET)
    clock.time = 9
    assert clock.read(0x10) == 0


def test_control_reads_back_until_a_reset() -> None:
    clock = Clock(Compute())
    clock.write(0x14, compute.TRIGGER)
    assert clock.read(0x14) == compute.TRIGGER
    clock.write(0x14, compute.RESET)
    assert clock.read(0x14) == 0


def test_wrong_peers_are_errors_in_words() -> None:
    one = Compute()
    Compute(peer=one)
    with pytest.raises(ValueError, match="has a peer already"):
        Compute(peer=one)
    with pytest.raises(TypeError, match=r"the peer of a Compute is another Compute, not Echo.*has no RESULT"):
        Compute(peer=Echo())  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="there is no peer"):
        Clock(Compute()).write(0x18, 1)


class Engine(Clock):
    """A matrix engine with its operands in memory."""

    A, B, C = RAM + 0x1000, RAM + 0x4000, RAM + 0x8000

    def __init__(self, **latency: int) -> None:
        self.device = Gemm(**latency)
        super().__init__(self.device)

    def place(self, address: int, values: np.ndarray, stride: int) -> None:
        for row, line in enumerate(values):
            self.bus.memory.write(address + row * stride * values.itemsize, line.tobytes())

    def taken(self, shape: tuple[int, int], dtype: str, stride: int) -> np.ndarray:
        rows = [self.bus.memory.array(self.C + 4 * row * stride, shape[1], dtype) for row in range(shape[0])]
        return np.array(rows).reshape(shape)

    def start(self, sizes: tuple[int, int, int], strides: tuple[int, int, int], control: int) -> None:
        for offset, address in ((0, self.A), (8, self.B), (0x10, self.C)):
            self.write(offset, address, 8)
        for offset, value in zip(range(0x18, 0x30, 4), (*sizes, *strides)):
            self.write(offset, value)
        self.write(0x30, control | gemm.START)

    def finish(self) -> int:
        self.time += 1 << 40
        return self.read(0x34)


CONTRACT = """kernel gemm size m size n size k
  in a: float32[m, k] strides [k, 1] in b: float32[k, n] strides [n, 1] inout c: float32[m, n] strides [n, 1]
  grid i < m, j < n
  { contract acc over p < k lanes 1 = a[i, p] by b[p, j] from c[i, j]
    store c[i, j] = acc }"""


@pytest.mark.parametrize("transposed", range(4))
@pytest.mark.parametrize("accumulate", [False, True])
def test_float_products_are_those_of_a_contract(transposed: int, accumulate: bool) -> None:
    random = np.random.default_rng(transposed)
    m, n, k = 5, 7, 33
    a, b = (random.standard_normal(shape).astype(np.float32) * 1e3 ** random.random() for shape in ((m, k), (k, n)))
    c = random.standard_normal((m, n)).astype(np.float32)
    engine = Engine()
    strides = (m if transposed & 1 else k) + 3, (k if transposed & 2 else n) + 1, n + 2
    engine.place(engine.A, a.T if transposed & 1 else a, strides[0])
    engine.place(engine.B, b.T if transposed & 2 else b, strides[1])
    engine.place(engine.C, c, strides[2])
    engine.start((m, n, k), strides, transposed * gemm.TRANSPOSE_A | accumulate * gemm.ACCUMULATE)
    assert engine.finish() == gemm.DONE
    wanted = c.copy() if accumulate else np.zeros_like(c)
    first = _fused_sum(a[0], b[:, 0], wanted[0, 0])
    interpret.run(parse(CONTRACT), {"a": a, "b": b, "c": wanted}, {"m": m, "n": n, "k": k})
    assert wanted[0, 0] == first
    assert np.array_equal(engine.taken((m, n), "f4", strides[2]).view("u4"), wanted.view("u4"))
    beyond = engine.bus.memory.array(engine.C, (m - 1) * strides[2] + n, "f4")
    assert not beyond[n : strides[2]].any(), "the gap between rows is not touched"


def _fused_sum(a: np.ndarray, b: np.ndarray, start: np.float32) -> np.float32:
    """With one rounding per step, by rational numbers."""
    total = np.float32(start)
    for x, y in zip(a, b):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(total))
        near = np.float32(float(exact))
        # float() rounds to float64 first; the nearest float32 is among the neighbours
        candidates = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
        total = min(candidates, key=lambda value: (abs(Fraction(float(value)) - exact), value.view(np.uint32) & 1))
    return total


def test_int8_products_wrap_in_int32() -> None:
    random = np.random.default_rng(1)
    a, b = (random.integers(-128, 128, shape, dtype=np.int8) for shape in ((3, 40), (40, 6)))
    c = np.full((3, 6), (1 << 31) - 5, np.int32)
    engine = Engine()
    engine.place(engine.A, a, 40)
    engine.place(engine.B, b, 6)
    engine.place(engine.C, c, 6)
    engine.start((3, 6, 40), (40, 6, 6), gemm.INT8 | gemm.ACCUMULATE)
    assert engine.finish() == gemm.DONE
    wanted = (a.astype(np.int64) @ b.astype(np.int64) + c).astype(np.int32)
    assert np.array_equal(engine.taken((3, 6), "i4", 6), wanted)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (2, 3, 0)])
def test_empty_products(sizes: tuple[int, int, int]) -> None:
    engine = Engine()
    engine.place(engine.C, np.ones((2, 3), np.float32), 3)
    engine.start(sizes, (4, 3, 3), 0)
    assert engine.finish() == gemm.DONE
    assert np.array_equal(engine.taken((2, 3), "f4", 3), np.full((2, 3), 0.0 if sizes == (2, 3, 0) else 1.0))


def test_the_latency_grows_with_the_work() -> None:
    engine = Engine(setup=10, macs_per_instruction=4)
    engine.start((3, 3, 3), (3, 3, 3), gemm.INTERRUPT)
    engine.time = 10 + 6  # ceil(27 / 4) = 7
    assert engine.read(0x34) == gemm.BUSY
    assert not engine.bus.interrupt
    engine.time = 10 + 7
    engine.bus.run_due()
    assert engine.bus.interrupt
    assert engine.read(0x34) == gemm.DONE
    assert not engine.bus.interrupt, "who reads the status has taken note"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda engine: engine.write(0x24, 1), gemm.STRIDE_TOO_SMALL),
        (lambda engine: engine.write(0, RAM - 8, 8), gemm.OUTSIDE_MEMORY),
        (lambda engine: engine.write(0x14, 1), gemm.OUTSIDE_MEMORY),
        (lambda engine: engine.write(0x18, 1 << 30), gemm.OUTSIDE_MEMORY),
        (lambda engine: engine.write(0x30, 1 << 9), gemm.UNKNOWN_CONTROL),
    ],
)
def test_what_the_engine_cannot_do_is_an_error_of_its_own(change, error: int) -> None:
    engine = Engine()
    engine.start((2, 2, 2), (2, 2, 2), 0)
    engine.finish()
    engine.place(engine.C, np.full((2, 2), 7, np.float32), 2)
    change(engine)
    engine.write(0x30, engine.read(0x30) | gemm.START)
    assert engine.finish() == gemm.DONE | gemm.FAILED
    assert engine.read(0x38) == error
    assert np.array_equal(engine.taken((2, 2), "f4", 2), np.full((2, 2), 7)), "nothing is written"
    engine.start((2, 2, 2), (2, 2, 2), 0)
    assert engine.finish() == gemm.DONE
    assert engine.read(0x38) == 0


def test_wrong_accesses_to_the_engine() -> None:
    engine = Engine()
    assert engine.read(0x3C) == gemm.IDENTITY
    assert engine.read(0x18, 8) == 0
    for access, words in [
        (lambda: engine.read(0x40), "registers up to 0x3c"),
        (lambda: engine.read(0, 2), "access of 2 bytes"),
        (lambda: engine.write(0x34, 2), "STATUS is read only"),
    ]:
        with pytest.raises(DeviceError, match=words):
            access()
    engine.start((2, 2, 2), (2, 2, 2), 0)
    with pytest.raises(DeviceError, match="M was written while busy"):
        engine.write(0x18, 3)


def test_devices_have_their_places() -> None:
    device, ram = Echo(), np.zeros(1 << 16, np.uint8)
    with pytest.raises(DeviceError, match="connected to no machine"):
        device.now()
    for devices, words in [
        ({0x1020_0000: device, 0x1030_0000: device}, "at two addresses"),
        ({0x1020_0100: device}, "multiples of 0x1000"),
        ({RAM + 0x1000: device}, "overlap"),
        ({0x1000_0000: device}, "overlap"),
        ({0x10_0000: device}, "overlap"),
    ]:
        with pytest.raises(ValueError, match=words):
            Bus(devices, ram, RAM, lambda: 0)


def test_memory_is_shared_and_bounded() -> None:
    memory = Memory(np.zeros(64, np.uint8), RAM)
    memory.array(RAM + 3, (2, 2), np.int32)[1, 1] = -2
    assert memory.read(RAM + 15, 4) == b"\xfe\xff\xff\xff"
    for address, nbytes in ((RAM - 1, 2), (RAM + 63, 2), (0, 1)):
        with pytest.raises(DeviceError, match="not within memory"):
            memory.read(address, nbytes)


def test_time_passes_in_sleep_from_alarm_to_alarm() -> None:
    class Twice(Device):
        seen: list[int]

        def write(self, offset: int, size: int, value: int) -> None:
            self.seen = []
            self.after(10, self.first)

        def first(self) -> None:
            self.seen.append(self.now())
            self.after(20, self.second)

        def second(self) -> None:
            self.seen.append(self.now())
            self.irq()

    device = Twice()
    clock = Clock(device)
    assert not clock.bus.sleep(), "nothing will ever wake it"
    clock.write(0, 1)
    assert clock.bus.sleep()
    assert device.seen == [10, 30]
    assert (clock.time, device.now()) == (0, 30)
    device.irq(False)
    assert not clock.bus.sleep()


def test_alarms_that_are_late_know_their_time() -> None:
    class Late(Device):
        times: tuple[int, ...] = ()

        def write(self, offset: int, size: int, value: int) -> None:
            self.after(value, lambda: setattr(self, "times", (*self.times, self.now())))

    device = Late()
    clock = Clock(device)
    clock.write(0, 7)
    clock.write(0, 5)
    clock.time = 100
    clock.write(0, 1)
    assert device.times == (5, 7)
