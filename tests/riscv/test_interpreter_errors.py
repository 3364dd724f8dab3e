"""Guests that go wrong: a Python error with the place, the source line and the registers, within the limits."""

import signal
import threading
import time
from pathlib import Path

import pytest

from bringup.riscv import GuestError, Machine, MachineSpec, open_machine, runtime, toolchain
from bringup.riscv.device import Device
from tests.riscv.firmware_programs import build

SPEC = MachineSpec("rv64gcv", 128, ram_bytes=1 << 20)
BARE = """
  .section .start, "ax"
  .globl _start
_start:
  la sp, __stack_top
  call main
"""


def bare(text: str, isa: str = "rv64gcv") -> bytes:
    """A program without a trap handler: the machine itself must say what happened."""
    spec = MachineSpec(isa, 128 if isa.endswith("v") else 0, ram_bytes=1 << 20)
    files = {"model.c": text, "start.S": BARE, "link.ld": runtime.link_script(spec)}
    return toolchain.build(files, isa, runtime.LINK, extra=["-g", "-O1"])


def failure(program: bytes, spec: MachineSpec = SPEC, **limits: float) -> GuestError:
    with open_machine(None, program, spec) as machine, pytest.raises(GuestError) as caught:
        machine.run(**limits)
    return caught.value


WILD_STORE = """
int main(void);
__attribute__((noinline)) void wild(long *at, long value) {
  *at = value; /* line 4 */
}
int main(void) { wild((long *)0x40000000, 7); return 0; }
"""


@pytest.mark.parametrize("make", [bare, lambda text: build(text, isa="rv64gcv")], ids=["no handler", "crt0's handler"])
def test_wild_store(make):
    """With crt0.S the guest itself reports the trap; the error is the same."""
    error = failure(make(WILD_STORE))
    assert error.reason == "store outside of memory and devices, at 0x40000000"
    assert error.function == "wild"
    assert error.line in ("model.c:4", "firmware.c:4")
    assert error.registers["a0"] == 0x4000_0000
    assert error.registers["a1"] == 7
    assert error.instruction is not None
    text = str(error)
    assert all(part in text for part in (f"{error.pc:#x}", "in wild", ":4", "a1 0x0000000000000007", "interpreter"))


def test_registers_of_32_bits():
    """They have no upper half, whatever the emulator keeps there."""
    error = failure(bare(WILD_STORE.replace("7)", "-7)"), "rv32imc"), MachineSpec("rv32imc", ram_bytes=1 << 20))
    assert error.registers["a1"] == 0xFFFF_FFF9
    assert error.registers["sp"] < 1 << 32
    assert "a1 0xfffffff9" in str(error)


def test_illegal_instruction():
    error = failure(bare('int main(void) { __asm__ volatile(".word 0xffffffff"); return 0; }'))
    assert error.reason == "illegal instruction"
    assert error.instruction == 0xFFFF_FFFF
    assert error.function == "main"
    assert error.line == "model.c:1"


def test_vector_instruction_without_vectors():
    program = bare('int main(void) { __asm__ volatile("vsetvli t0, t0, e8, m1, ta, ma"); return 0; }')
    with_vectors_off = failure(program)
    assert "vectors are off (mstatus.VS)" in with_vectors_off.reason
    without = failure(program, MachineSpec("rv64gc", ram_bytes=1 << 20))
    assert "a vector instruction, and the machine is rv64gc" in without.reason


def test_float_instruction_while_floats_are_off():
    error = failure(bare('int main(void) { __asm__ volatile("fadd.s f0, f0, f0"); return 0; }'))
    assert "floats are off (mstatus.FS)" in error.reason


def test_jump_to_zero():
    error = failure(bare("void (*volatile nothing)(void); int main(void) { nothing(); return 1; }"))
    assert error.reason.startswith("jump outside of memory, to 0x0; ra is in main (model.c:1)")
    assert error.pc == 0
    assert error.instruction is None


def test_stack_overflow_ends_where_memory_ends():
    error = failure(
        bare(
            """
            __attribute__((noinline)) int deeper(volatile char *above) {
              volatile char here[512];
              here[0] = above[0];
              return deeper(here) + here[0];
            }
            int main(void) { volatile char first[8] = {1}; return deeper(first); }
            """
        )
    )
    assert "outside of memory" in error.reason
    assert error.function == "deeper"
    assert error.registers["sp"] < SPEC.ram_base


@pytest.mark.parametrize(("text", "words"), [("ecall", "ecall"), ("ebreak", "ebreak")])
def test_calls_without_a_handler(text, words):
    assert words in failure(bare(f'int main(void) {{ __asm__ volatile("{text}"); return 0; }}')).reason


def test_handler_that_traps_forever_ends_by_the_limit():
    """The handler's first instruction traps, so that nothing retires any more."""
    text = """
    int main(void) {
      __asm__ volatile("la t0, 1f; csrw mtvec, t0; .word 0; .balign 4; 1: .word 0");
      return 0;
    }
    """
    assert failure(bare(text), instructions=100_000, seconds=1).reason == "ran longer than 1 s"


def test_hang():
    program = bare('int main(void) { for (;;) __asm__ volatile(""); }')
    error = failure(program, instructions=12_345)
    assert error.reason == "ran longer than 12345 instructions"
    assert error.function == "main"
    assert failure(program, seconds=0.2).reason == "ran longer than 0.2 s"


def test_limit_counts_exactly():
    with open_machine(None, bare('int main(void) { for (;;) __asm__ volatile(""); }'), SPEC) as machine:
        with pytest.raises(GuestError):
            machine.run(instructions=1001)
        assert machine.counts.instructions == 1001
        with pytest.raises(GuestError):
            machine.run(instructions=99)
        assert machine.counts.instructions == 1100


@pytest.mark.usefixtures("keyboard")
def test_interrupt_from_the_keyboard():
    """Ctrl-C while the guest runs."""
    with open_machine(None, bare('int main(void) { for (;;) __asm__ volatile(""); }'), SPEC) as machine:
        timer = threading.Timer(0.3, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT))
        timer.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            machine.run(seconds=60)
        assert time.monotonic() - started < 30
        timer.join()
        assert machine.counts.instructions > 0


def test_device_that_raises():
    class Broken(Device):
        def read(self, offset: int, size: int) -> int:
            raise KeyError(f"no register {offset}")

    text = "int main(void) { return *(volatile int *)0x10200008; }"
    with open_machine(None, bare(text), SPEC, {0x1020_0000: Broken()}) as machine:
        with pytest.raises(GuestError, match="device at 0x10200008: 'no register 8'") as caught:
            machine.run()
        assert isinstance(caught.value.__cause__, KeyError)
        assert caught.value.function == "main"


def test_memory_outside_of_ram_is_refused():
    with open_machine(None, bare("int main(void) { return 0; }"), SPEC) as machine:
        for address, size in ((0, 4), (SPEC.ram_base + SPEC.ram_bytes - 2, 4), (SPEC.ram_base - 1, 2)):
            with pytest.raises(ValueError, match="not within RAM"):
                machine.read(address, size)
        with pytest.raises(ValueError, match="not within RAM"):
            machine.write(0x1000, b"abc")


def test_programs_that_do_not_fit():
    program = build(WILD_STORE)
    with pytest.raises(ValueError, match="for 64 bits, and the machine is rv32imc"):
        open_machine(None, program, MachineSpec("rv32imc"))
    with pytest.raises(ValueError, match="outside of RAM"):
        open_machine(None, program, MachineSpec(ram_bytes=4096))
    with pytest.raises(ValueError, match="not an ELF file"):
        open_machine(None, b"MZ and more")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rv64gcv", 0), "vlen is 0, and must be 128"),
        (("rv64gc", 128), "has no v"),
        (("rv64gcv", 192), "vlen is 192"),
        (("rv64gc_zfoo",), "zfoo not known"),
        (("arm64",), "reads unlike"),
        (("rv64gc", 0, 0x8000_0001), "multiples of 4096"),
        (("rv32imc", 0, 0x8000_0000, 1 << 32), "ends beyond the address space"),
    ],
)
def test_machines_that_cannot_be(arguments, words):
    with pytest.raises(ValueError, match=words):
        MachineSpec(*arguments)


def test_unknown_machine():
    with pytest.raises(ValueError, match="'spike' is none of interpreter, qemu"):
        open_machine("spike", b"")


def test_library_that_is_not_built(monkeypatch):
    from bringup.riscv import interpreter

    monkeypatch.setattr(interpreter, "_LIBRARY", Path("nowhere/_iss.so"))
    with pytest.raises(RuntimeError, match=r"machine 'interpreter' cannot run here: _iss\.so is not built"):
        open_machine(None, b"")
    assert issubclass(interpreter.Interpreter, Machine)
