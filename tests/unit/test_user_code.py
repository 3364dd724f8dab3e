"""Warnings point to the user's line that caused them, not into bringup's files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "bringup"

HERE = """
import warnings
caught = []
def keep(message, category, filename, lineno, *rest):
    caught.append((str(message), filename, lineno))
warnings.showwarning = keep
warnings.simplefilter("always")

def pointed(words, line, filename="<string>"):
    ours = [place for place in caught if words in place[0]]
    assert {place[1:] for place in ours} == {(filename, line)}, (words, line, caught)
    caught.clear()

def here():
    import sys
    return sys._getframe(1).f_lineno
"""

IMPORTED = HERE + "import torch; line = here()\n"

CASES = {
    "a fallback": (
        "x = torch.eye(2, device='sim')\nbringup.fallback_policy('warn')\n"
        "torch.linalg.inv(x); line = here()\npointed('runs on the CPU', line)",
        {},
    ),
    "a compiler that fails": (
        "torch.ones(3, device='sim'); line = here()\npointed('runs without a kernel', line)",
        {"CC": "false", "BRINGUP_CACHE": "{tmp}", "BRINGUP_SIM": "mode=kernels"},
    ),
    "a cache that cannot be used": (
        "torch.ones(3, device='sim'); line = here()\npointed('disk cache of kernels', line)",
        {"BRINGUP_CACHE": "/proc/nothing"},
    ),
    "bounds of random numbers": (
        "x = torch.empty(3, device='sim', dtype=torch.float16)\nx.random_(0, 5000); line = here()\n"
        "pointed('to - 1 is out of bounds', line)",
        {},
    ),
    "a variable of the sanitizer": ("pointed('BRINGUP_SANITIZE', line)", {"BRINGUP_SANITIZE": "steam"}),
    "a misspelled variable": ("pointed('BRINGUP_FALBACK', line)", {"BRINGUP_FALBACK": "warn"}),
    "drivers that do not exist": ("pointed('bringup is not active', line)", {"BRINGUP_DRIVERS": "nonesuch"}),
    "layers that Dynamo leaves out": (
        "model = torch.nn.LSTM(2, 2).to('sim')\n"
        "compiled = torch.compile(lambda x: model(x)[0] + 1, backend='bringup')\n"
        "compiled(torch.ones(3, 1, 2, device='sim')); line = here()\npointed('nn.LSTM', line)",
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_warning_points_to_the_line_of_the_user(run_python, tmp_path: Path, name: str) -> None:
    code, variables = CASES[name]
    env = {key: value.format(tmp=tmp_path) for key, value in variables.items()}
    run_python(IMPORTED + "import bringup\n" + code, env={"BRINGUP_DRIVERS": "sim", **env}, fresh=True)


def test_only_one_place_warns() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\bwarnings\.warn(_explicit)?\(", path.read_text())
    }
    assert found == {"user_code.py"}
