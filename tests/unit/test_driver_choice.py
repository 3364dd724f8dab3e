"""Which driver a process uses that chose none: an installed one that has a device, else ``sim``."""

from __future__ import annotations

from pathlib import Path

import pytest

DRIVER = """
from bringup import DeviceSpec, Driver as Base

class Driver(Base):
    name = {name!r}
    def device_count(self): {count}
    def open(self, device): return DeviceSpec(name="chip", memory_bytes=1 << 20)
    def alloc(self, device, nbytes): return 64
    def free(self, device, address): pass
    def copy(self, device, dst, src, nbytes, kind, stream): pass
"""


@pytest.fixture
def install(tmp_path: Path):
    """Writes a distribution as pip would leave it: a module and the metadata with its entry points."""

    def install(name: str, count: str = "return 2", backend: str | None = None, driver: bool = True) -> None:
        (tmp_path / f"{name}_driver.py").write_text(DRIVER.format(name=name, count=count))
        info = tmp_path / f"bringup_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: bringup-{name}\nVersion: 1.0\nRequires-Dist: bringup\n"
        )
        lines = [f"[bringup.drivers]\n{name} = {name}_driver:Driver\n"] if driver else []
        if backend is not None:
            (tmp_path / f"{name}_backend.py").write_text(backend)
            lines.append(f"[torch.backends]\n{name} = {name}_backend:start\n")
        (info / "entry_points.txt").write_text("".join(lines))

    return install


@pytest.fixture
def run(run_python, tmp_path: Path):
    def run(code: str, fresh: bool = False, **env: str | None):
        code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom tests.fake_core import core\n{code}"
        return run_python(code, env={"BRINGUP_DRIVERS": None, "BRINGUP_DEBUG": None, **env}, fresh=fresh)

    return run


SILENT = "import warnings\nwarnings.simplefilter('error')\n"


def test_an_installed_driver_with_a_device_is_used(run, install) -> None:
    install("chip")
    run(
        SILENT
        + """
import os, torch, bringup
assert torch.device("chip:1").index == 1 and [d.name for d in bringup.active_drivers()] == ["chip"]
assert os.environ["BRINGUP_DRIVERS"] == "chip"  # for child processes
reason = bringup.driver.in_use.choice_reason()
assert "only installed driver" in reason and "bringup-chip" in reason
assert bringup.activate("chip") == torch.device("chip:0")
"""
    )


@pytest.mark.parametrize("explicit", ["environment", "activate"])
def test_an_explicit_choice_goes_first(run, install, explicit: str) -> None:
    install("chip")
    call = "import bringup\nbringup.activate('sim')\n" if explicit == "activate" else ""
    variables = {"BRINGUP_DRIVERS": "sim"} if explicit == "environment" else {}
    run(
        SILENT + call + "import torch, bringup\nassert [d.name for d in bringup.active_drivers()] == ['sim']",
        **variables,
    )


def test_an_installed_driver_without_a_device_is_passed_over(run, install) -> None:
    install("chip", count="return 0")
    run(
        SILENT
        + """
import torch, bringup
assert [d.name for d in bringup.active_drivers()] == ["sim"]
assert "chip from bringup-chip: 0 device(s)" in bringup.driver.in_use.choice_reason()
"""
    )


@pytest.mark.parametrize(
    ("count", "words"), [("raise OSError('bus error')", "OSError: bus error"), ("import nonesuch", "nonesuch")]
)
def test_a_probe_that_fails_warns_once_and_keeps_sim(run, install, count: str, words: str) -> None:
    install("chip", count=count)
    run(f"""
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch, bringup
    bringup.device()
said = [str(w.message) for w in caught if "'chip' (bringup-chip) is not used" in str(w.message)]
assert len(said) == 1 and {words!r} in said[0], said
assert [d.name for d in bringup.active_drivers()] == ["sim"]
import os
assert os.environ["BRINGUP_DRIVERS"] == "sim"  # child processes do not ask, and warn, again
""")


def test_a_failed_probe_beside_a_driver_that_is_used(run, install) -> None:
    install("bad", count="raise OSError('bus error')")
    install("chip")
    run("""
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch, bringup
[said] = [str(w.message) for w in caught if "'bad' (bringup-bad) is not used" in str(w.message)]
assert said.endswith("BRINGUP_DRIVERS=chip silences this"), said
assert [d.name for d in bringup.active_drivers()] == ["chip"]
""")


def test_two_installed_drivers_are_an_error_at_first_use(run, install) -> None:
    install("chip")
    install("tile")
    run("""
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
assert any("BRINGUP_DRIVERS=chip or BRINGUP_DRIVERS=tile" in str(w.message) for w in caught)
import bringup, pytest
assert torch.ones(2).sum() == 2 and not torch.chip.is_available()
for use in (bringup.device, lambda: torch.chip.set_device(0), lambda: bringup.activate("tile")):
    with pytest.raises(RuntimeError, match="2 installed drivers have a device: chip .from bringup-chip.") as raised:
        use()
    assert type(raised.value.__cause__).__name__ == "SeveralDrivers"
""")


@pytest.mark.parametrize("name", ["aaa", "zzz"])  # PyTorch calls entry points in the order in which it finds them
@pytest.mark.parametrize("driver", [True, False])
def test_a_package_may_activate_from_its_own_entry_point(run, install, name: str, driver: bool) -> None:
    start = f"def start():\n    import bringup, {name}_driver\n    bringup.activate({name}_driver.Driver)\n"
    install(name, backend=start, driver=driver)
    run(SILENT + f"import torch, bringup\nassert [d.name for d in bringup.active_drivers()] == ['{name}']")


def test_a_package_that_comes_too_late_does_not_take_torch_down(run, install, tmp_path: Path) -> None:
    install("zzz", backend="def start():\n    import bringup, zzz_driver\n    bringup.activate(zzz_driver.Driver)\n")
    metadata = tmp_path / "bringup_zzz-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Requires-Dist: bringup\n", ""))
    run(
        """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
import bringup
assert torch.ones(2).sum() == 2 and [d.name for d in bringup.active_drivers()] == ["sim"]
assert any("bringup.activate was ignored" in str(w.message) for w in caught), [str(w.message) for w in caught]
""",
        fresh=True,  # torch itself says whether it is being imported
        BRINGUP_DRIVERS="sim",
    )


def test_what_was_asked_for_and_failed_raises_on_first_use_with_its_cause(run, tmp_path: Path) -> None:
    file = tmp_path / "chip.py"
    file.write_text("import nonesuch\n")
    run(
        """
import warnings
warnings.simplefilter("ignore")
import torch, bringup, pytest
torch.manual_seed(0)
x = torch.ones(2, requires_grad=True)
x.sum().backward()
for use in (lambda: torch.chip.get_device_name(), lambda: torch.chip.current_stream(), bringup.device):
    with pytest.raises(RuntimeError, match="nonesuch") as raised:
        use()
    cause = raised.value.__cause__
    assert isinstance(cause.__cause__, ModuleNotFoundError), cause
""",
        BRINGUP_DRIVERS=str(file),
    )
