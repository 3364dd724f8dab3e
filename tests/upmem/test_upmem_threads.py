"""Many threads, forks, many sets one after the other: what a long-lived process does to the simulator."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from bringup.upmem import DpuFault, DpuSet

SCALE = """
#include <defs.h>
#include <mram.h>
__host int32_t factor;
__mram_noinit int32_t values[1 << 12];
__dma_aligned int32_t block[NR_TASKLETS][64];
int main(void) {
  int32_t *mine = block[me()];
  for (uint32_t i = me() * 64; i < 1 << 12; i += NR_TASKLETS * 64) {
    mram_read(&values[i], mine, 256);
    for (int k = 0; k < 64; k++) mine[k] *= factor;
    mram_write(mine, &values[i], 256);
  }
  return 0;
}
"""


def scale(dpus: int, times: int) -> None:
    values = np.random.default_rng(dpus).integers(-9, 9, (dpus, 4096)).astype(np.int32)
    with DpuSet(dpus) as machine:
        machine.load(SCALE)
        for factor in range(times):
            machine.write("values", values)
            machine.launch(factor=factor)
            assert (machine.read("values", np.int32, 4096) == values * factor).all()


def test_threads_have_sets_of_their_own() -> None:
    failures: list[BaseException] = []

    def work(dpus: int) -> None:
        try:
            scale(dpus, 20)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(dpus,)) for dpus in range(3, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_forked_child_can_use_dpus(run_python) -> None:
    here = str(Path(__file__).parent)
    done = run_python(
        f"import os, sys; sys.path.insert(0, {here!r}); import test_upmem_threads as t\n"
        "t.scale(3, 2)\n"
        "child = os.fork()\n"
        "if not child: t.scale(5, 2), os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "t.scale(4, 2)\n"
        "print('well')"
    )
    assert done.stdout == "well\n"


def test_nothing_is_left_behind() -> None:
    def mappings() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    def use() -> None:
        with DpuSet(16) as machine:
            machine.load(SCALE)
            machine.launch(factor=1)
            machine.load("int main(void) { volatile int *p = (int *)8; return *p; }")
            with pytest.raises(DpuFault):
                machine.launch()

    use()
    gc.collect()
    before, files = mappings(), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        use()
    gc.collect()
    assert mappings() <= before + 4
    assert len(os.listdir("/proc/self/fd")) == files


def test_faults_of_others_are_not_ours() -> None:
    code = (
        "import ctypes, faulthandler; faulthandler.enable()\n"
        "from bringup.upmem import DpuSet\n"
        "dpus = DpuSet(1); dpus.load('int main(void) { return 0; }'); dpus.launch()\n"
        "ctypes.string_at(8)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode < 0
    assert "Segmentation fault" in done.stderr
