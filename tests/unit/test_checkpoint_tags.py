"""Which tag a checkpoint gets and where a tag is restored, with a stand-in for the C++ core."""

from __future__ import annotations

from pathlib import Path

from tests.unit.test_activation import DRIVER

CODE = """
from tests.fake_core import core
import torch, pytest
from types import SimpleNamespace
from bringup.torch_device import serialization

class Storage:
    def __init__(self, device): self.device = torch.device(device)
    def to(self, device): return str(device)

def tag(device): return serialization.location_of(Storage(device))
def restore(location): return serialization.restore(Storage("cpu"), location)
"""


def write(folder: Path, name: str, count: int) -> str:
    path = folder / f"{name}.py"
    path.write_text(DRIVER.format(name=name, count=count, extra="pass"))
    return str(path)


def test_several_drivers(run_python, tmp_path: Path) -> None:
    drivers = f"{write(tmp_path, 'one', 2)},{write(tmp_path, 'two', 3)},{write(tmp_path, 'none', 0)}"
    code = """
assert [tag(f"accel:{i}") for i in range(5)] == ["one:0", "one:1", "two:0", "two:1", "two:2"]
assert tag("cpu") is None
assert restore("one:1") == "accel:1" and restore("two") == "accel:2" and restore("two:2") == "accel:4"
assert restore("accel:3") is None and restore("cpu") is None and restore("cuda:0") is None
with pytest.raises(RuntimeError, match="saved on two:3, and two has 3 device.*map_location"):
    restore("two:3")
with pytest.raises(RuntimeError, match="saved on none:0, and no none device.*map_location"):
    restore("none:0")
"""
    run_python(CODE + code, env={"BRINGUP_DRIVERS": drivers})


def test_one_driver(run_python, tmp_path: Path) -> None:
    code = """
assert tag("one:1") == "one:1" and restore("one:1") is None  # torch's own package does it
assert restore("accel:1") == "one:1"
with pytest.raises(RuntimeError, match="saved on sim:0.*BRINGUP_DRIVERS=sim"):
    serialization._refuse_inactive_driver(Storage("cpu"), "sim:0")
assert serialization._refuse_inactive_driver(Storage("cpu"), "elsewhere:0") is None
"""
    run_python(CODE + code, env={"BRINGUP_DRIVERS": write(tmp_path, "one", 2)})
