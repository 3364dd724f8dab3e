"""What is installed and what a wheel and a source archive hold."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def entry_points(group: str) -> dict[str, str]:
    return {point.name: point.value for point in metadata.distribution("bringup").entry_points if point.group == group}


def test_entry_points() -> None:
    assert entry_points("torch.backends") == {"bringup": "bringup.runtime:_autoload"}
    assert entry_points("bringup.drivers")["sim"] == "bringup.drivers.sim:Driver"
    assert entry_points("console_scripts") == {"bringup": "bringup.cli:main"}


def test_every_entry_point_loads() -> None:
    for point in metadata.distribution("bringup").entry_points:
        assert callable(point.load()), point


def test_run_time_needs_are_torch_and_numpy() -> None:
    requires = metadata.distribution("bringup").requires or []
    always = {re.split(r"[^\w-]", line)[0] for line in requires if "extra ==" not in line}
    assert always == {"torch", "numpy"}


def test_metadata() -> None:
    about = metadata.metadata("bringup")
    assert about["Name"] == "bringup"
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == ">=3.10"
    assert set(about.get_all("Provides-Extra") or []) >= {"cli", "test", "lint"}


def test_license_and_typing_marker() -> None:
    license_text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in license_text
    assert "END OF TERMS AND CONDITIONS" in license_text
    assert (ROOT / "bringup" / "py.typed").is_file()


def test_the_changelog_knows_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert "[Unreleased]" in changelog or f"[{metadata.version('bringup')}]" in changelog


def build(kind: str, folder: Path) -> list[str]:
    """Calls setuptools as pip does; returns the names in the archive."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, env=os.environ)
    assert result.returncode == 0, result.stdout + result.stderr
    archive = folder / result.stdout.splitlines()[-1]
    if kind == "wheel":
        return zipfile.ZipFile(archive).namelist()
    return [name.partition("/")[2] for name in tarfile.open(archive).getnames()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_holds_the_binaries_and_no_sources(tmp_path: Path) -> None:
    names = build("wheel", tmp_path)
    assert [name for name in names if re.fullmatch(r"bringup/_C\..*\.so", name)]
    libraries = ("bringup/drivers/sim/_sim.so", "bringup/riscv/_iss.so", "bringup/upmem/_dpu.so")
    for needed in (*libraries, "bringup/include/bringup/driver.h", "bringup/py.typed"):
        assert needed in names
    for needed in ("bringup/_C.pyi", "bringup/kit/driver_checks.py", "bringup/drivers/sim/__init__.py"):
        assert needed in names
    assert "bringup/targets/c/math/error_function.c" in names  # text that generated kernels include
    for needed in (
        "calibration.json",
        "include/dpu/mram.h",
        "include/host/dpu.h",
        "runtime/runtime.c",
        "runtime/native.ld",
    ):
        assert f"bringup/upmem/{needed}" in names
    # Of programs that are built for users:
    parts = ("/targets/c/math/", "/riscv/runtime/", "/drivers/riscv/", "/upmem/runtime/")
    assert not [name for name in names if name.endswith((".cpp", ".c")) and not any(part in name for part in parts)]
    assert not [name for name in names if name.startswith(("tests/", "examples/", "build/"))]


@pytest.mark.slow
def test_the_source_archive_can_be_built_from(tmp_path: Path) -> None:
    names = set(build("sdist", tmp_path))
    kinds = {".cpp", ".c", ".h", ".py", ".pyi", ".toml"}
    needed = {str(path.relative_to(ROOT)) for path in (ROOT / "bringup").rglob("*") if path.suffix in kinds}
    assert needed
    assert not needed - names
    assert {"setup.py", "pyproject.toml", "LICENSE", "README.md"} <= names
