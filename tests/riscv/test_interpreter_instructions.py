"""Every instruction on random registers, against QEMU: byte-equal registers, vector state, memory and traps."""

import hashlib
import random

import numpy as np
import pytest

from bringup.riscv import MachineSpec
from bringup.riscv.interpreter import Interpreter
from tests.riscv import instruction_trials as trials
from tests.sweeps import swept_unless

COUNT = 4000
VECTOR_ISA = "rv64gcv_zvfh"  # QEMU 7.2 always has half floats in vectors


def run_ours(program: bytes, spec: MachineSpec, count: int, portable: bool = False) -> tuple[bytes, bytes]:
    with Interpreter(program, spec, portable=portable) as machine:
        assert machine.run().code == 0
        dumps = machine.read(trials.OUTPUT, count * trials.dump_bytes(spec.vlen))
        return dumps, machine.read(trials.SCRATCH, trials.SCRATCH_BYTES)


def compare(qemu_memory, spec: MachineSpec, rows: list[trials.Trial], seed: int) -> np.ndarray:
    """Runs the trials on both; gives the causes of their traps."""
    program = trials.program(rows, seed, spec.isa.partition("_")[0])
    ours, scratch = run_ours(program, spec, len(rows))
    ram = qemu_memory(program, spec)
    at = trials.OUTPUT - spec.ram_base
    wrong = trials.differences(rows, spec.vlen, ours, ram[at : at + len(ours)], ("interpreter", "QEMU"))
    assert not wrong, f"{len(wrong)} of {len(rows)} trials differ\n" + "\n".join(wrong[:10])
    at = trials.SCRATCH - spec.ram_base
    assert scratch == ram[at : at + len(scratch)], "stores differ"
    return np.frombuffer(ours, np.uint8).reshape(len(rows), -1)[:, 512]


@pytest.mark.slow
@pytest.mark.parametrize("vlen", swept_unless((128, 1024), (128, 256, 512, 1024)))
def test_vector_instructions(qemu_memory, vlen):
    spec = MachineSpec(VECTOR_ISA, vlen, ram_bytes=trials.RAM_BYTES)
    rows = trials.trials(vlen, COUNT, trials.VECTOR, vlen)
    causes = compare(qemu_memory, spec, rows, vlen)
    assert (causes == 0).mean() > 0.5, "most trials must be legal, or they show little"
    ran = {trials.operation_of(word) for row, cause in zip(rows, causes) if not cause for word in row.words}
    missing = {*trials.OPERATIONS} - ran
    assert not missing, f"never ran: {missing}"


@pytest.mark.parametrize("halves", [False, True], ids=["singles", "halves"])
def test_scalar_instructions(qemu_memory, halves):
    spec = MachineSpec("rv64gc_zfh" if halves else "rv64gc", ram_bytes=trials.RAM_BYTES)
    makers = (trials.scalar_float,) if halves else trials.SCALAR
    causes = compare(qemu_memory, spec, trials.trials(7, COUNT, makers, halves=halves), 7)
    assert (causes == 0).mean() > 0.7


def test_scalar_instructions_of_32_bits(qemu_memory):
    spec = MachineSpec("rv32imfc", ram_bytes=trials.RAM_BYTES)
    causes = compare(qemu_memory, spec, trials.trials(32, COUNT, trials.SCALAR_32), 32)
    assert (causes == 0).mean() > 0.5


def test_estimates_of_all_table_entries(qemu_memory):
    """vfrec7 and vfrsqrt7: all 128 entries, in float32 and float64."""
    spec = MachineSpec(VECTOR_ISA, 1024, ram_bytes=trials.RAM_BYTES)
    rng = random.Random(3)
    rows = []
    for sew in (2, 3):
        for code in (4, 5):
            word = 0x13 << 26 | 1 << 25 | 8 << 20 | code << 15 | 1 << 12 | 16 << 7 | 0x57
            rows += [
                trials.Trial([word], 512, sew << 3 | 3, frm=frm, pool=pool) for pool in range(48) for frm in (0, 1)
            ]
    rng.shuffle(rows)
    assert not compare(qemu_memory, spec, rows, 3).any()


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize(("vlen", "digest"), [(128, "c15dc1c7bd10ca74"), (1024, "fd61bebf1a44d43f")])
def test_vector_instructions_without_qemu(vlen, digest, portable):
    """The same trials where there is no QEMU: its dumps were these."""
    spec = MachineSpec(VECTOR_ISA, vlen, ram_bytes=trials.RAM_BYTES)
    rows = trials.trials(vlen, COUNT, trials.VECTOR, vlen)
    ours, _ = run_ours(trials.program(rows, vlen, "rv64gcv"), spec, COUNT, portable)
    assert hashlib.sha256(ours).hexdigest()[:16] == digest
