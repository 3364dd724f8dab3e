"""DPU programs from Python: every way in and out, and every limit as an error that names it."""

import numpy as np
import pytest

from bringup.upmem import DpuCompileError, DpuError, DpuFault, DpuSet, compile_program

SCALE = """
#include <alloc.h>
#include <barrier.h>
#include <defs.h>
#include <mram.h>
#include <stdio.h>
__host uint32_t count;
__host int32_t factor;
__mram_noinit int32_t input[1 << 20];
__mram_noinit int32_t output[1 << 20];
BARRIER_INIT(everybody, NR_TASKLETS)
int main(void) {
  if (me() == 0) mem_reset();
  barrier_wait(&everybody);
  int32_t *block = mem_alloc(512);
  for (uint32_t i = me() * 128; i < count; i += NR_TASKLETS * 128) {
    mram_read(&input[i], block, 512);
    for (int k = 0; k < 128; k++) block[k] = block[k] * factor + input[0];
    mram_write(block, &output[i], 512);
  }
  if (me() == 0) printf("%d %s %5.2f %lld %lx %c%%\\n", factor, "rows", 1.5, -5LL, -1L, 'x');
  return 0;
}
"""


@pytest.mark.parametrize("tasklets", [1, 3, 16, 24])
@pytest.mark.parametrize("dpus", [1, 5, 70])
def test_a_program_computes_what_it_says(dpus: int, tasklets: int) -> None:
    rng = np.random.default_rng(dpus)
    values = rng.integers(-1000, 1000, (dpus, 1280)).astype(np.int32)
    with DpuSet(dpus) as machine:
        machine.load(SCALE, tasklets=tasklets)
        machine.write("input", values)
        machine.launch(count=1280, factor=-7)
        assert (machine.read("output", np.int32, 1280) == values * -7 + values[:, :1]).all()
        assert machine.log() == ["-7 rows  1.50 -5 ffffffff x%\n"] * dpus
        assert machine.log() == [""] * dpus
        counters = machine.counters
        assert (counters["dma_reads"] == 10).all()
        assert (counters["dma_write_bytes"] == 5120).all()
        assert (counters["barriers"] == tasklets).all()


def test_sizes_are_those_of_the_chip() -> None:
    program = """
    #include <defs.h>
    struct pair { char a; void *p; long l; uint64_t q; };
    __host uint32_t sizes[6];
    int main(void) {
      sizes[0] = sizeof(int), sizes[1] = sizeof(long), sizes[2] = sizeof(void *), sizes[3] = sizeof(size_t);
      sizes[4] = sizeof(struct pair), sizes[5] = sizeof(__mram_ptr int *);
      return 0;
    }"""
    with DpuSet(1) as machine:
        machine.load(program, tasklets=1)
        machine.launch()
        assert machine.read("sizes", np.uint32, 6)[0].tolist() == [4, 4, 4, 4, 24, 4]


def test_wram_belongs_to_each_dpu_and_stays_between_launches() -> None:
    program = """
    #include <defs.h>
    __host int32_t total = 5;
    __host int32_t step;
    static int32_t private = 100;
    int main(void) { total += step; private += 1; total += private; return 0; }"""
    with DpuSet(7) as machine:
        machine.load(program, tasklets=1)
        machine.write("step", np.arange(7, dtype=np.int32).reshape(7, 1))
        expected = np.full(7, 5)
        for launch in range(3):
            machine.launch()
            expected = expected + np.arange(7) + 101 + launch
        assert machine.read("total", np.int32, 1).ravel().tolist() == expected.tolist()
        machine.load(program, tasklets=1)  # as new
        assert (machine.read("total", np.int32, 1) == 5).all()


def test_parts_of_a_set_and_plain_offsets() -> None:
    with DpuSet(6) as machine:
        rows = np.arange(24, dtype=np.int64).reshape(3, 8)
        machine.write(4096, rows, first=2)
        machine.broadcast(8, np.full(1, 9, np.int64))
        everything = machine.read(4096, np.int64, 8)
        assert (everything[2:5] == rows).all()
        assert not everything[[0, 1, 5]].any()
        assert (machine.read(0, np.int64, 2) == [0, 9]).all()
        assert (machine.read(4096, np.int64, 2, offset=16, first=3, count=1) == rows[1, 2:4]).all()
        assert (machine.mram[4, 4096 : 4096 + 64].view(np.int64) == rows[2]).all()
        padded = np.zeros((6, 4), np.int64)
        machine.transfer(4096, padded.ctypes.data, 16, to=False, stride=32)
        assert (padded[:, :2] == everything[:, :2]).all()
        assert not padded[:, 2:].any()


def test_initialised_mram_is_loaded() -> None:
    program = """
    #include <mram.h>
    __mram int64_t table[4] = {1, 2, 3, 4};
    __mram_noinit int64_t room[4];
    int main(void) { for (int i = 0; i < 4; i++) room[i] = 10 * table[3 - i]; return 0; }"""
    with DpuSet(2) as machine:
        machine.load(program, tasklets=1)
        machine.launch()
        assert (machine.read("room", np.int64, 4) == [40, 30, 20, 10]).all()
        assert machine.heap == 64


# ---- limits ----
def fault_of(body: str, tasklets: int = 1, declarations: str = "", seconds: float = 60.0) -> str:
    headers = "alloc barrier defs mram mutex handshake sem stdio stdlib assert".split()
    text = "".join(f"#include <{name}.h>\n" for name in headers) + declarations
    text += "__mram_noinit uint64_t big[64];\n__dma_aligned char block[64];\n"
    text += f"int main(void) {{\n{body}\nreturn 0; }}"
    with DpuSet(3, seconds=seconds) as machine:
        machine.load(text, tasklets=tasklets)
        with pytest.raises(DpuFault) as error:
            machine.launch()
        machine.load("int main(void) { return 0; }")  # the set still works
        machine.launch()
    return str(error.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("mram_read(big, block, 12);", "mram_read of 12 bytes: a DMA moves 8 to 2048 bytes"),
        ("mram_read(big, block, 0);", "mram_read of 0 bytes"),
        ("mram_read(big, block, 2056);", "mram_read of 2056 bytes"),
        ("mram_write(block, (__mram_ptr char *)big + 4, 8);", "mram_write at MRAM address 0x8000004: a DMA needs"),
        ("mram_read(big, block + 4, 8);", "a DMA needs a multiple of 8 (__dma_aligned)"),
        ("mram_read((__mram_ptr void *)(64 << 20), block, 8);", "MRAM has 67108864 bytes"),
        ("mram_read(big, (void *)0x7000, 8);", "which is not WRAM"),
        ("for (;;) mem_alloc(4096);", "mem_alloc: WRAM is used up"),
        ("volatile int zero = 0, one = 7 / zero;", "division by zero"),
        ("*(volatile int *)16 = 3;", "an access outside of WRAM and MRAM at 0x10"),
        ("((void (*)(void))24)();", "code that cannot be reached"),
        ("assert(block[0] == 1);", "an assertion failed"),
        ("abort();", "abort()"),
        ("halt();", "halt()"),
        ('printf("%s", (char *)3);', "which is not WRAM"),
    ],
)
def test_a_fault_names_tasklet_function_and_line(body: str, words: str) -> None:
    if "24)" in body:
        words = "an access outside of WRAM and MRAM"
    message = fault_of(body)
    assert words in message
    assert message.startswith("DPU 0, tasklet 0: ")
    assert "3 DPUs in fault" in message
    if not body.startswith(("for", "((", "assert")):
        assert "kernel.c:14" in message
        assert " in main" in message


def test_a_stack_that_overflows_is_a_fault() -> None:
    deep = """
    __attribute__((noinline)) int deep(int n) {
      volatile int a[64];
      a[0] = n;
      return n ? deep(n - 1) + a[0] : 0;
    }
    """
    assert "its stack overflowed" in fault_of("block[0] = deep(100000);", declarations=deep)


def test_a_deadlock_says_who_waits_for_what() -> None:
    message = fault_of(
        "if (me() == 2) barrier_wait(&two);\nif (me() == 1) mutex_lock(m), mutex_lock(m);",
        tasklets=4,
        declarations="BARRIER_INIT(two, 2)\nMUTEX_INIT(m)\n",
    )
    assert "deadlock: of 2 tasklets that have not ended, tasklet 1 for a mutex, 2 for a barrier" in message


def test_a_loop_without_end_is_stopped() -> None:
    message = fault_of("volatile int go = 1; while (go) {}", seconds=0.3)
    assert "ran longer than 0.3 s" in message


def test_reads_of_mram_that_nobody_wrote_are_found_when_asked() -> None:
    program = """
    #include <defs.h>
    #include <mram.h>
    __mram int64_t table[2] = {1, 2};
    __mram_noinit int64_t room[64];
    __host uint32_t length;
    __dma_aligned int64_t block[64];
    int main(void) {
      mram_read(table, block, 16);
      mram_write(block, &room[32], 16);
      mram_read(&room[32], block, 16);
      mram_read(room, block, length);
      return 0;
    }"""
    with DpuSet(3, checks=True) as machine:
        machine.load(program, tasklets=1)
        machine.write("room", np.zeros((3, 16), np.int64))
        machine.launch(length=128)
        with pytest.raises(
            DpuFault, match="mram_read of 136 bytes at MRAM offset 0x10: nobody has written offset 0x90"
        ):
            machine.launch(length=136)
    with DpuSet(3) as machine:
        machine.load(program, tasklets=1)
        machine.launch(length=512)


@pytest.mark.parametrize("dpus", [0, -1, 3000])
def test_a_machine_has_2556_dpus(dpus: int) -> None:
    with pytest.raises(DpuError, match="a machine has 1 to 2,556"):
        DpuSet(dpus)


def test_all_dpus_can_be_taken_once() -> None:
    with DpuSet(2556) as machine:
        with pytest.raises(DpuError, match="a machine has 2556, and 2556 of them are taken"):
            DpuSet(1)
        machine.load(SCALE)
        machine.launch(count=128, factor=2)
        assert len(machine.counters["dma_reads"]) == 2556
    DpuSet(1).close()


def test_25_tasklets_are_refused() -> None:
    with pytest.raises(DpuCompileError, match="25 tasklets: a DPU runs 1 to 24"):
        compile_program("int main(void) { return 0; }", tasklets=25)
    with pytest.raises(DpuCompileError, match="25 tasklets"):
        compile_program("int main(void) { return 0; }", flags=["-DNR_TASKLETS=25"])


def test_wram_that_overflows_is_refused() -> None:
    text = "char big[60000]; int main(void) { big[1] = 1; return 0; }"
    with pytest.raises(DpuCompileError, match=r"bytes of WRAM, a DPU has 65,536: .* 16 stacks of 16,384"):
        compile_program(text)
    assert compile_program(text, stack_bytes=128)
    with pytest.raises(DpuCompileError, match="MRAM variables take 83,886,080 bytes"):
        compile_program("#include <mram.h>\n__mram_noinit char big[80 << 20]; int main(void) { return 0; }")


def test_what_the_compiler_says_is_shown() -> None:
    with pytest.raises(DpuCompileError, match=r"kernel\.c:1:\d+: error"):
        compile_program("int main(void) { return nothing; }")
    with pytest.raises(DpuCompileError, match="address space"):
        compile_program("#include <mram.h>\n__mram_noinit int a[2]; int main(void) { int *p = a; return *p; }")


def test_wrong_calls_are_errors() -> None:
    with DpuSet(2) as machine:
        with pytest.raises(DpuError, match="call load"):
            machine.read("output", np.int32, 1)
        with pytest.raises(DpuError, match="DPU 0 has no program"):
            machine.launch()
        machine.load(SCALE)
        with pytest.raises(DpuError, match="no symbol 'nothing'"):
            machine.launch(nothing=1)
        with pytest.raises(OverflowError, match="the 4 bytes of 'count'"):
            machine.launch(count=1 << 40)
        with pytest.raises(TypeError, match="give its value as bytes"):
            machine.launch(input=1)
        with pytest.raises(ValueError, match="its first dimension counts the DPUs"):
            machine.write("input", np.zeros((3, 2)))
        with pytest.raises(DpuError, match=r"'input', which has 4,194,304 bytes"):
            machine.write("input", np.zeros((2, 1 << 20)))
        with pytest.raises(DpuError, match="multiples of 8 bytes"):
            machine.write("input", np.zeros((2, 3), np.int32))
        with pytest.raises(DpuError, match="not built for this simulator"):
            machine.load(b"\x7fELF and more")
    with pytest.raises(DpuError, match="was closed"):
        machine.launch()
    machine.close()


RACE = """
#include <barrier.h>
#include <defs.h>
#include <handshake.h>
#include <mram.h>
#include <mram_unaligned.h>
#include <mutex.h>
#include <sem.h>
__mram_noinit int64_t shared[64];
__mram_noinit int counter;
BARRIER_INIT(everybody, NR_TASKLETS)
MUTEX_INIT(guard)
SEMAPHORE_INIT(ready, 0)
__host uint32_t how;
static void add(int *value, int amount) { *value += amount; }
int main(void) {
  __dma_aligned int64_t word[2] = {me(), me()};
  switch (how) {
    case 0: mram_write(word, &shared[me()], 8); break;
    case 1: mram_write(word, &shared[me() / 2], 8); break;
    case 2: mram_write(word, &shared[me()], 8); mram_read(&shared[me() ^ 1], word, 8); break;
    case 3: mram_read(&shared[me() ^ 1], word, 8); mram_write(word, &shared[me()], 8); break;
    case 4: mutex_lock(guard); mram_write(word, &shared[0], 8); mutex_unlock(guard); break;
    case 5: mram_write(word, &shared[me()], 8); barrier_wait(&everybody); mram_read(&shared[me() ^ 1], word, 8); break;
    case 6:
      if (me() == 0) mram_write(word, shared, 8), handshake_notify();
      if (me() == 1) handshake_wait_for(0), mram_read(shared, word, 8);
      break;
    case 7:
      if (me() == 1) sem_take(&ready), mram_read(shared, word, 8);
      if (me() == 0) mram_write(word, shared, 8), sem_give(&ready);
      break;
    case 8: mram_update_int_atomic(&counter, add, 1); break;
    case 9: barrier_wait(&everybody); if (me() > 1) mram_write(word, shared, 16); break;
  }
  return 0;
}"""


def test_races_of_tasklets_are_found_when_asked_for() -> None:
    with DpuSet(2, checks=True) as machine:
        machine.load(RACE, tasklets=4)
        machine.broadcast("shared", np.zeros(64, np.int64))
        for how in (0, 4, 5, 6, 7, 8) * 2:
            machine.launch(how=how)
        for how, name, bytes_moved in (
            (1, "mram_write", 8),
            (2, "mram_write", 8),
            (3, "mram_read", 8),
            (9, "mram_write", 16),
        ):
            with pytest.raises(
                DpuFault, match=rf"{name} of {bytes_moved} bytes at MRAM offset .*: a race with tasklet"
            ):
                machine.launch(how=how)
            machine.load(RACE, tasklets=4)
    with DpuSet(2) as machine:
        machine.load(RACE, tasklets=4)
        machine.launch(how=1)
