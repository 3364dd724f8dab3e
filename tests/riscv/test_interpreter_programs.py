"""C programs on the interpreter: results, counts, interrupts, code that changes, several machines at once."""

import shutil
import struct
import threading

import numpy as np
import pytest

from bringup.riscv import MachineSpec, Stop, open_machine, runtime, toolchain
from bringup.riscv.device import Device
from bringup.riscv.interpreter import Interpreter
from tests.riscv.firmware_programs import build

COMPILERS = ["zig", *(["gcc"] if shutil.which("riscv64-unknown-elf-gcc") else [])]

ARITHMETIC = """
#define N 64
typedef unsigned long unsigned_long;
long a[N] = {1}, b[N] = {1}, results[N][11];
__attribute__((noinline)) static long quotient(long x, long y) { return x / y; }
__attribute__((noinline)) static long rest(long x, long y) { return x % y; }
int main(void) {
  for (int i = 0; i < N; i++) {
    long x = a[i], y = b[i], bits = 8 * sizeof(long) - 1;
    results[i][0] = x + y;
    results[i][1] = x - y;
    results[i][2] = x * y;
    results[i][3] = quotient(x, y);
    results[i][4] = rest(x, y);
    results[i][5] = (long)((unsigned_long)x << (y & bits));
    results[i][6] = (long)((unsigned_long)x >> (y & bits));
    results[i][7] = x >> (y & bits);
    results[i][8] = x < y;
    results[i][9] = (unsigned_long)x < (unsigned_long)y;
    results[i][10] = (int)x + (short)y;
  }
  return 0;
}
"""


def operands(bits: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    values = [
        int(value) >> int(shift) for value, shift in zip(rng.integers(-(1 << 62), 1 << 62, 64), rng.integers(0, 62, 64))
    ]
    low = -(1 << bits - 1)
    return [0, 1, -1, low, ~low, 1 << 30, *(((value - low) % (1 << bits)) + low for value in values)][:64]


def expected(x: int, y: int, bits: int) -> list[int]:
    mask, low = (1 << bits) - 1, -(1 << bits - 1)
    shift = y & bits - 1
    if y:
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        rest = x - quotient * y
    else:
        quotient, rest = -1, x
    narrow = ((x + (1 << 31)) % (1 << 32)) - (1 << 31) + ((y + (1 << 15)) % (1 << 16)) - (1 << 15)
    narrow = ((narrow + (1 << 31)) % (1 << 32)) - (1 << 31)
    values = [x + y, x - y, x * y, quotient, rest, x << shift, (x & mask) >> shift, x >> shift, x < y]
    values += [(x & mask) < (y & mask), narrow]
    return [((int(value) - low) & mask) + low for value in values]


@pytest.mark.parametrize("isa", ["rv64gc", "rv32imc", "rv32imfc"])
@pytest.mark.parametrize("family", COMPILERS)
def test_integer_arithmetic(isa, family):
    spec = MachineSpec(isa, ram_bytes=1 << 20)
    a, b = operands(spec.xlen, 1), operands(spec.xlen, 2)[::-1]
    word = "<64q" if spec.xlen == 64 else "<64i"
    with open_machine(None, build(ARITHMETIC, family=family, isa=isa), spec) as machine:
        for name, values in (("a", a), ("b", b)):
            machine.write(machine.program.symbol(name).address, struct.pack(word, *values))
        assert machine.run() == Stop("exit", 0)
        found = machine.read(machine.program.symbol("results").address, 64 * 11 * spec.xlen // 8)
    results = np.frombuffer(found, np.int64 if spec.xlen == 64 else np.int32).reshape(64, 11)
    for x, y, row in zip(a, b, results.tolist()):
        assert row == expected(x, y, spec.xlen), (x, y)


FLOATS = """
#define N 256
float x[N] = {1}, y[N] = {1}, z[N];
int rounded[N];
int main(void) {
  for (int i = 0; i < N; i++) z[i] = __builtin_fmaf(x[i], y[i], x[i] / y[i]) - __builtin_sqrtf(y[i]);
  for (int i = 0; i < N; i++) rounded[i] = (int)z[i];
  return 0;
}
"""


@pytest.mark.parametrize(("isa", "vlen"), [("rv64gc", 0), ("rv32imfc", 0), ("rv64gcv", 128), ("rv64gcv", 1024)])
def test_floats_equal_numpy(isa, vlen):
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal(256, np.float32), rng.uniform(0.1, 9, 256).astype(np.float32)
    program = build(FLOATS, isa=isa)
    with open_machine(None, program, MachineSpec(isa, vlen, ram_bytes=1 << 20)) as machine:
        for name, values in (("x", x), ("y", y)):
            machine.write(machine.program.symbol(name).address, values.tobytes())
        assert machine.run().code == 0
        z = np.frombuffer(machine.read(machine.program.symbol("z").address, 1024), np.float32)
        rounded = np.frombuffer(machine.read(machine.program.symbol("rounded").address, 1024), np.int32)
        assert bool(machine.counts.vector) == bool(vlen)
    # float64 holds the product exactly, and its sum with one more rounding, far below half a float32 step here
    fused = (x.astype(np.float64) * y + (x / y).astype(np.float64)).astype(np.float32)
    assert np.array_equal(z, fused - np.sqrt(y))
    assert np.array_equal(rounded, z.astype(np.int32))


COUNTED = """
volatile unsigned cells[64];
unsigned long retired;
static unsigned long instret(void) { unsigned long n; __asm__ volatile("csrr %0, instret" : "=r"(n)); return n; }
__attribute__((noinline)) void store_many(void) { for (int i = 0; i < 64; i++) cells[i] = i; }
__attribute__((noinline)) unsigned load_many(void) {
  unsigned sum = 0;
  for (int i = 0; i < 64; i++) sum += cells[i];
  return sum;
}
int main(void) {
  unsigned long before = instret();
  store_many();
  for (int i = 0; i < 3; i++) load_many();
  retired = instret() - before;
  return 0;
}
"""


def test_counts_by_function():
    with open_machine(None, build(COUNTED), MachineSpec(ram_bytes=1 << 20)) as machine:
        machine.run()
        counts = machine.counts
        assert counts.by_function is not None
        stores, loads = counts.by_function["store_many"], counts.by_function["load_many"]
        assert counts.stores is not None
        assert counts.loads is not None
        # a compiler that keeps frame pointers adds two of each per call
        assert stores.stores in (64, 64 + 2)
        assert loads.loads in (3 * 64, 3 * (64 + 2))
        assert counts.loads >= (loads.loads or 0)
        assert sum(each.instructions for each in counts.by_function.values()) == counts.instructions
        assert (counts.vector, counts.lane_beats) == (0, 0)
        machine.reset_counts()
        assert machine.counts.instructions == 0
        assert machine.counts.by_function == {}


@pytest.mark.parametrize("family", COMPILERS)
def test_retired_instructions_equal_qemu(family, qemu_memory):
    spec = MachineSpec(ram_bytes=64 << 20)
    program = build(COUNTED, family=family)
    with open_machine(None, program, spec) as machine:
        machine.run()
        at = machine.program.symbol("retired").address
        ours = machine.read(at, 8)
    ram = qemu_memory(program, spec, "-icount", "shift=0")
    assert ours == ram[at - spec.ram_base :][:8]
    assert int.from_bytes(ours, "little") > 500


BEATS = """
  .globl main
  .type main, @function
main:
  li a1, 20
  vsetvli a2, a1, e32, m8, ta, ma
  vle32.v v8, (sp)
  vadd.vv v8, v8, v8
  vsetvli a2, a1, e16, m4, ta, ma
  vwadd.vv v8, v16, v20
  vse16.v v16, (sp)
  vl2re8.v v4, (sp)
  vsetvli a2, a1, e16, m2, ta, ma
  vlseg3e16.v v4, (sp)
  li a0, 0
  ret
  .size main, . - main
"""


def test_lane_beats():
    spec = MachineSpec("rv64gcv", 128, ram_bytes=1 << 20)
    program = toolchain.build({"main.S": BEATS, **runtime.sources(spec)}, "rv64gcv", runtime.LINK)
    with Interpreter(program, spec) as machine:
        machine.run()
        assert machine.csr(0xC20) == 16, "vl"
        assert machine.vector_registers().shape == (32, 16)
        assert machine.counts.by_function is not None
        main = machine.counts.by_function["main"]
    assert main.vector == 9
    assert (main.loads, main.stores) == (3, 1)
    # 20 elements of 32 bits in registers of 128: 5, also where they come from 16 bits; 20 of 16 bits: 3; two registers;
    # three fields of the 16 elements of 16 bits that fit into two registers: 2 each
    assert main.lane_beats == 5 + 5 + 5 + 3 + 2 + 3 * 2


def test_code_that_the_host_writes():
    """A function is replaced between two runs; its counts go to the names it had."""
    text = """
    int answer;
    __attribute__((aligned(4096), section(".data"))) unsigned code[1024] = {0x00008067};
    int main(void) {
      for (;;) {
        answer = ((int (*)(void))code)();
        __asm__ volatile("wfi");
      }
    }
    """
    li = {1: 0x0010_0513, 2: 0x0020_0513}  # li a0, 1; li a0, 2
    with open_machine(None, build(text), MachineSpec(ram_bytes=1 << 20)) as machine:
        code, answer = (machine.program.symbol(name).address for name in ("code", "answer"))
        for number in (1, 2):
            machine.write(code, struct.pack("<2I", li[number], 0x0000_8067))
            machine.name_range(f"kernel{number}", code, code + 8)
            assert machine.run() == Stop("idle", 0)
            assert int.from_bytes(machine.read(answer, 4), "little") == number
        counts = machine.counts.by_function
        assert counts is not None
        assert (counts["kernel1"].instructions, counts["kernel2"].instructions) == (2, 2)


def test_interrupt_at_an_exact_instruction():
    class Timer(Device):
        def write(self, offset: int, size: int, value: int) -> None:
            if offset == 0:
                self.after(value, self.irq)
            else:
                self.irq(False)

    text = """
    volatile unsigned *timer = (volatile unsigned *)0x10200000;
    volatile unsigned long ticks, turns;
    __attribute__((interrupt("machine"))) void handler(void) { ticks++; timer[1] = 0; }
    int main(void) {
      __asm__ volatile("csrw mtvec, %0; csrs mie, %1; csrsi mstatus, 8" :: "r"(handler), "r"(1l << 11));
      timer[0] = 1000;
      while (!ticks) turns++;
      timer[0] = 50000;
      __asm__ volatile("wfi");
      return (int)ticks;
    }
    """
    found = []
    for _ in range(2):
        with open_machine(None, build(text), MachineSpec(ram_bytes=1 << 20), {0x1020_0000: Timer()}) as machine:
            assert machine.run() == Stop("exit", 2)
            turns = int.from_bytes(machine.read(machine.program.symbol("turns").address, 8), "little")
            found.append((turns, machine.counts.instructions))
    assert found[0] == found[1]
    assert 100 < found[0][0] < 334  # at least three instructions a turn
    assert found[0][1] < 2000, "wfi retires nothing while it waits"


def test_machines_in_threads():
    program = build(COUNTED)
    results = []

    def work() -> None:
        with open_machine(None, program, MachineSpec(ram_bytes=1 << 20)) as machine:
            machine.run()
            results.append(machine.counts.instructions)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert len(set(results)) == 1


def test_memory_outlives_the_machine():
    machine = open_machine(None, build(COUNTED), MachineSpec(ram_bytes=1 << 20))
    machine.run()
    view = machine.bus.memory.array(machine.program.symbol("cells").address, 64, np.uint32)
    machine.close()
    assert np.array_equal(view, np.arange(64))
    with pytest.raises(ValueError, match="closed"):
        machine.run()
    with pytest.raises(ValueError, match="closed"):
        _ = machine.counts


def test_run_after_the_end_is_refused():
    with open_machine(None, build(COUNTED), MachineSpec(ram_bytes=1 << 20)) as machine:
        machine.run()
        with pytest.raises(RuntimeError, match="has ended with exit code 0"):
            machine.run()
