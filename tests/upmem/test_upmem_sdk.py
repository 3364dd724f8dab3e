"""The way to hardware: the SDK's public calls alone. The stand-in is a copy of our library, which exports the same."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from bringup.upmem import DpuCompileError, DpuError, DpuFault, DpuToolchainMissing
from bringup.upmem.host import LIBRARY
from bringup.upmem.sdk import Sdk, SdkSet, find_sdk
from bringup.upmem.tools import write_tools

SCALE = """
#include <alloc.h>
#include <defs.h>
#include <mram.h>
#include <stdio.h>
__host int32_t factor;
__mram_noinit int32_t values[64];
int main(void) {
  if (me()) return 0;
  mem_reset();
  int32_t *block = mem_alloc(256);
  mram_read(values, block, 256);
  for (int k = 0; k < 64; k++) block[k] *= factor;
  mram_write(block, values, 256);
  printf("times %d\\n", factor);
  return 0;
}
"""


@pytest.fixture
def sdk(tmp_path: Path) -> Sdk:
    write_tools(tmp_path)
    library = tmp_path / "libdpu.so"
    library.unlink()
    shutil.copy(LIBRARY, library)
    found = find_sdk(library)
    assert found is not None
    assert found.compiler.parent == tmp_path
    return found


def test_a_program_by_public_calls(sdk: Sdk) -> None:
    rows = np.arange(70 * 64, dtype=np.int32).reshape(70, 64)
    with SdkSet(70, sdk) as dpus:
        dpus.load(SCALE, tasklets=3)
        dpus.write("values", rows)
        dpus.launch(factor=-3)
        assert dpus.spent > 0
        assert (dpus.read("values", np.int32, 64) == -3 * rows).all()
        assert dpus.log() == ["times -3\n"] * 70
        assert dpus.heap >= 256
        dpus.write("values", rows[:5], first=60)
        assert (dpus.read("values", np.int32, 64, first=59, count=7)[1:6] == rows[:5]).all()
        assert (dpus.read("values", np.int32, 64, first=59, count=1) == -3 * rows[59]).all()
        dpus.broadcast(1 << 20, rows[7])
        assert (dpus.read(1 << 20, np.int32, 64) == rows[7]).all()


def test_what_goes_wrong_is_said(sdk: Sdk, tmp_path: Path) -> None:
    with SdkSet(2, sdk) as dpus:
        with pytest.raises(DpuError, match="no program is loaded"):
            dpus.symbol("values")
        with pytest.raises(DpuCompileError, match="refused a DPU program"):
            dpus.load("int main(void) { return nothing; }")
        dpus.load("int main(void) { *(volatile int *)8 = 1; return 0; }", tasklets=1)
        with pytest.raises(DpuFault, match="a DPU is in fault"):
            dpus.launch()
        with pytest.raises(DpuError, match="nothing'"):
            dpus.symbol("nothing")
        for refused in (lambda: dpus.time(), lambda: dpus.counters, lambda: dpus.mram):
            with pytest.raises(DpuError, match="hardware"):
                refused()
        with pytest.raises(DpuError, match="timed"):
            dpus.load(SCALE, timed=True)
    with pytest.raises(DpuError, match="a machine has 2556"):
        SdkSet(3000, sdk)
    other = tmp_path / "other.so"
    other.write_text("no library")
    with pytest.raises(DpuToolchainMissing, match="cannot be loaded"):
        SdkSet(1, Sdk(other, sdk.compiler))


def test_where_the_sdk_is_found(sdk: Sdk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "upmem-sdk"
    (home / "lib").mkdir(parents=True)
    (home / "bin").mkdir()
    monkeypatch.setenv("UPMEM_HOME", str(home))
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert find_sdk() is None
    shutil.copy(sdk.library, home / "lib")
    assert find_sdk() is None  # there is no compiler
    shutil.copy(sdk.compiler, home / "bin")
    assert find_sdk() == Sdk(home / "lib" / "libdpu.so", home / "bin" / "dpu-upmem-dpurte-clang")
