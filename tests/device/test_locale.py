"""A locale whose encoding has few signs: sources are read and written as UTF-8, the command prints what it can."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT

#: Python takes UTF-8 for the C locale unless it is told not to, and ISO-8859 as it is.
ASCII = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_kernels_are_made_and_files_written(run_python, tmp_path) -> None:
    run_python(
        """
import locale, subprocess, warnings
assert locale.getpreferredencoding(False) == "ANSI_X3.4-1968"
warnings.simplefilter("error", RuntimeWarning)
import torch, bringup

x = torch.randn(4, 4, device="sim")
torch.testing.assert_close(x.exp().sin().cpu(), x.cpu().exp().sin())
compiled = torch.compile(lambda x: x.sigmoid() @ x, backend="bringup")
torch.testing.assert_close(compiled(x).cpu(), x.cpu().sigmoid() @ x.cpu())
assert bringup.fallbacks().calls == 0
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
bringup.export(model, (torch.ones(1, 4),), target="riscv", vector=256, out="project")
bringup.export(model.to("sim"), (x,), out="model.bup")
""",
        env={**ASCII, "BRINGUP_CACHE": str(tmp_path / "cache")},
        cwd=tmp_path,
    )
    assert "×" in (tmp_path / "project" / "model.c").read_text(encoding="utf-8")


def test_the_command_prints_in_it() -> None:
    environment = {**os.environ, **ASCII, "PYTHONPATH": str(ROOT)}
    for words in (["--help"], ["contract"], ["contract", "--full"], ["diagnose"]):
        done = subprocess.run(
            [sys.executable, "-m", "bringup", *words], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
