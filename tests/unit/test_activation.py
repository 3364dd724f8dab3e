"""Activation: who chooses the drivers, in which order things are imported, and what goes wrong how.

Every test is a process of its own, with a stand-in for the C++ core.
"""

from __future__ import annotations

from pathlib import Path

import pytest

DRIVER = """
from bringup import DeviceSpec, Driver as Base, DriverAbsent

class Driver(Base):
    name = {name!r}
    {extra}
    def device_count(self): return {count}
    def open(self, device): raise DriverAbsent("/dev/chip0 does not exist")
    def alloc(self, device, nbytes): return 64
    def free(self, device, address): pass
    def copy(self, device, dst, src, nbytes, kind, stream): pass
"""


@pytest.fixture
def driver_file(tmp_path: Path):
    def write(name: str = "chip", count: int = 2, extra: str = "pass") -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(DRIVER.format(name=name, count=count, extra=extra))
        return str(path)

    return write


@pytest.fixture
def run(run_python):
    """Runs code after the stand-in for the core is in place; torch and bringup are imported by the code itself."""

    def run(code: str, drivers: str | None = None, **env: str | None):
        environment = {
            "BRINGUP_DRIVERS": drivers,
            "BRINGUP_FALLBACK": None,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": None,
            **env,
        }
        return run_python(f"from tests.fake_core import core\n{code}", env=environment)

    return run


# ---- who chooses ----
def test_the_environment_chooses(run, driver_file) -> None:
    run(
        """
import torch
assert torch.device("chip:1").index == 1
assert torch.chip.device_count() == 2 and torch.chip.is_available()
assert core.attached == 1 and not core.opened
assert torch.empty(0).is_chip is False and hasattr(torch.nn.Module, "chip")
import torch.chip.amp, torch.chip.random
import bringup
assert bringup.device("chip", index=1) == torch.device("chip:1")
assert [d.name for d in bringup.active_drivers()] == ["chip"]
""",
        driver_file(),
    )


def test_activate_before_torch_records_the_choice(run, driver_file) -> None:
    run(f"""
import sys, bringup
assert bringup.activate({driver_file()!r}) is None
assert "torch" not in sys.modules
import torch
assert torch.chip.device_count() == 2
assert bringup.activate({driver_file()!r}) == torch.device("chip:0") == bringup.activate("chip")
""")


def test_a_class_can_be_activated_in_one_file(run) -> None:
    run(f"""
{DRIVER.format(name="mychip", count=1, extra="pass")}
import bringup
bringup.activate(Driver)
import torch
assert torch.mychip.is_available() and bringup.activate(Driver) == torch.device("mychip:0")
""")


def test_torch_first_and_autoload_off(run, driver_file) -> None:
    run(
        f"""
import torch
assert not core.attached
import bringup
assert bringup.activate({driver_file()!r}) == torch.device("chip:0")
""",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_autoload_off_and_bringup_first(run, driver_file) -> None:
    run(
        f"""
import bringup, sys
device = bringup.activate({driver_file()!r})
assert str(device) == "chip:0" and "torch" in sys.modules
""",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


@pytest.mark.parametrize(
    "name",
    [
        "torch_device.device_module",
        "torch_device.streams",
        "torch_device.random",
        "torch_device.sharing",
        "vendor.library_ops",
        "torch_device.ledger",
    ],
)
def test_any_module_of_ours_may_come_first(run, driver_file, name: str) -> None:
    run(
        f"""
import bringup.{name}
import torch
assert torch.chip.is_available() and torch.chip.Stream.__module__ == "bringup.torch_device.streams"
import bringup.torch_device.device_module
assert torch.chip is bringup.torch_device.device_module and torch.chip.streams.Stream is torch.chip.Stream
""",
        driver_file(),
    )


def test_device_name_and_name_may_differ(run, driver_file) -> None:
    run(
        """
import torch, bringup
assert torch.board.device_count() == 2
assert bringup.device("rv64") == bringup.device("board") == torch.device("board:0")
""",
        driver_file("rv64", extra="device_name = 'board'"),
    )


def test_several_drivers_share_accel(run, driver_file) -> None:
    run(
        """
import torch, bringup
assert torch.accel.device_count() == 5
assert bringup.device("one", 1) == torch.device("accel:1")
assert bringup.device("two") == torch.device("accel:2")
try:
    bringup.device("two", 3)
except ValueError as error:
    assert "two has 3 device(s)" in str(error)
else:
    raise AssertionError
""",
        ",".join([driver_file("one", 2), driver_file("two", 3)]),
    )


def test_another_choice_is_an_error_that_names_the_variable(run, driver_file) -> None:
    run(
        """
import torch, bringup, pytest
with pytest.raises(RuntimeError, match="active with chip.*BRINGUP_DRIVERS=other"):
    bringup.activate("other")
with pytest.raises(RuntimeError, match="BRINGUP_DRIVERS"):
    bringup.activate("chip", "other")
with pytest.raises(ValueError, match="BRINGUP_DRIVERS=chip,other"):
    bringup.device("other")
""",
        driver_file(),
    )


def test_environment_and_activate_must_agree_in_any_import_order(run, driver_file) -> None:
    code = """
import bringup, pytest
with pytest.raises(RuntimeError, match="BRINGUP_DRIVERS"):
    bringup.activate("other")
"""
    run(code, driver_file())
    run("import torch" + code, driver_file())


def test_a_spawned_process_makes_the_same_choice(run, driver_file) -> None:
    run(f"""
import os, bringup
bringup.activate(os.path.relpath({driver_file()!r}))
assert os.environ["BRINGUP_DRIVERS"] == {driver_file()!r}
""")


# ---- staying out of the way ----
def test_another_accelerator_keeps_us_away_until_asked(run, driver_file) -> None:
    run(
        f"""
import torch
torch.backends.cuda.is_built = lambda: True
torch.cuda.device_count = lambda: 1
from bringup.driver import in_use
from bringup.torch_device import activation
activation.autoload()
assert not core.attached and in_use.activation_error() is None
import bringup
assert bringup.activate({driver_file()!r}) == torch.device("chip:0")
""",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_the_environment_asks_beside_another_accelerator(run, driver_file) -> None:
    run(
        """
import torch
torch.backends.cuda.is_built = lambda: True
torch.cuda.device_count = lambda: 1
from bringup.driver import in_use
from bringup.torch_device import activation
activation.autoload()
assert torch.chip.is_available()
""",
        driver_file(),
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_another_backend_was_first(run, driver_file) -> None:
    run(
        f"""
import torch, bringup, pytest
torch.utils.rename_privateuse1_backend("npu")
from bringup.driver import in_use
from bringup.torch_device import activation
activation.autoload()
assert in_use.activation_error() is None
with pytest.raises(RuntimeError, match="'npu' has taken it"):
    bringup.activate({driver_file()!r})
""",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


# ---- errors never break `import torch` ----
STORED = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
import bringup, pytest
assert torch.ones(2).sum() == 2
assert [w for w in caught if {match!r} in str(w.message)], [str(w.message) for w in caught]
assert {match!r} in str(bringup.activation_error())
with pytest.raises(RuntimeError) as raised:
    bringup.device()
assert {match!r} in str(raised.value)
with pytest.raises(RuntimeError) as raised:
    bringup.fallbacks()
"""


def test_an_unknown_driver(run) -> None:
    run(STORED.format(match="no driver is called 'nonsense'"), "nonsense")


def test_an_unknown_driver_under_w_error(run_python) -> None:
    result = run_python(
        "import torch; print(torch.ones(2).sum().item())",
        env={"BRINGUP_DRIVERS": "nonsense", "PYTHONWARNINGS": "error::RuntimeWarning"},
    )
    assert result.stdout == "2.0\n"


@pytest.mark.parametrize("name", ["rv64", "my-chip", "Chip", "jit", "data", "mm"])
def test_names_torch_cannot_use(run, driver_file, name: str) -> None:
    run(STORED.format(match=f"'{name}' cannot be a torch device name"), driver_file(name))


def test_a_driver_that_exits(run, tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("import sys; sys.exit('no licence')")
    run(STORED.format(match="no licence"), str(path))


def test_an_empty_choice(run) -> None:
    run(STORED.format(match="names no driver"), " , ")


def test_the_same_driver_twice(run, driver_file) -> None:
    run(STORED.format(match="chosen twice"), f"{driver_file()},{driver_file()}")


def test_a_bad_fallback_policy(run, driver_file) -> None:
    run(
        STORED.format(match="BRINGUP_FALLBACK is one of allow, warn, error, not 'maybe'"),
        driver_file(),
        BRINGUP_FALLBACK="maybe",
    )


def test_a_switch_that_is_neither_on_nor_off(run, driver_file) -> None:
    run(
        STORED.format(match="BRINGUP_DEFAULT_BACKEND is on or off, not 'maybe'"),
        driver_file(),
        BRINGUP_DEFAULT_BACKEND="maybe",
    )


def test_a_binary_for_another_torch(run, driver_file) -> None:
    code = "core.TORCH_VERSION = '2.1.0'\n" + STORED.format(match="bringup was built for torch 2.1, this is torch")
    run(code, driver_file())


def test_a_binary_that_names_another_torch_is_not_loaded(tmp_path: Path) -> None:
    from importlib.machinery import EXTENSION_SUFFIXES

    from bringup.torch_device import core_binary

    binary = tmp_path / f"_C{EXTENSION_SUFFIXES[0]}"
    binary.write_bytes(b"\x7fELF" + b"\0" * 5000 + b"bringup-torch=2.11.0;\0")
    with pytest.raises(RuntimeError, match=r"built for torch 2\.11, this is torch 2\.13\.0\+cpu.*pip install"):
        core_binary._import("2.13.0+cpu", tmp_path)


def test_nobody_asked_so_nobody_is_warned(run) -> None:
    run("""
core.TORCH_VERSION = "2.1.0"
import warnings
warnings.simplefilter("error")
import torch, bringup, pytest
assert not torch.sim.is_available() and torch.sim.device_count() == 0
torch.manual_seed(0)
for use in (
    bringup.device,
    lambda: torch.ones(2, device="sim"),
    lambda: torch.ones(2).to("sim"),
    lambda: torch.nn.Linear(2, 2).to("sim"),
):
    with pytest.raises(RuntimeError, match="built for torch 2.1, .*Rebuild it with"):
        use()
assert str(torch.ones(2)) == "tensor([1., 1.])"
""")


def test_a_failed_choice_can_be_corrected(run, driver_file) -> None:
    run(
        f"""
import torch, bringup, pytest
with pytest.raises(RuntimeError, match="no driver is called"):
    bringup.activate("nonsense")
assert bringup.activate({driver_file()!r}) == torch.device("chip:0")
""",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_arguments_that_are_no_drivers(run) -> None:
    run("""
import bringup, pytest
with pytest.raises(TypeError, match="needs a driver"):
    bringup.activate()
with pytest.raises(TypeError, match="not 3"):
    bringup.activate(3)
class Nameless(bringup.Driver): pass
with pytest.raises(ValueError, match="Nameless has no name"):
    bringup.activate(Nameless)
""")


# ---- hardware that is not there ----
def test_absent_hardware_says_what_was_looked_for(run, driver_file) -> None:
    run(
        """
import torch, bringup, pytest
assert torch.device("chip").type == "chip" and not torch.chip.is_available()
torch.manual_seed(0)
assert torch.chip.memory_stats() == {} and torch.chip.get_amp_supported_dtype()
torch.chip.synchronize(); torch.chip.empty_cache(); torch.chip.manual_seed(1)
for ask in (bringup.device, lambda: torch.chip.get_device_name(0), lambda: torch.chip.set_device(0)):
    with pytest.raises(RuntimeError, match="no chip device: /dev/chip0 does not exist"):
        ask()
""",
        driver_file(count=0, extra="def absent_reason(self): return '/dev/chip0 does not exist'"),
    )


# ---- the module, as far as it needs no device ----
def test_device_arguments(run, driver_file) -> None:
    run(
        """
import torch, pytest
assert torch.chip.current_device() == 0
with torch.chip.device("chip:1"):
    assert torch.chip.current_device() == 1
    with torch.chip.device(-1), torch.chip.device(None), torch.chip.device_of(torch.ones(1)):
        assert torch.chip.current_device() == 1
assert torch.chip.current_device() == 0
torch.chip.set_device(torch.device("chip", 1))
torch.chip.set_device(-1)
assert torch.chip.current_device() == 1
with pytest.raises(ValueError, match="no device chip:2: 2 device"):
    torch.chip.set_device(2)
with pytest.raises(ValueError, match="expected a chip device, got cuda:0"):
    torch.chip.set_device("cuda:0")
with pytest.raises(TypeError, match="not float"):
    torch.chip.set_device(1.0)
for fraction, kind in ((2, ValueError), ("1", TypeError)):
    with pytest.raises(kind):
        torch.chip.set_per_process_memory_fraction(fraction)
""",
        driver_file(),
    )


def test_seeds_before_the_device_is_opened(run, driver_file) -> None:
    run(
        """
import torch
torch.manual_seed(7)
assert [g.initial_seed() for g in torch.chip.default_generators] == [7, 7]
state = torch.chip.get_rng_state_all()
torch.chip.seed_all()
assert torch.chip.initial_seed() != 7
torch.chip.set_rng_state_all(state)
with torch.random.fork_rng(devices=[0, 1], device_type="chip"):
    torch.chip.manual_seed_all(9)
assert torch.equal(torch.chip.get_rng_state("chip:1"), state[1])
assert len(torch.chip.default_generators[:]) == 2 and not core.opened
""",
        driver_file(),
    )


def test_import_costs_little(run_python, driver_file) -> None:
    """CPU seconds of what autoload adds in Python (the binary comes on top), best of 3."""
    code = """
import torch, time
import tests.fake_core
before = time.process_time()
import bringup
bringup.activate({driver!r})
print(time.process_time() - before)
"""
    env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "BRINGUP_DRIVERS": None}
    seconds = min(float(run_python(code.format(driver=driver_file()), env=env).stdout) for _ in range(3))
    assert seconds < 0.1


def test_nothing_heavy_is_imported(run, driver_file) -> None:
    run(
        """
import sys, torch
heavy = {"rich", "typer", "torch._dynamo", "torch._inductor", "pytest"} & set(sys.modules)
assert not heavy, heavy
""",
        driver_file(),
    )


def test_import_torch_does_not_import_what_makes_kernels(run) -> None:
    """0.06 s is what it may add: the emitter and the lowerings wait for the first device."""
    run(
        "import sys, torch\n"
        "assert 'bringup._C' in sys.modules\n"
        "heavy = ('bringup.ir', 'bringup.targets.c.render', 'bringup.lowering', 'bringup.graph.fusion', 'sympy')\n"
        "found = [name for name in sys.modules if name.startswith(heavy)]\n"
        "assert not found, found\n"
    )
