"""Step 3: the chip's own library. ops.toml says which PyTorch ops its functions serve."""

from pathlib import Path

from heron import kernels


class Driver(kernels.Driver):
    op_table = Path(__file__).with_name("ops.toml")
