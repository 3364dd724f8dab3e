"""Ops whose result depends on data, and rare ops, on compiled kernels: the CPU's results, and nothing falls back."""

from __future__ import annotations

import json


def test_composed_ops(run_python) -> None:
    code = "import runpy; runpy.run_module('tests.device.programs_composed', run_name='__main__')"
    sim = {"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "mode=kernels,threads=3", "BRINGUP_FALLBACK": "error"}
    done = run_python(code, env=sim)
    assert "previously registered" not in done.stderr, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    wrong = [f"{name}: {error}" for name, error in found.items() if error is not None]
    assert len(found) > 80
    assert not wrong, "\n".join(wrong)
