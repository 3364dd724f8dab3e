"""Attention and random numbers on compiled kernels: nothing falls back, and numbers are those of every other mode."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.device.programs_kernel_attention import PROGRAMS


def run_programs(run_python: Any, code: str, **env: str) -> Any:
    done = run_python(f"import tests.device.programs_kernel_attention as p; {code}", env=env, timeout=600)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def results(run_python: Any) -> Any:
    env = {"BRINGUP_SIM": "mode=kernels", "BRINGUP_DRIVERS": "sim", "BRINGUP_FALLBACK": "error"}
    return run_programs(run_python, "p.main()", **env)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, results: Any) -> None:
    if results["programs"][name] is not None:
        pytest.fail(results["programs"][name], pytrace=False)


def test_the_host_library_draws_the_same_numbers(run_python: Any, results: Any) -> None:
    env = {"BRINGUP_SIM": "mode=library", "BRINGUP_DRIVERS": "sim"}
    other = run_programs(run_python, "import json; print(json.dumps(p.numbers()))", **env)
    assert results["numbers"] == other
