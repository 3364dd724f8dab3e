"""The eager kernel route: signatures, plans, guards, aliasing and errors, with kernels written by hand."""

from __future__ import annotations

import json

import pytest

from tests.device.programs_kernel_route import PROGRAMS


@pytest.fixture(scope="module")
def results(run_python) -> dict[str, str | None]:
    code = "import runpy; runpy.run_module('tests.device.programs_kernel_route', run_name='__main__')"
    done = run_python(code, env={"BRINGUP_SIM": "mode=kernels,devices=2", "BRINGUP_DRIVERS": "sim"})
    assert "previously registered" not in done.stderr, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, results: dict[str, str | None]) -> None:
    if results[name] is not None:
        pytest.fail(results[name], pytrace=False)
