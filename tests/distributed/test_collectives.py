"""Collectives of device tensors on 2 and 4 ranks, for each way in which a driver's memory is reached."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pytest

from tests.distributed import ranks

HERE = Path(__file__).parent
#: Variant → number of ranks and environment.
VARIANTS = {
    "zero-copy": (2, {"BRINGUP_DRIVERS": "sim"}),
    "zero-copy-4": (4, {"BRINGUP_DRIVERS": "sim"}),
    "delayed": (2, {"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "jitter=3"}),
    "staged": (2, {"BRINGUP_DRIVERS": str(HERE / "staged_driver.py"), "BRINGUP_SIM": "jitter=5"}),
    "own": (2, {"BRINGUP_DRIVERS": str(HERE / "own_collectives_driver.py"), "BRINGUP_SIM": "jitter=7"}),
    "synchronous": (2, {"BRINGUP_DRIVERS": str(HERE.parent / "device" / "chip_driver.py")}),
}
#: The other drivers that delay their work are in every run.
LONG = {"delayed"}
PROGRAMS = ranks.names_in("programs_collectives")


@cache
def outcome(variant: str) -> dict[str, str]:
    size, env = VARIANTS[variant]
    return ranks.run_file("programs_collectives", size, **env)


@pytest.mark.parametrize("program", [*PROGRAMS, "exit"])
@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=pytest.mark.sweep if name in LONG else ()) for name in VARIANTS]
)
def test_collective(variant: str, program: str) -> None:
    wrong = outcome(variant).get(program, "")
    assert not wrong, wrong


@cache
def outcome_of_own(offered: str, size: int) -> dict[str, str]:
    """Of a driver with collectives of its own, by those that it offers."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"BRINGUP_TEST_COLLECTIVES": offered, "BRINGUP_TEST_COUNTS": f"{folder}/counts"}
        driver = str(HERE / "own_collectives_driver.py")
        return ranks.run_file("programs_own", size, BRINGUP_DRIVERS=driver, **env)


@pytest.mark.parametrize("program", [*ranks.names_in("programs_own"), "exit"])
@pytest.mark.parametrize(
    ("offered", "size"), [("all_reduce broadcast all_gather reduce_scatter", 4), ("all_reduce", 2)]
)
def test_collectives_of_a_driver(offered: str, size: int, program: str) -> None:
    wrong = outcome_of_own(offered, size).get(program, "")
    assert not wrong, wrong
