"""UPMEM's processing-in-memory, simulated: DPU programs in UPMEM's dialect of C, run and timed without hardware.

    from bringup.upmem import DpuSet

    with DpuSet(64) as dpus:
        dpus.load(KERNEL)                        # the text of a DPU program
        dpus.write("input", rows)                # row i to DPU i, one transfer
        dpus.launch(scale=3)                     # sets the program's variable `scale`, runs every tasklet
        result = dpus.read("output", np.int32, rows.shape[1])

``native/`` is the simulator: a library with the calls of libdpu, so that C programs use it, too. ``include/`` holds
headers of both sides. Nothing here imports torch.
"""

from __future__ import annotations

from .compiler import compile_program
from .host import Counters, DpuError, DpuFault, DpuSet, Symbol
from .timing import LaunchTime
from .toolchain import DpuCompileError, DpuToolchainMissing

__all__ = [
    "Counters",
    "DpuCompileError",
    "DpuError",
    "DpuFault",
    "DpuSet",
    "DpuToolchainMissing",
    "LaunchTime",
    "Symbol",
    "compile_program",
]
