"""DPU programs need a compiler of x32 code; where there is none, all tests of this folder say so."""

import pytest

from bringup.upmem import DpuToolchainMissing
from bringup.upmem.toolchain import compiler


@pytest.fixture(autouse=True, scope="session")
def dpu_compiler() -> None:
    """Skips where DPU programs cannot be compiled."""
    try:
        compiler()
    except DpuToolchainMissing as reason:
        pytest.skip(str(reason))
