"""Sorting, topk, kthvalue, nonzero and masks as kernels: the stable order, bit for bit, in lines of every length."""

from __future__ import annotations

import json

import pytest


def test_order_and_compaction(run_python) -> None:
    code = "import runpy; runpy.run_module('tests.device.programs_kernel_order', run_name='__main__')"
    sim = {"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "mode=kernels,threads=2", "BRINGUP_FALLBACK": "error"}
    found = json.loads(run_python(code, env=sim).stdout.splitlines()[-1])
    assert len(found) == 109
    assert not {name: wrong for name, wrong in found.items() if wrong is not None}


@pytest.mark.parametrize("call", ["x.topk(6)", "x.kthvalue(6)", "x.kthvalue(0)", "x.sort(3)", "x.topk(-1)"])
def test_what_cannot_be_is_an_error(run_python, call: str) -> None:
    code = f"""
import torch
x = torch.randn(2, 5, device="sim")
try:
    {call}
except (RuntimeError, IndexError) as error:
    print("refused")
"""
    sim = {"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "mode=kernels", "BRINGUP_FALLBACK": "error"}
    assert run_python(code, env=sim).stdout.splitlines() == ["refused"]
