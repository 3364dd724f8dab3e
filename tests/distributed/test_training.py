"""DDP, FSDP2, tensor parallelism, pipelines and checkpoints on 2 and 4 ranks, also compiled."""

from __future__ import annotations

from functools import cache

import pytest

from tests.distributed import ranks
from tests.distributed.test_collectives import HERE

FILE = "programs_training"
VARIANTS = {
    "zero-copy": (2, {"BRINGUP_DRIVERS": "sim"}),
    "zero-copy-4": (4, {"BRINGUP_DRIVERS": "sim"}),
    "staged": (2, {"BRINGUP_DRIVERS": str(HERE / "staged_driver.py")}),
}


@cache
def outcome(variant: str) -> dict[str, str]:
    size, env = VARIANTS[variant]
    return ranks.run_file(FILE, size, **env)


@pytest.mark.parametrize("program", [*ranks.names_in(FILE), "exit"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_training(variant: str, program: str) -> None:
    wrong = outcome(variant).get(program, "")
    assert not wrong, wrong
