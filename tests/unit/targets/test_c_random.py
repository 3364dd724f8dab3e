"""Random kernels in C against the interpreter, bit for bit; benchmarks/random_kernels.py runs 10,000 of them."""

import pytest

from benchmarks.random_kernels import check_batch
from bringup.targets.toolchain import host_target
from tests.sweeps import swept_unless

BATCHES = 12
SIZE = 25


@pytest.mark.parametrize("batch", swept_unless(range(0, BATCHES, 3), range(BATCHES)))
def test_random_kernels(batch):
    start = 1_000_000 + batch * SIZE
    reports = check_batch(range(start, start + SIZE), host_target(), (), functions=batch % 4 == 3, packed=False)
    assert not reports, "\n".join(reports)


@pytest.mark.parametrize("batch", range(4))
def test_random_kernels_with_a_long_axis(batch):
    """Whole vectors, their tails and rows of several vectors, which grids of 6 points never see."""
    start = 2_000_000 + batch * SIZE
    reports = check_batch(
        range(start, start + SIZE), host_target(), (), functions=batch % 4 == 3, packed=False, longest=300
    )
    assert not reports, "\n".join(reports)
