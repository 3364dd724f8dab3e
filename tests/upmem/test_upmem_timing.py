"""The timing tier: instructions counted on RV32, and the law that makes an estimate of them."""

from pathlib import Path

import numpy as np
import pytest

from bringup.upmem import DpuCompileError, DpuError, DpuSet, DpuToolchainMissing, compile_program
from bringup.upmem.rv32 import calibration, compile_rv32, routine_names
from bringup.upmem.timing import transfer_seconds
from bringup.upmem.toolchain import compiler

try:
    compiler()
    compile_program("int main(void) { return 0; }", timed=True)
except DpuToolchainMissing as reason:
    pytest.skip(str(reason), allow_module_level=True)

SOURCES = Path(__file__).resolve().parents[2] / "benchmarks" / "prim"


def program(name: str, tasklets: int = 16, **macros: object) -> bytes:
    text = "".join(f"#define {key} {value}\n" for key, value in macros.items()) + (SOURCES / name).read_text()
    return compile_program(text, tasklets=tasklets, stack_bytes=512, timed=True)


ARITHMETIC = [
    ("int32_t", "+", 58.56, 77, 3),
    ("int32_t", "-", 58.45, 77, 3),
    ("int32_t", "*", 10.27, (1 << 22) + 77, (1 << 20) + 1),  # 21 bits: the table's rate, as the time is by length
    ("int32_t", "/", 11.27, 40000, 1),
    ("int64_t", "+", 50.16, 77, 3),
    ("int64_t", "-", 50.16, 77, 3),
    ("int64_t", "*", 2.56, 77, 3),
    ("int64_t", "/", 1.40, 77, 1),
    ("float", "+", 4.91, 1.5, 3),
    ("float", "-", 4.59, 1.5, 3),
    ("float", "*", 1.91, 1.5, 3),
    ("float", "/", 0.34, 1.5, 3),
    ("double", "+", 3.32, 1.5, 3),
    ("double", "-", 3.11, 1.5, 3),
    ("double", "*", 0.53, 1.5, 3),
    ("double", "/", 0.16, 1.5, 3),
]
DTYPES = {"int32_t": np.int32, "int64_t": np.int64, "float": np.float32, "double": np.float64}


@pytest.mark.parametrize(("kind", "operator", "mops", "value", "operand"), ARITHMETIC)
def test_arithmetic_reaches_the_published_rate(
    kind: str, operator: str, mops: float, value: float, operand: float
) -> None:
    dtype = DTYPES[kind]
    with DpuSet(1) as machine:
        machine.load(program("arithmetic.c", T=kind, OP=operator))
        machine.launch(rounds=100, value=np.array([value], dtype), operand=np.array([operand], dtype))
        estimate = machine.time()
    operations = 16 * 128 * 100
    assert operations / (estimate.cycles[0] / 350e6) / 1e6 == pytest.approx(mops, rel=0.05)


@pytest.mark.parametrize(
    ("step", "nbytes", "rate"),
    [
        ("y[k] = x[k]", 16, 2819),
        ("z[k] = x[k] + y[k]", 24, 1682),
        ("y[k] = scale * x[k]", 16, 42),
        ("z[k] = x[k] + scale * y[k]", 24, 61.7),
    ],
)
def test_wram_reaches_the_published_bandwidth(step: str, nbytes: int, rate: float) -> None:
    with DpuSet(1) as machine:
        machine.load(program("stream.c", STEP=step))
        machine.launch(rounds=500, scale=3)
        seconds = machine.time().cycles[0] / 350e6
    assert 16 * 128 * 500 * nbytes / seconds / 1e6 == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize(
    ("macros", "rate"),
    [
        ({"BYTES": 2048, "STRIDE": 2048, "READS": 1}, 628),
        ({"BYTES": 2048, "STRIDE": 2048, "WRITES": 1}, 633),
        ({"BYTES": 2048, "STRIDE": 2048, "READS": 1, "WRITES": 1}, 624),
        ({"BYTES": 8, "STRIDE": 1032, "READS": 1}, 72.6),
    ],
)
def test_mram_reaches_the_published_bandwidth(macros: dict[str, int], rate: float) -> None:
    with DpuSet(1) as machine:
        machine.load(program("dma.c", **macros))
        machine.launch(blocks=500)
        estimate = machine.time()
    assert estimate.bound == "MRAM"
    assert estimate.mram_bytes_per_second / 1e6 == pytest.approx(rate, rel=0.05)


def test_the_pipeline_is_full_with_eleven_tasklets() -> None:
    rates = {}
    for tasklets in (1, 4, 8, 11, 16, 24):
        with DpuSet(1) as machine:
            machine.load(program("arithmetic.c", tasklets, T="int32_t", OP="+"))
            machine.launch(rounds=100, value=1, operand=1)
            estimate = machine.time()
        rates[tasklets] = tasklets / estimate.cycles[0]
    for tasklets, rate in rates.items():
        assert rate / rates[11] == pytest.approx(min(tasklets, 11) / 11, rel=0.01)


def test_a_launch_is_counted_by_its_arguments_and_data() -> None:
    text = """
    #include <defs.h>
    #include <mram.h>
    __host uint32_t rounds;
    __mram_noinit int64_t more[2];
    int main(void) {
      volatile int x = 0;
      for (uint32_t i = 0; i < rounds + (uint32_t)more[1]; i++) x += 1;
      more[1] = 7777;   // the count is of the state before the launch
      return 0;
    }"""
    with DpuSet(6) as machine:
        machine.load(text, tasklets=1, timed=True)
        with pytest.raises(DpuError, match="was not counted"):
            machine.time()
        machine.write("more", np.array([[0, 100 * dpu] for dpu in range(6)]))
        machine.launch(rounds=1000)
        first = machine.time()
        assert first.sampled == 4
        per_round = (first.instructions[5] - first.instructions[0]) / 500
        assert 3 <= per_round <= 6
        assert first.seconds == pytest.approx(0.18e-3 + 11 * first.instructions[5] / 350e6, rel=0.01)
        machine.launch(rounds=1000)
        assert (machine.time().cycles == first.cycles).all()  # not counted again
        machine.launch(rounds=2000)
        assert machine.time().instructions[0] == pytest.approx(per_round * 9777, rel=0.02)
        assert machine.read("more", np.int64, 2)[:, 1].tolist() == [7777] * 6
        assert "estimate, not calibrated, 4 of 6 DPUs counted" in str(first)
        assert 0 < first.ipc <= 1 / 11 + 0.01
        assert first.joules_at_most == pytest.approx(first.seconds * 0.15 * 6)
        machine.load(text, tasklets=1)
        machine.launch(rounds=1)
        with pytest.raises(DpuError, match="timed=True"):
            machine.time()


ROUTINES = """
#include <defs.h>
#include <mram.h>
__mram_noinit int64_t out[64];
__host int32_t a32, b32;
__host int64_t a64, b64;
__host float af, bf;
__host double ad, bd;
#define PUT(value) (word = (int64_t)(value), mram_write(&word, &out[n++], 8))
#define PUTF(value) (f = (value), u = *(uint32_t *)&f, PUT(u))
#define PUTD(value) (d = (value), PUT(*(int64_t *)&d))
int main(void) {
  __dma_aligned int64_t word;
  int n = 0;
  float f;
  double d;
  uint32_t u;
  PUT(a32 * b32), PUT(a32 / b32), PUT(a32 % b32), PUT((uint32_t)a32 / (uint32_t)b32);
  PUT((uint32_t)a32 % (uint32_t)b32);
  PUT(a64 * b64), PUT(a64 / b64), PUT(a64 % b64), PUT((uint64_t)a64 / (uint64_t)b64);
  PUT((uint64_t)a64 % (uint64_t)b64);
  PUT(a64 << (b32 & 63)), PUT(a64 >> (b32 & 63)), PUT((uint64_t)a64 >> (b32 & 63));
  PUTF(af + bf), PUTF(af - bf), PUTF(af * bf), PUTF(af / bf), PUT(af < bf), PUT(af <= bf), PUT(af == bf), PUT(af > bf);
  PUTD(ad + bd), PUTD(ad - bd), PUTD(ad * bd), PUTD(ad / bd), PUT(ad < bd), PUT(ad >= bd), PUT(ad != bd);
  PUT((int32_t)bf), PUT((int64_t)bd), PUTF(a32), PUTF(a64), PUTD(a32), PUTD((uint64_t)b64), PUTF(ad), PUTD(af);
  PUT((uint32_t)bf), PUT((uint64_t)bd), PUT(a32 < b32 ? __builtin_popcount(a32) : __builtin_clz(b32));
  for (int i = 0; i < n; i++) mram_read(&out[i], &word, 8), sum(word);
  return 0;
}
"""


def test_both_tiers_compute_the_same() -> None:
    """Every set bit of every result takes some thousand instructions: the count tells what RV32 computed."""
    waste = "for (volatile int k = 0; k < 500; k++) {}"
    text = ROUTINES.replace(
        "int main",
        "__host int32_t steps;\nstatic void sum(int64_t word) {\n"
        f"  for (uint32_t b = word ^ word >> 32; b; b &= b - 1) {{ steps += 1; {waste} }}\n}}\nint main",
    )
    kinds = {"f": "f4", "d": "f8", "2": "i4", "4": "i8"}
    values = [
        {"a32": 123456, "b32": -77, "a64": -(1 << 40) - 5, "b64": 12345, "af": 1.5, "bf": 2.25, "ad": -1e10, "bd": 3e5},
        {"a32": -1, "b32": 13, "a64": (1 << 62) + 9, "b64": -3, "af": 1e-40, "bf": 7.5, "ad": 0.1, "bd": 12345.75},
        {"a32": 1 << 30, "b32": -1, "a64": 99, "b64": 1 << 35, "af": -3e38, "bf": 0.7, "ad": 5e-320, "bd": 1e9},
        {"a32": 7, "b32": 3, "a64": -8, "b64": 5, "af": 0.1, "bf": 3e9, "ad": 2.5, "bd": 1 / 3},
    ]
    counted, steps = [], []
    with DpuSet(1) as machine:
        machine.load(text, tasklets=1, timed=True)
        for arguments in values:
            machine.launch(steps=0, **{name: np.array([x], kinds[name[-1]]) for name, x in arguments.items()})
            steps.append(int(machine.read("steps", np.int32, 1)[0, 0]))
            counted.append(float(machine.time().instructions[0]))
    assert len(set(steps)) == len(steps)
    per_step = (counted[1] - counted[0]) / (steps[1] - steps[0])
    assert 1000 < per_step < 10000
    bits = (np.array(counted) - counted[0]) / per_step + steps[0]
    assert bits == pytest.approx(np.array(steps), abs=0.9)


def test_the_routines_table_is_whole() -> None:
    table = calibration()["routines"]
    assert set(table) == set(routine_names())
    assert all(entry["provenance"] for entry in table.values())


def test_iram_that_overflows_is_refused() -> None:
    body = "".join(f"  x ^= x << {i % 30 + 1}; x += {i * 7919};\n" for i in range(1500))
    text = f"#include <defs.h>\n__host uint32_t x;\nint main(void) {{\n{body}  return 0; }}"
    with pytest.raises(DpuCompileError, match="a DPU's IRAM holds 4,096"):
        compile_program(text)
    assert compile_rv32  # the proxy it is counted with


def test_transfers_follow_the_measured_bandwidths() -> None:
    numbers = calibration()
    table = numbers["transfer"]
    to, back = table["to_gb_per_s"], table["from_gb_per_s"]
    seconds = transfer_seconds(1 << 20, 64, numbers)
    assert seconds == pytest.approx(table["to_start_seconds"] + 64 * (1 << 20) / (to[3] * 1e9))
    seconds = transfer_seconds(1 << 20, 1, numbers, to=False)
    assert seconds == pytest.approx(table["from_start_seconds"] + (1 << 20) / (back[0] * 1e9))
    assert transfer_seconds(1 << 20, 2556, numbers) > transfer_seconds(1 << 20, 64, numbers)


def test_addresses_in_variables_stay_those_of_the_counted_program() -> None:
    text = """
        #include <defs.h>
        #include <mutex_pool.h>
        struct list { int length; int *items; };
        int few[4] = {1, 2, 3, 4};
        struct list list = {1, few};
        __host int rounds;
        MUTEX_POOL_INIT(pool, 4)
        int main(void) {
            for (int i = 0; i < rounds * list.length; i++) {
                mutex_pool_lock(&pool, i);
                list.items[i & 3] += i;
                mutex_pool_unlock(&pool, i);
            }
            return 0;
        }"""
    with DpuSet(2) as machine:
        machine.load(text, tasklets=1, timed=True)
        counted = []
        for rounds, length in ((100, 1), (101, 3)):  # the second one finds what the first one and the host changed
            machine.broadcast("list", np.array([length], np.int32))
            machine.launch(rounds=rounds)
            counted.append(machine.time().instructions)
    assert (counted[0] > 100 * 10).all()
    assert counted[1] == pytest.approx(3.03 * counted[0], rel=0.1)  # the remainder takes longer for larger numbers
