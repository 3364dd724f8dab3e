"""One interface, two machines: the same programs give the same results, counts and errors."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from bringup.riscv import GuestError, Machine, MachineSpec, Stop, open_machine, runtime, toolchain
from bringup.riscv.echo import Echo
from bringup.riscv.machine import machine_class
from tests.riscv.conftest import RunQemu
from tests.riscv.firmware_programs import SPEC, build, machines, need, word

TRAPS = {
    # name: (C of a function of p, why it stops, a register and its value)
    "load": ("return *(volatile int *)(p + 16);", "load outside of memory and devices, at 0x10", ("a0", 0)),
    "store": ("*(volatile int *)0x7ffffff8 = 1; return 0;", "store outside of memory and devices, at 0x7ffffff8", None),
    "beyond": ("return *(volatile int *)(p + 0x80100000);", "load outside of memory and devices, at 0x80100000", None),
    "illegal": ('__asm__ volatile(".word 0xffffffff"); return 0;', "illegal instruction", None),
    "ebreak": ('__asm__ volatile("ebreak"); return 0;', "breakpoint", None),
    "ecall": ('__asm__ volatile("li a0, 7\\n ecall"); return 0;', "environment call", ("a0", 7)),
}
FAULTY = """
typedef unsigned long address;
__attribute__((noinline)) int faulty(address p) {
  (void)p; %s
}
int main(void) {
  return faulty(0) + 1;
}
"""
RECURSES = """
__attribute__((noinline)) int deep(int n) {
  volatile char frame[256];
  frame[n & 255] = 1;
  return n < 0 ? 0 : deep(n + 1) + frame[0];
}
int main(void) { return deep(0); }
"""
HANGS = """
int main(void) {
  for (;;) __asm__ volatile("");
}
"""


@functools.cache
def results(machine: str, name: str, isa: str, family: str | None) -> tuple[Stop, bytes, int, bytes]:
    vlen = 0
    if ":" in isa:
        isa, _, bits = isa.partition(":")
        vlen = int(bits)
    spec = MachineSpec(isa, vlen, ram_bytes=SPEC.ram_bytes)
    with open_machine(machine, build(name, isa=isa, family=family), spec) as guest:
        stop = guest.run()
        variable = guest.program.symbol("sum" if name == "vectors" else "total")
        return stop, guest.console, guest.counts.instructions, guest.read(variable.address, variable.size)


@machines
@pytest.mark.parametrize(
    ("isa", "family"),
    [("rv64gc", "zig"), ("rv64gc", "gcc"), ("rv32imfc", "zig"), *((f"rv64gcv:{n}", "zig") for n in (128, 256, 1024))],
)
def test_results_and_counts_are_the_same_everywhere(machine: str, isa: str, family: str) -> None:
    need(machine)
    name = "vectors" if ":" in isa else "console"
    try:
        found = results(machine, name, isa, family)
    except toolchain.ToolchainMissing as error:
        pytest.skip(str(error))
    assert found == results("interpreter", name, isa, family)
    assert found[:2] == ((Stop("exit", 42), b"hello\nbye\n") if name == "console" else (Stop("exit", 0), b""))


def counted_kinds(word: int) -> tuple[bool, bool, bool]:
    """Whether an RV64 instruction loads, stores, and is one for vectors."""
    if word & 3 != 3:
        kind = word >> 13 & 7
        is_access = word & 3 in (0, 2) and kind & 3 != 0
        return is_access and kind < 4, is_access and kind >= 4, False
    opcode = word & 0x7F
    vector = opcode == 0x57 or (opcode in (0x07, 0x27) and word >> 12 & 7 in (0, 5, 6, 7))
    return opcode in (0x03, 0x07), opcode in (0x23, 0x27), vector


@pytest.mark.parametrize("name", ["console", "vectors"])
def test_every_count_is_that_of_qemus_trace(name: str, qemu_memory: RunQemu, tmp_path: Path) -> None:
    spec = MachineSpec(*(("rv64gcv", 256) if name == "vectors" else ("rv64gc",)), ram_bytes=16 << 20)
    program = build(name, isa=spec.isa)
    with open_machine("interpreter", program, spec) as guest:
        stop = guest.run()
        ours = guest.counts
    assert ours.by_function is not None
    assert ours.by_function.keys() >= {"main", "bringup_start", "bringup_exit"}
    assert sum(function.instructions for function in ours.by_function.values()) == ours.instructions
    qemu_memory(program, spec, "-singlestep", "-d", "exec,nochain", "-D", str(tmp_path / "trace"), code=stop.code)
    addresses = re.findall(r"^Trace \d+: \S+ \[\w+/(\w+)/", (tmp_path / "trace").read_text(), re.MULTILINE)
    found: dict[str, list[int]] = {}
    for pc in (int(text, 16) for text in addresses):
        if pc >= spec.ram_base:  # QEMU starts in a ROM
            counts = found.setdefault(guest.program.function_at(pc) or "?", [0, 0, 0, 0])
            at = next(s for s in guest.program.segments if s.address <= pc < s.address + len(s.data))
            word = int.from_bytes(at.data[pc - at.address : pc - at.address + 4], "little")
            for n, one in enumerate((True, *counted_kinds(word))):
                counts[n] += one
    kinds = ("instructions", "loads", "stores", "vector")
    assert found == {name: [getattr(one, kind) for kind in kinds] for name, one in ours.by_function.items()}


@machines
def test_a_guest_that_waits_is_idle_and_goes_on_with_what_the_host_wrote(machine: str) -> None:
    need(machine)
    with open_machine(machine, build("waiting"), SPEC) as guest:
        assert guest.run() == Stop("idle")
        costs = []
        for request in (1, 1000, 10, 1000):
            guest.write(guest.program.symbol("request").address, request.to_bytes(4, "little"))
            guest.reset_counts()
            assert guest.run() == Stop("idle")
            costs.append(guest.counts.instructions)
            assert word(guest, "answer") == request * (request + 1) // 2
        assert costs[1] == costs[3] > 1000 > costs[2]
        assert word(guest, "served") == 4
        guest.write(guest.program.symbol("request").address, bytes(4))
        assert guest.run() == Stop("exit", 3)
        with pytest.raises(RuntimeError, match="ended with exit code 3"):
            guest.run()
    for use in (guest.run, lambda: guest.counts, lambda: guest.console, lambda: guest.write(SPEC.ram_base, b"1")):
        with pytest.raises(ValueError, match="the machine is closed"):
            use()


@machines
@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_an_error_that_says_where(machine: str, name: str) -> None:
    need(machine)
    body, reason, register = TRAPS[name]
    error = stopped(machine, build(FAULTY % body))
    assert error.reason.startswith(reason)
    assert (error.function, error.line) == ("faulty", "firmware.c:4")
    assert str(error).startswith(f"RISC-V guest on {machine}: {reason}")
    assert f"pc {error.pc:#x} in faulty (firmware.c:4)" in str(error)
    assert set(error.registers) >= {"ra", "sp", "a0", "t6"}
    if register is not None:
        assert error.registers[register[0]] == register[1]
    if name == "illegal":
        assert error.instruction == 0xFFFF_FFFF


def stopped(machine: str, program: bytes, **limits: float) -> GuestError:
    with open_machine(machine, program, SPEC) as guest:
        with pytest.raises(GuestError) as caught:
            guest.run(**limits)  # type: ignore[arg-type]
        return caught.value


@machines
def test_a_jump_to_nowhere(machine: str) -> None:
    need(machine)
    error = stopped(machine, build("int main(void) { void (*f)(void) = (void (*)(void))64; f(); return 0; }"))
    assert "jump outside of memory, to 0x40" in error.reason
    assert error.pc == 64
    assert error.instruction is None


@machines
def test_a_stack_that_overflows_is_noticed(machine: str) -> None:
    need(machine)
    error = stopped(machine, build(RECURSES, stack=4 << 10))
    assert error.function == "deep"
    assert error.reason.startswith("store outside of memory")
    assert error.registers["sp"] < SPEC.ram_base + 512


@machines
def test_limits(machine: str) -> None:
    need(machine)
    error = stopped(machine, build(HANGS), instructions=100_000)
    assert error.reason == "ran longer than 100000 instructions"
    error = stopped(machine, build(HANGS), seconds=0.3)
    assert error.reason == "ran longer than 0.3 s"
    assert (error.function, error.line) == ("main", "firmware.c:3")


def test_the_limit_of_instructions_is_exact() -> None:
    with open_machine("interpreter", build("console"), SPEC) as guest:
        for _ in range(10):
            with pytest.raises(GuestError, match="ran longer than 101 instructions"):
                guest.run(instructions=101)
        assert guest.counts.instructions == 1010
        assert guest.run() == Stop("exit", 42)
        cut = guest.counts.instructions
    with open_machine("interpreter", build("console"), SPEC) as guest:
        guest.run()
        assert guest.counts.instructions == cut


@machines
@pytest.mark.parametrize("isa", ["rv64gc", "rv32imfc"])
def test_a_guest_may_handle_its_own_traps(machine: str, isa: str) -> None:
    need(machine)

    def run(name: str) -> tuple[Stop, int, list[int], bytes]:
        spec = MachineSpec(isa, ram_bytes=SPEC.ram_bytes)
        with open_machine(name, build("own_traps", isa=isa), spec, {0x1020_0000: Echo()}) as guest:
            stop = guest.run()
            found = [word(guest, variable) for variable in ("traps", "causes", "status")]
            values = guest.program.symbol("values")
            return stop, guest.counts.instructions, found, guest.read(values.address, values.size)

    found = run(machine)
    assert found[0] == Stop("exit", 0)
    assert found[2][:2] == [5, 0x23B57]
    assert found == run("interpreter")


BARE = """
__attribute__((naked, section(".start"))) void _start(void) {
  __asm__ volatile("li t0, 0x123\\n sw t0, 0(zero)\\n");
}
"""


@machines
def test_a_program_without_a_trap_handler(machine: str) -> None:
    need(machine)
    files = {"bare.c": BARE, "link.ld": runtime.link_script(SPEC)}
    program = toolchain.build(files, "rv64gc", runtime.LINK, extra=["-g"])
    error = stopped(machine, program)
    assert error.reason == "store outside of memory and devices, at 0x0"
    assert (error.function, error.registers["t0"]) == ("_start", 0x123)


CALLS = """
#include <stdint.h>
volatile uint32_t answer;
uint32_t code[64] __attribute__((aligned(64)));
int main(void) {
  for (;;) {
    __asm__ volatile("wfi\\n fence.i" ::: "memory");
    answer = ((uint32_t (*)(void))code)();
  }
}
"""


@machines
def test_code_that_the_host_writes_replaces_what_ran_before(machine: str) -> None:
    need(machine)
    with open_machine(machine, build(CALLS), SPEC) as guest:
        guest.run()
        code = guest.program.symbol("code").address
        for value in (5, 6, 7):
            returns = (value << 20 | 0x513).to_bytes(4, "little") + (0x8067).to_bytes(4, "little")  # li a0, value; ret
            guest.write(code, returns)
            guest.name_range(f"kernel{value}", code, code + 8)
            guest.reset_counts()
            assert guest.run() == Stop("idle")
            assert word(guest, "answer") == value
            functions = guest.counts.by_function
            assert functions is None or functions[f"kernel{value}"].instructions == 2


@machines
def test_memory_is_bounded(machine: str) -> None:
    need(machine)
    with open_machine(machine, build("waiting"), SPEC) as guest:
        for address, nbytes in ((SPEC.ram_base - 1, 4), (SPEC.ram_base + SPEC.ram_bytes - 2, 4), (0, 1)):
            with pytest.raises(ValueError, match="RAM"):
                guest.read(address, nbytes)
            with pytest.raises(ValueError, match="RAM"):
                guest.write(address, bytes(nbytes))


def test_an_emulator_that_is_not_here_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    program = build("console")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(RuntimeError, match=r"machine 'qemu' cannot run here: .*apt-get install qemu-system-misc"):
        open_machine("qemu", program, SPEC)


# ---- QEMU is another process ----
def qemu_machine(*arguments: object) -> Machine:
    need("qemu")
    return machine_class("qemu")(*arguments)  # type: ignore[arg-type]


def test_qemu_that_dies_is_an_error() -> None:
    with qemu_machine(build("waiting"), SPEC) as guest:
        guest.run()
        os.kill(guest._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="QEMU ended by itself"):
            guest.run()


def test_qemu_leaves_nothing_behind() -> None:
    guest = qemu_machine(build("waiting"), SPEC)
    folder: Path = guest._folder  # type: ignore[attr-defined]
    process: subprocess.Popen[bytes] = guest._process  # type: ignore[attr-defined]
    assert folder.is_dir()
    guest.run()
    guest.close()
    assert process.poll() is not None
    assert not folder.exists()
    dropped = qemu_machine(build("waiting"), SPEC)
    process = dropped._process  # type: ignore[attr-defined]
    del dropped
    assert process.poll() is not None, "also when it is forgotten"


def test_what_qemu_cannot_do_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="memory at 0x80000000, not at 0x90000000"):
        qemu_machine(build_at(0x9000_0000), MachineSpec(ram_base=0x9000_0000, ram_bytes=1 << 20))


def build_at(base: int) -> bytes:
    spec = MachineSpec(ram_base=base, ram_bytes=1 << 20)
    return toolchain.build({"main.c": "int main(void) { return 7; }", **runtime.sources(spec)}, "rv64gc", runtime.LINK)


def test_memory_may_be_elsewhere() -> None:
    with open_machine(
        "interpreter", build_at(0x2000_0000), MachineSpec(ram_base=0x2000_0000, ram_bytes=1 << 20)
    ) as guest:
        assert guest.run() == Stop("exit", 7)
