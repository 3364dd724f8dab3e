"""Drivers are found by built-in name, entry point or file; what is not found gets a useful error."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from bringup.driver import Driver
from bringup.driver import lookup as driver_lookup
from bringup.driver.abi import CDriver, DriverError
from bringup.driver.lookup import UnknownDriver, check_device_name, find_driver, list_drivers
from tests.c_compiler import ROOT

SOURCE = "from bringup.driver import Driver as Base\nclass Driver(Base):\n    name = '{}'\n"


@pytest.fixture
def builtin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own bringup/drivers folder with `simchip/` and `onefile.py`."""
    import bringup.drivers

    folder = tmp_path / "drivers"
    (folder / "simchip").mkdir(parents=True)
    (folder / "simchip" / "__init__.py").write_text(SOURCE.format("simchip"))
    (folder / "onefile.py").write_text("from bringup.driver import Driver\nclass OneFile(Driver):\n    pass\n")
    (folder / "broken.py").write_text("import no_such_module_here\n")
    (folder / "__init__.py").write_text("")
    monkeypatch.setattr(driver_lookup, "_BUILTIN", folder)
    monkeypatch.setattr(bringup.drivers, "__path__", [str(folder)])
    yield folder
    for name in ("simchip", "onefile"):
        sys.modules.pop(f"bringup.drivers.{name}", None)


def entry_points(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    points = importlib.metadata.EntryPoints(
        importlib.metadata.EntryPoint(name, value, "bringup.drivers") for name, value in entries
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)


class Installed(Driver):
    name = "installed"


def test_a_built_in_folder_or_file(builtin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_scan(group: str) -> None:
        raise AssertionError("a built-in name must not scan the entry points")

    monkeypatch.setattr(importlib.metadata, "entry_points", no_scan)
    assert find_driver("simchip").name == "simchip"
    assert find_driver("onefile").name == "onefile"


def test_an_entry_point(builtin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points(monkeypatch, ("installed", f"{__name__}:Installed"), ("simchip", "somewhere:Else"), ("odd", "os:path"))
    assert isinstance(find_driver("installed"), Installed)
    assert find_driver("simchip").name == "simchip"  # built in wins
    assert list_drivers() == {
        "broken": "built in",
        "onefile": "built in",
        "simchip": "built in",
        "installed": f"{__name__}:Installed",
        "odd": "os:path",
    }
    with pytest.raises(DriverError, match="'odd'"):
        find_driver("odd")


def test_an_unknown_name_lists_what_there_is(builtin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points(monkeypatch, ("installed", "x:Y"))
    with pytest.raises(
        UnknownDriver, match=r"'simchp'\. Did you mean 'simchip'\?.*onefile \(built in\).*installed \(x:Y\)"
    ):
        find_driver("simchp")
    with pytest.raises(UnknownDriver, match="no driver is called ''"):
        find_driver("")
    with pytest.raises(UnknownDriver, match=r"'\.\./driver'"):
        find_driver("../driver")


def test_a_driver_that_cannot_be_imported(builtin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points(monkeypatch, ("gone", "no_such_package_here:Driver"))
    with pytest.raises(DriverError, match="'broken' cannot be imported: ModuleNotFoundError"):
        find_driver("broken")
    with pytest.raises(DriverError, match=r"'gone' \(no_such_package_here:Driver\) cannot be imported"):
        find_driver("gone")


def test_a_python_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mychip.py").write_text(SOURCE.format("fromfile"))
    monkeypatch.chdir(tmp_path)
    first, second = find_driver("./mychip.py"), find_driver("mychip.py")
    assert first.name == "fromfile"
    assert type(first) is type(second)
    for text, message in [
        ("x = 1\n", "has no class Driver"),
        ("1 / 0\n", "cannot be imported: ZeroDivisionError"),
        ("def (:\n", "cannot be imported: SyntaxError"),
        ("from bringup.driver import Driver\nclass A(Driver): pass\nclass B(Driver): pass\n", "several drivers"),
        (SOURCE.format("x") + "    def __init__(self): raise OSError('no bus')\n", "cannot be made: OSError: no bus"),
    ]:
        (tmp_path / f"bad{abs(hash(text))}.py").write_text(text)
        with pytest.raises(DriverError, match=message):
            find_driver(f"./bad{abs(hash(text))}.py")
    with pytest.raises(UnknownDriver, match=r"no driver file nothing\.py"):
        find_driver("./nothing.py")


def test_a_library_file_is_named_after_itself(tmp_path: Path) -> None:
    (tmp_path / "libmychip.so").write_text("not loaded before it is used")
    driver = find_driver(str(tmp_path / "libmychip.so"))
    assert isinstance(driver, CDriver)
    assert driver.name == "mychip"
    with pytest.raises(DriverError, match="cannot be loaded"):
        driver.device_count()


@pytest.mark.parametrize("name", ["upmem", "accel", "my_chip"])
def test_names_torch_can_use(name: str) -> None:
    import torch

    assert check_device_name(name, [torch.Tensor]) == name
    assert check_device_name(name, []) == name


@pytest.mark.parametrize("name", ["rv64", "npu2", "my-chip", "Chip", "", "chip\n"])
def test_names_torch_device_cannot_read(name: str) -> None:
    with pytest.raises(ValueError, match="only lower-case letters"):
        check_device_name(name)


@pytest.mark.parametrize("name", ["jit", "data", "cuda", "cpu", "fpga", "privateuseone"])
def test_names_that_are_taken_even_without_torch(name: str) -> None:
    with pytest.raises(ValueError, match="PyTorch already uses it"):
        check_device_name(name, [])


def test_names_taken_in_the_torch_at_hand() -> None:
    import torch

    for name, where in [
        ("einsum", "torch"),
        ("addmm_", "Tensor"),
        ("register_buffer", "Module"),
        ("nbytes", "UntypedStorage"),
    ]:
        with pytest.raises(ValueError, match=f"{where}.{name} exists already"):
            check_device_name(name, [torch] if where == "torch" else [getattr(torch, where, torch.nn.Module)])
        with pytest.raises(ValueError, match="exists already"):
            check_device_name(name)


def test_the_check_does_not_import_torch() -> None:
    code = "import sys; from bringup.driver.lookup import *; check_device_name('sim'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


BESIDE = """
from bringup.driver import Driver as Base
import {module}
from . import {module} as relative

class Driver(Base):
    name = "{module}"

    def device_count(self) -> int:
        import {module}_late
        return {module}.COUNT + relative.COUNT + {module}_late.COUNT
"""


def test_a_driver_file_imports_modules_beside_it(tmp_path: Path) -> None:
    before = list(sys.path)
    path = tmp_path / "chip.py"
    path.write_text(BESIDE.format(module="registers_of_chip"))
    (tmp_path / "registers_of_chip.py").write_text("COUNT = 3\n")
    (tmp_path / "registers_of_chip_late.py").write_text("COUNT = 1\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('hides the standard library')\n")
    assert find_driver(str(path)).device_count() == 7
    assert sys.path == [*before, str(tmp_path)], "the folder must come last: it hides nothing"
    sys.path.remove(str(tmp_path))


def test_a_missing_module_beside_the_file_is_named(tmp_path: Path) -> None:
    before = list(sys.path)
    path = tmp_path / "chip.py"
    path.write_text("import registers_that_are_not_there\n")
    with pytest.raises(DriverError, match="No module named 'registers_that_are_not_there'"):
        find_driver(str(path))
    assert sys.path == before


def test_two_drivers_of_one_name_are_both_named(tmp_path: Path) -> None:
    from bringup.torch_device import activation

    files = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        files.append(tmp_path / folder / "chip.py")
        files[-1].write_text(SOURCE.format("twin"))
    with pytest.raises(ValueError, match="'twin' is chosen twice") as refusal:
        activation._find([str(path) for path in files])
    assert all(str(path) in str(refusal.value) for path in files)
    with pytest.raises(ValueError, match=r"each from .*chip\.py: name it once"):
        activation._find([str(files[0]), str(files[0])])
