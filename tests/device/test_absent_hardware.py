"""A driver whose hardware is not there: PyTorch on the CPU works as without bringup (rule: complete registration)."""

from __future__ import annotations

from pathlib import Path

import pytest

ABSENT = Path(__file__).with_name("chip_driver.py").read_text().replace("return 2", "return 0")
REASON = "\n    def absent_reason(self) -> str:\n        return 'looked for /dev/chip0'\n"


@pytest.fixture
def run(run_python, tmp_path: Path):
    (tmp_path / "chip.py").write_text(ABSENT + REASON)

    def run(code: str):
        path = tmp_path / "program.py"
        path.write_text("import torch\nassert not torch.chip.is_available()\n" + code)
        code = f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
        return run_python(code, env={"BRINGUP_DRIVERS": str(tmp_path / "chip.py")})

    return run


def test_the_cpu_works(run) -> None:
    run("""
torch.manual_seed(0)
x = torch.randn(4, requires_grad=True)
(x * x).sum().backward()
assert torch.equal(x.grad, 2 * x.detach())
with torch.random.fork_rng():
    torch.rand(2)
with torch.autocast("cpu"):
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
assert not torch.accelerator.is_available()
""")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_works(run, workers: int) -> None:
    run(f"""
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    data = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, num_workers={workers})
    assert sum(batch.sum() for (batch,) in data) == 28
""")


@pytest.mark.slow
def test_compile_works(run) -> None:
    run("""
compiled = torch.compile(lambda x: x.sin() + 1, backend="aot_eager")
x = torch.randn(3, requires_grad=True)
compiled(x).sum().backward()
assert torch.allclose(x.grad, x.detach().cos())
""")


def test_the_device_says_what_was_looked_for(run) -> None:
    run("""
import bringup
uses = [bringup.device, torch.chip.get_device_name, lambda: torch.chip.set_device(0)]
uses += [lambda: torch.empty(2, device="chip"), lambda: torch.ones(2).to("chip"), lambda: torch.Generator("chip")]
for use in uses:
    try:
        use()
    except RuntimeError as error:
        assert "no chip device: looked for /dev/chip0" in str(error), error
    else:
        raise AssertionError("no error")
""")


def test_every_use_of_a_driver_that_failed_to_activate_says_why(run_python, tmp_path) -> None:
    """With the real core: torch.ones and .to() reach C++ before any function of torch.<name>."""
    file = tmp_path / "chip.py"
    file.write_text("import nonesuch\n")
    run_python(
        """
import warnings
warnings.simplefilter("ignore")
import torch, pytest
x = torch.ones(2)
uses = [
    lambda: torch.ones(1, device="chip"),
    lambda: torch.empty(0, device="chip:0"),
    lambda: torch.randn(2, device="chip:1"),
    lambda: torch.tensor([1], device="chip"),
    lambda: x.to("chip:0"),
    lambda: x.chip(),
    lambda: torch.nn.Linear(2, 2).to("chip"),
    lambda: torch.Generator("chip"),
    lambda: torch.chip.Stream(),
    lambda: torch.chip.set_device(0),
]
for use in uses:
    with pytest.raises(RuntimeError, match="No module named 'nonesuch'") as raised:
        use()
    assert isinstance(raised.value.__cause__.__cause__, ModuleNotFoundError), raised.value.__cause__
assert (x * 2).sum() == 4
""",
        env={"BRINGUP_DRIVERS": str(file)},
    )


HEAP = """
import ctypes
import bringup

class Driver(bringup.Driver):
    name = "heap"
    def __init__(self): self.buffers = {{}}{init}
    def device_count(self): {count}
    def open(self, device): return bringup.DeviceSpec(name="Host heap", memory_bytes=1 << 30, alignment=16)
    def alloc(self, {alloc}): raise MemoryError
    def free(self, device, address): pass
    def copy(self, device, dst, src, nbytes, kind, stream): pass
"""
GOOD = {"init": "", "count": "return 1", "alloc": "device, nbytes"}


@pytest.mark.parametrize(
    ("wrong", "words", "cause"),
    [
        ({"count": "raise OSError('no bus')"}, "no heap device: device_count() failed: OSError: no bus", "OSError"),
        ({"count": "return '1'"}, "device_count() failed: TypeError: must return an int, not str", "TypeError"),
        ({"count": "return -1"}, "device_count() failed: ValueError: must return an int from 0", "ValueError"),
        ({"count": "return 1000"}, "driver 'heap' has 1000 devices", "ValueError"),
        ({"alloc": "nbytes"}, "Driver.alloc takes (nbytes); it is called as alloc(device, nbytes)", "TypeError"),
        ({"init": "; open('/dev/heap0')"}, "cannot be made: FileNotFoundError", "DriverError"),
    ],
)
def test_a_driver_that_failed_is_known_by_the_name_in_its_class(run_python, tmp_path, wrong, words, cause) -> None:
    """Whatever its file is called; torch's own "Expected one of cpu, cuda, …" would hide the reason."""
    file = tmp_path / "mychip.py"
    file.write_text(HEAP.format(**{**GOOD, **wrong}))
    run_python(
        """
import sys, warnings
warnings.simplefilter("ignore")
import torch, bringup, pytest
words, cause = sys.argv[1:]
for use in (lambda: torch.ones(1, device="heap"), lambda: torch.nn.Linear(2, 2).to("heap"), bringup.device):
    with pytest.raises(RuntimeError) as raised:
        use()
    assert words in str(raised.value), raised.value
    assert type(raised.value.__cause__).__name__ == cause, raised.value.__cause__
""",
        words,
        cause,
        env={"BRINGUP_DRIVERS": str(file)},
    )
