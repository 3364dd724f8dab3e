"""sim with a BLAS: the simulated chip's tuned library is OpenBLAS, and ops.toml says which ops it serves.

    pip install 'bringup[blas]'
    BRINGUP_DRIVERS=examples/vendor_blas/blas_driver.py python train.py      # device="blas_chip"
    bringup check --driver examples/vendor_blas/blas_driver.py --level table

Options are those of sim (BRINGUP_SIM); the mode is always ``kernels``. The library brings its own threads
(OPENBLAS_NUM_THREADS), as a chip's library does.
"""

from __future__ import annotations

import os
from pathlib import Path

from bringup.drivers.sim import Driver as Sim


class Driver(Sim):
    name = "blas_chip"
    op_table = Path(__file__).with_name("ops.toml")

    def __init__(self) -> None:
        super().__init__(",".join([os.environ.get("BRINGUP_SIM", ""), "mode=kernels"]).lstrip(","))
