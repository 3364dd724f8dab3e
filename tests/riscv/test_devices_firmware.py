"""Firmware in C drives the devices, on every machine that is here: same results, same counts, every time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pytest

from bringup.riscv import GuestError, Machine, MachineSpec, Stop, gemm, open_machine
from bringup.riscv.compute import Compute
from bringup.riscv.device import Device
from bringup.riscv.echo import Echo
from bringup.riscv.gemm import Gemm
from tests.riscv.firmware_programs import SPEC, build, machines, need, word

Devices = Mapping[int, Device]
NOTHING: Mapping[str, int] = MappingProxyType({})


def computes() -> Devices:
    one = Compute()
    return {0x1030_0000: one, 0x1030_1000: Compute(peer=one)}


def gemms() -> Devices:
    return {0x1032_0000: Gemm()}


def echoes() -> Devices:
    return {0x1020_0000: Echo()}


#: name → (firmware, defines, its devices, what it leaves for us to look at)
FIRMWARE: dict[str, tuple[str, tuple[str, ...], Callable[[], Devices], tuple[str, ...]]] = {
    "echo": ("echo", (), echoes, ("polls",)),
    "compute": ("compute", (), computes, ()),
    "gemm": ("gemm_constant", (), gemms, ("before", "after")),
    "gemm_sleep": ("gemm_constant", ("CALL=bringup_gemm_sleep",), gemms, ("before", "after")),
    "interrupts": ("interrupts", (), gemms, ("handled", "cause", "at")),
    "interrupts_spin": ("interrupts", ("SPIN",), gemms, ("handled", "cause", "at", "spins")),
}


def run(machine: str, name: str, isa: str = "rv64gc", family: str | None = None) -> tuple[Stop, int, list[int]]:
    firmware, defines, devices, looked_at = FIRMWARE[name]
    spec = MachineSpec(isa, ram_bytes=SPEC.ram_bytes)
    with open_machine(machine, build(firmware, *defines, isa=isa, family=family), spec, devices()) as guest:
        stop = guest.run(seconds=30)
        return stop, guest.counts.instructions, [word(guest, variable) for variable in looked_at]


@functools.cache
def expected(name: str, isa: str = "rv64gc", family: str | None = None) -> tuple[Stop, int, list[int]]:
    return run("interpreter", name, isa, family)


@machines
@pytest.mark.parametrize("name", FIRMWARE)
def test_firmware_succeeds_with_the_same_counts_on_every_machine(machine: str, name: str) -> None:
    need(machine)
    first = run(machine, name)
    assert first[0] == Stop("exit", 0)
    assert first == expected(name)
    assert first == run(machine, name), "the second time"


@machines
@pytest.mark.parametrize("name", ["echo", "gemm_sleep", "interrupts_spin"])
def test_firmware_for_32_bits(machine: str, name: str) -> None:
    need(machine)
    result = run(machine, name, isa="rv32imfc")
    assert result[0] == Stop("exit", 0)
    assert result == expected(name, "rv32imfc")


@machines
@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("call", ["bringup_gemm", "bringup_gemm_sleep"])
def test_the_engine_multiplies_what_is_in_guest_memory(machine: str, kind: str, call: str) -> None:
    need(machine)
    random = np.random.default_rng(3)
    m, n, k = 6, 11, 23
    if kind == "int8":
        a, b = (random.integers(-128, 128, shape, dtype=np.int8) for shape in ((m, k), (k, n)))
        wanted, control = a.astype(np.int32) @ b.astype(np.int32), gemm.INT8
    else:
        a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
        wanted, control = gemm._float_product(a, b, np.zeros((m, n), np.float32)), 0
    with open_machine(machine, build("gemm", f"CALL={call}", "PRELOADED"), SPEC, gemms()) as guest:
        place = {name: guest.program.symbol(name).address for name in "abc"}
        assert guest.run() == Stop("idle")
        for name, value in {"m": m, "n": n, "k": k, "a_stride": k, "b_stride": n, "c_stride": n}.items():
            guest.write(guest.program.symbol(name).address, value.to_bytes(4, "little"))
        guest.write(guest.program.symbol("control").address, control.to_bytes(4, "little"))
        guest.write(place["a"], a.tobytes())
        guest.write(place["b"], b.tobytes())
        assert guest.run() == Stop("exit", 0)
        assert guest.read(place["c"], wanted.nbytes) == wanted.tobytes()


def test_a_call_costs_at_most_25_instructions() -> None:
    """With six different constants, until the engine starts, and after it is done; and the csrr that looks."""
    for family in ("zig", "gcc"):
        try:
            _, _, (before, after) = expected("gemm_sleep", family=family)
        except RuntimeError as error:
            pytest.skip(str(error))
        assert after - before - 1 <= 25


@machines
def test_a_refused_call_is_reported_to_the_guest(machine: str) -> None:
    need(machine)
    with open_machine(machine, build("gemm", "PRELOADED"), SPEC, gemms()) as guest:
        guest.run()
        guest.write(guest.program.symbol("m").address, (2).to_bytes(4, "little"))
        guest.write(guest.program.symbol("k").address, (9).to_bytes(4, "little"))
        assert guest.run() == Stop("exit", gemm.FAILED)


class Broken(Device):
    def read(self, offset: int, size: int) -> int:
        raise ZeroDivisionError("the model of the device has a mistake")


READS = """
#include <stdint.h>
int main(void) {
  return *(volatile %s *)(%s) == 77;
}
"""


def failing(machine: str, kind: str, address: str, devices: Devices) -> GuestError:
    need(machine)
    with open_machine(machine, build(READS % (kind, address)), SPEC, devices) as guest:
        with pytest.raises(GuestError) as caught:
            guest.run()
        return caught.value


@machines
def test_an_exception_in_a_device_stops_the_guest_and_is_chained(machine: str) -> None:
    error = failing(machine, "uint32_t", "0x10200008", {0x1020_0000: Broken()})
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert "0x10200008: the model of the device has a mistake" in str(error)
    assert (error.function, error.line) == ("main", "firmware.c:4")


@machines
@pytest.mark.parametrize(
    ("kind", "address", "words"),
    [
        ("uint32_t", "0x10200010", "Echo has no register at offset 0x10"),
        ("uint8_t", "0x10200004", "32-bit registers; access of 1 bytes"),
        ("uint64_t", "0x10200000", "32-bit registers; access of 8 bytes"),
    ],
)
def test_wrong_accesses_stop_the_guest(machine: str, kind: str, address: str, words: str) -> None:
    error = failing(machine, kind, address, echoes())
    assert words in error.reason
    assert error.function == "main"


class Widths(Device):
    """Remembers what is stored, by offset and size."""

    def __init__(self) -> None:
        self.stored: dict[tuple[int, int], int] = {}

    def read(self, offset: int, size: int) -> int:
        return 0xFEDC_BA98_7654_3280 + offset

    def write(self, offset: int, size: int, value: int) -> None:
        self.stored[offset, size] = value


WIDTHS = """
#include <stdint.h>
#define AT(type, offset) (*(volatile type *)(0x10200000 + (offset)))
volatile int64_t results[8];
int main(void) {
  results[0] = AT(int8_t, 0);
  results[1] = AT(uint8_t, 0);
  results[2] = AT(int16_t, 0x10);
  results[3] = AT(uint16_t, 0x10);
  results[4] = AT(int32_t, 0x18);
  results[5] = AT(uint32_t, 0x18);
  results[6] = AT(int64_t, 0x20);
  AT(double, 0x40) = AT(double, 0x28);
  AT(float, 0x48) = AT(float, 0x2c) ;
  AT(uint8_t, 0x51) = 0x99;
  AT(uint16_t, 0x52) = 0x9988;
  AT(uint32_t, 0x54) = 0x99887766;
  AT(int64_t, 0x58) = -2;
  return 0;
}
"""


@machines
@pytest.mark.parametrize("family", ["zig", "gcc"])
def test_loads_and_stores_of_every_width(machine: str, family: str) -> None:
    need(machine)
    try:
        program = build(WIDTHS, family=family)
    except RuntimeError as error:
        pytest.skip(str(error))
    device = Widths()
    with open_machine(machine, program, SPEC, {0x1020_0000: device}) as guest:
        assert guest.run() == Stop("exit", 0)
        results = np.frombuffer(guest.read(guest.program.symbol("results").address, 56), np.int64)
    assert list(results) == [-128, 0x80, 0x3290, 0x3290, 0x7654_3298, 0x7654_3298, 0xFEDC_BA98_7654_32A0 - (1 << 64)]
    assert device.stored == {
        (0x40, 8): 0xFEDC_BA98_7654_32A8,
        (0x48, 4): 0x7654_32AC,
        (0x51, 1): 0x99,
        (0x52, 2): 0x9988,
        (0x54, 4): 0x9988_7766,
        (0x58, 8): (1 << 64) - 2,
    }


def test_two_machines_do_not_share_time() -> None:
    def make() -> Machine:
        return open_machine("interpreter", build("echo"), SPEC, echoes())

    with make() as one, make() as other:
        assert one.run() == other.run() == Stop("exit", 0)
        assert one.counts.instructions == other.counts.instructions
