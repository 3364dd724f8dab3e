"""Chapter 9. From nothing to a chip in PyTorch: the files in newcomer/ are all that is written on the way."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.recording import recorded
from benchmarks.walkthrough_lines import steps
from bringup.kit.driver_checks import run_driver_checks
from tests.conftest import ROOT
from tests.optional_packages import skip_without_a_riscv_compiler

FOLDER = ROOT / "tests" / "walkthrough" / "newcomer"


def pip(*arguments: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        *arguments,
        "--quiet",
        "--no-index",
        "--no-deps",
        "--disable-pip-version-check",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Step 4: the package, built as a wheel and installed; no network."""
    folder = tmp_path_factory.mktemp("heron")
    source = folder / "source"
    source.mkdir()
    for file in [FOLDER / "pyproject.toml", *(FOLDER / "heron").iterdir()]:  # a build writes beside its sources
        if file.is_file():
            target = source / file.relative_to(FOLDER)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(file.read_bytes())
    pip("wheel", str(source), "--no-build-isolation", "--wheel-dir", str(folder))
    (wheel,) = folder.glob("heron-*.whl")
    pip("install", str(wheel), "--target", str(folder / "site"))
    return folder / "site"


@pytest.fixture(scope="module")
def run(installed: Path, run_python):
    """Runs a program of a user who has installed the package, and chosen nothing."""

    def run(code: str, *arguments: str):
        path = os.pathsep.join([str(installed), str(ROOT)])
        return run_python(code, *arguments, env={"PYTHONPATH": path, "BRINGUP_DRIVERS": None}, cwd=installed)

    return run


@pytest.mark.parametrize("step", ["memory", "kernels"])
def test_the_driver_keeps_the_contract(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    module = importlib.import_module(f"heron.{step}")
    results = run_driver_checks(module.Driver())
    assert not [result for result in results if result.status == "fail"]
    assert ("launch" in module.Driver.__dict__) == (step == "kernels")


def test_an_installed_package_is_the_device(run) -> None:
    run(
        """
        import torch

        import bringup
        from bringup.vendor.check import cases

        assert torch.accelerator.current_accelerator() == torch.device("heron")  # nobody named it
        x = torch.rand(8, 8, device="heron", requires_grad=True)
        (x @ x).softmax(-1).log().sum().backward()
        torch.testing.assert_close(torch.lgamma(x).cpu(), torch.lgamma(x.cpu()))
        assert len(bringup.fallbacks()) == 0, bringup.fallbacks()
        examples = list(cases("heron"))  # the op table's own, against the CPU
        assert {case.bound.op for case in examples} >= {"aten::lgamma", "heron::gamma"}
        for case in examples:
            case.run()
        """
    )


@pytest.mark.parametrize("program", ["swish", "train_gpt"])
def test_a_users_program(program: str, run) -> None:
    run((FOLDER / f"{program}.py").read_text())


def test_bare_metal(run, tmp_path: Path) -> None:
    skip_without_a_riscv_compiler()
    result = run((FOLDER / "bare_metal.py").read_text(), str(tmp_path / "project"))
    assert "instructions" in result.stdout
    assert (tmp_path / "project" / "Makefile").is_file()


def test_the_lines_in_the_docs_are_those_of_the_files() -> None:
    assert recorded("walkthrough_lines")["data"]["steps"] == steps(), (
        "python benchmarks/walkthrough_lines.py; make docs"
    )
