"""PrIM's kernels compute what NumPy does, at sizes and numbers of DPUs of their own."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bringup.upmem import DpuToolchainMissing, compile_program
from bringup.upmem.rv32 import calibration
from bringup.upmem.toolchain import compiler

try:
    compiler()
    compile_program("int main(void) { return 0; }", timed=True)
except DpuToolchainMissing as reason:
    pytest.skip(str(reason), allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import prim  # noqa: E402
from recording import recorded  # noqa: E402


@pytest.mark.parametrize("kernel", prim.KERNELS)
def test_a_kernel_equals_numpy(kernel: str) -> None:
    size = {"TRNS": 48, "MLP": 384}.get(kernel, 12288)
    cycles, launches, bound = prim.measure(kernel, 3, size)
    assert cycles > 0
    assert launches == {"MLP": 3, "SCAN-SSA": 2, "SCAN-RSS": 2}.get(kernel, 1)
    assert bound in ("pipeline", "tasklet", "MRAM", "lock")


def test_wrong_results_are_noticed() -> None:
    with pytest.raises(AssertionError, match="1 of 3 differ"):
        prim.equal(np.array([1, 2, 3]), np.array([1, 2, 4]))


def test_the_laws_recover_what_they_are_given() -> None:
    rows = [
        prim.Row("A", dpus, size, 0.5 + 2 * size / dpus / 350, 1.0, 1000 * size / dpus, 1, "pipeline", 0.0)
        for dpus in (1, 4, 64)
        for size in (64, 128, 640)
    ]
    found = prim.laws([*rows, *(prim.Row("B", *list(vars(row).values())[1:]) for row in rows)])
    for law in ("ours, leave one kernel out", "ours, leave 64 DPUs out", "ours, half split"):
        assert found[law]["mean"] < 1e-9
    assert found["ours, no calibration"]["mean"] > 0.2


def test_reports_state_the_errors_that_were_recorded() -> None:
    stated = calibration()["error"]
    assert stated["kernels"] == round(recorded("upmem_prim")["data"]["laws"]["ours, no calibration"]["mean"], 3)
    assert stated["transfers"] == round(recorded("upmem_transfers")["data"]["both"]["mean"], 3)


def test_kernels_of_the_calibration_exist() -> None:
    assert set(calibration()["kernels"]) <= set(prim.KERNELS) - prim.NOT_COMPARED


def test_the_program_says_what_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "prim.py")], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2
    assert "--hardware FILE is needed" in done.stderr
