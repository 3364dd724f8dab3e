"""Bad input as a user meets it: an error that names what was wrong, and a process that goes on. Nothing aborts."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.c_compiler import compile_c

CHIP = Path(__file__).with_name("chip_driver.py").read_text()
HOSTMEM = Path(__file__).resolve().parents[2] / "examples" / "drivers" / "hostmem.c"
Run = Callable[..., Any]

#: In every program below: what `use` raises, as "class: message".
REFUSAL = """
import torch
def refusal(use):
    try:
        use()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("no error")
"""


@pytest.fixture
def run_chip(run_python: Run, tmp_path: Path) -> Run:
    """Runs code beside the smallest driver (chip_driver.py), changed by text replacements; returns what it printed."""

    def run(code: str, *changes: tuple[str, str]) -> str:
        source = CHIP
        for old, new in changes:
            assert old in source
            source = source.replace(old, new)
        (tmp_path / "chip.py").write_text(source)
        program = tmp_path / "program.py"
        program.write_text(REFUSAL + code)
        start = f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
        return run_python(start, env={"BRINGUP_DRIVERS": str(tmp_path / "chip.py")}).stdout

    return run


# ---- in this process ----
WRONG_INDEX: dict[str, Callable[[str], Any]] = {
    "ones": lambda where: torch.ones(2, device=where),
    "tensor": lambda where: torch.tensor([1, 2], device=where),
    "to": lambda where: torch.ones(2).to(where),
    "module": lambda where: torch.nn.Linear(2, 2).to(where),
    "module made there": lambda where: torch.nn.Linear(2, 2, device=where),
    "from another device": lambda where: torch.ones(2, device=where.split(":")[0]).to(where),
    "empty_like": lambda where: torch.empty_like(torch.ones(2), device=where),
    "generator": lambda where: torch.Generator(device=where),
    "seeded numbers": lambda where: torch.rand(2, device=where),
    "as default": lambda where: ones_by_default(where),
    "load": lambda where: torch.load(saved(torch.ones(2)), map_location=where),
}


def ones_by_default(where: str) -> torch.Tensor:
    with torch.device(where):
        return torch.ones(2)


def saved(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("name", WRONG_INDEX)
def test_a_wrong_index_is_named(name: str, device: str) -> None:
    count = torch.get_device_module(device).device_count()
    where = f"{device}:{count + 5}"
    torchs_own = f"{device.upper()} device {count + 5}"  # torch.load says it like this
    with pytest.raises((ValueError, RuntimeError), match=f"{where}|{torchs_own}"):
        WRONG_INDEX[name](where)
    assert torch.ones(2, device=device).sum().item() == 2


MISUSE: dict[str, tuple[Callable[[str], Any], type[Exception], str]] = {
    "numpy": (lambda d: torch.ones(2, device=d).numpy(), TypeError, "can't convert .* device type tensor to numpy"),
    "negative size": (lambda d: torch.empty(-1, device=d), RuntimeError, "negative dimension"),
    "view of a wrong size": (lambda d: torch.ones(3, device=d).view(2), RuntimeError, r"shape '\[2\]' is invalid"),
    "beyond the storage": (lambda d: torch.ones(3, device=d).as_strided((9,), (1,)), RuntimeError, "out of bounds"),
    "index": (lambda d: torch.ones(3, device=d)[5], IndexError, "index 5 is out of bounds"),
    "indices": (
        lambda d: torch.ones(3, device=d)[torch.tensor([7], device=d)],
        IndexError,
        "index 7 is out of (bounds|range)",
    ),
    "pinned": (lambda d: torch.ones(3, device=d, pin_memory=True), RuntimeError, "CPU tensors can be pinned"),
    "shapes": (lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d), RuntimeError, "2x3 and 2x3"),
    "quantized": (
        lambda d: torch.quantize_per_tensor(torch.ones(3, device=d), 1.0, 0, torch.qint8),
        (NotImplementedError, RuntimeError),
        "quantize",
    ),
    "strides": (lambda d: torch.empty_strided((2, 2), (1,), device=d), RuntimeError, "length of strides"),
    "storage of the CPU": (
        lambda d: torch.ones(2, device=d).set_(torch.ones(2).untyped_storage()),
        RuntimeError,
        "cpu",
    ),
    "leaf in place": (lambda d: torch.ones(2, device=d, requires_grad=True).add_(1), RuntimeError, "leaf Variable"),
    "several numbers": (lambda d: torch.ones(2, device=d).item(), RuntimeError, "2 elements"),
    "truth of several": (lambda d: bool(torch.ones(2, device=d)), RuntimeError, "ambiguous"),
    "layout": (lambda d: torch.empty(2, device=d, layout=torch._mkldnn), (NotImplementedError, RuntimeError), "."),
    "target of cross_entropy": (
        lambda d: torch.nn.functional.cross_entropy(torch.ones(1, 3, device=d), torch.tensor([9], device=d)),
        IndexError,
        "(Target|index) 9 is out of (bounds|range)",
    ),
    "embedding": (
        lambda d: torch.nn.functional.embedding(torch.tensor([9], device=d), torch.ones(2, 2, device=d)),
        IndexError,
        "index (9 is )?out of range",
    ),
    "singular": (lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)), RuntimeError, "singular"),
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_pytorchs_usual_error(name: str, device: str) -> None:
    use, kind, words = MISUSE[name]
    with pytest.raises(kind, match=words):
        use(device)
    assert torch.ones(2, device=device).sum().item() == 2


# ---- dtypes a chip does not have ----
FEW_DTYPES = ('DeviceSpec("chip", 1 << 26)', 'DeviceSpec("chip", 1 << 26, dtypes=("float32", "int64"))')


def test_a_dtype_the_chip_does_not_have(run_chip: Run) -> None:
    """Making such a tensor there is refused by name, in whatever way it is made; what the chip has works."""
    out = run_chip(
        """
import io
file = io.BytesIO()
torch.save(torch.ones(2, dtype=torch.float64), file)
file.seek(0)
x = torch.tensor([1.0, 2.0], device="chip")
uses = {
    "zeros": lambda: torch.zeros(2, dtype=torch.float64, device="chip"),
    "empty_strided": lambda: torch.empty_strided((2,), (1,), dtype=torch.float64, device="chip"),
    "rand": lambda: torch.rand(3, dtype=torch.float64, device="chip"),
    "tensor": lambda: torch.tensor([1.0], dtype=torch.float64, device="chip"),
    "to the chip": lambda: torch.ones(2, dtype=torch.float64).to("chip"),
    "conversion there": lambda: x.double(),
    "a module": lambda: torch.nn.Linear(2, 2).double().to("chip"),
    "load": lambda: torch.load(file, map_location="chip"),
    "zeros_like": lambda: torch.zeros_like(x, dtype=torch.float64),
    "new_tensor": lambda: x.new_ones(2, dtype=torch.float64),
}
for name, use in uses.items():
    print(f"{name}: {refusal(use)}")
assert ((x + 1).sum() * 2).item() == 10
assert (torch.arange(3, device="chip") + 1).tolist() == [1, 2, 3]
assert torch.accelerator.get_device_capability("chip")["supported_dtypes"] == {torch.float32, torch.int64}
""",
        FEW_DTYPES,
    )
    assert len(out.splitlines()) == 10
    for line in out.splitlines():
        assert "NotImplementedError: " in line, line
        assert "float64" in line or "Double" in line, line
        assert "chip:0" in line, line


def test_storages_of_a_chip_with_few_dtypes(run_chip: Run) -> None:
    """torch moves and copies storages as uint8; that is not a tensor of the user's."""
    run_chip(
        """
import copy, io, pickle
x, file = torch.tensor([1.5, 2.0], device="chip"), io.BytesIO()
torch.save({"x": x}, file)
for map_location in ("chip", "cpu", None):
    file.seek(0)
    assert torch.load(file, map_location=map_location)["x"].tolist() == [1.5, 2.0]
assert copy.deepcopy(x).tolist() == pickle.loads(pickle.dumps(x)).tolist() == [1.5, 2.0]
assert x.untyped_storage().clone().nbytes() == 8
copy.deepcopy(torch.nn.Linear(2, 2).to("chip"))
""",
        FEW_DTYPES,
    )


def test_printing_on_a_chip_without_float64_is_a_declared_gap(run_chip: Run) -> None:
    """torch converts to float64 on the device to find a column's width (docs/gaps.md); a copy on the CPU prints."""
    out = run_chip(
        """
x = torch.tensor([1.5, 2.0], device="chip")
try:
    print(x)
except NotImplementedError as error:
    assert "Double" in str(error) and "chip:0" in str(error), error
    print(x.cpu())
""",
        FEW_DTYPES,
    )
    assert out == "tensor([1.5000, 2.0000])\n"  # with the device in it when the gap is closed


# ---- devices that are gone ----
def test_a_closed_device_says_so(device: str, run_python: Run) -> None:
    out = run_python(
        REFUSAL
        + f"""
from bringup import _C
x = torch.ones(3, device={device!r})
_C.shut_down()
for use in (lambda: x + 1, lambda: x.cpu(), lambda: x[0].item(), lambda: x.add_(1),
            lambda: torch.ones(2, device={device!r}), lambda: x.clone(), lambda: x.copy_(torch.ones(3)),
            lambda: torch.rand(2, device={device!r}),
            lambda: torch.get_device_module({device!r}).Stream(), lambda: str(x), lambda: x.sum().backward()):
    print(refusal(use).replace(chr(10), " "))
torch.manual_seed(0)
assert torch.ones(2).sum() == 2
"""
    ).stdout.splitlines()
    assert len(out) == 11
    for line in out:
        assert "RuntimeError" in line, line
        assert "clos" in line, line
        assert device in line, line


def test_the_hardware_is_absent_at_open(run_chip: Run) -> None:
    """device_count says 2 and open finds nothing: the reason arrives each time, and the CPU is not disturbed."""
    out = run_chip(
        """
from torch.utils.data import DataLoader, TensorDataset
assert torch.chip.is_available()  # nobody has looked yet
if __name__ == "__main__":
    torch.manual_seed(3)
    w = torch.randn(3, requires_grad=True)
    (w * w).sum().backward()
    for _ in range(2):
        print(refusal(lambda: torch.ones(2, device="chip")))
    print(refusal(lambda: torch.ones(2).to("chip:1")))
    torch.chip.synchronize()  # nothing is queued on a device that was never opened
    print(refusal(lambda: torch.chip.get_device_name()))
    torch.manual_seed(3)
    v = torch.randn(3, requires_grad=True)
    (v * v).sum().backward()
    assert torch.equal(v.grad, w.grad)
    data = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=2)
    assert sum(batch.sum() for (batch,) in data) == 28
    assert torch.compile(lambda x: x.sin() + 1, backend="eager")(torch.zeros(2)).tolist() == [1, 1]
    with torch.random.fork_rng():
        torch.rand(2)
    torch.save(w, "/dev/null")
""",
        ('return DeviceSpec("chip", 1 << 26)', 'raise DriverAbsent("looked for /dev/chip0")'),
        ("import DeviceSpec", "import DeviceSpec, DriverAbsent"),
    )
    assert len(out.splitlines()) == 4
    for line in out.splitlines():
        assert line.startswith("RuntimeError: "), line
        assert "looked for /dev/chip0" in line, line
        assert "chip" in line, line


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["count", "open"])
def test_cpu_compilation_without_the_hardware(missing: str, run_chip: Run) -> None:
    changes = {
        "count": [("return 2", "return 0")],
        "open": [('return DeviceSpec("chip", 1 << 26)', 'raise OSError("no such chip")')],
    }
    run_chip(
        """
import torch._inductor.config
torch._inductor.config.compile_threads = 1
for backend in ("eager", "inductor"):
    compiled = torch.compile(lambda x: (x * 2 + 1).relu(), backend=backend)
    x = torch.randn(8, requires_grad=True)
    compiled(x).sum().backward()
    assert torch.equal(x.grad, (x.detach() * 2 + 1 > 0) * 2.0)
""",
        *changes[missing],
    )


# ---- drivers that fail at work ----
def test_a_copy_that_fails(run_chip: Run) -> None:
    """The driver's words arrive in Python from every kind of call, also from autograd's threads; then work goes on."""
    out = run_chip(
        """
import bringup
driver = bringup.active_drivers()[0].driver
kinds = [OSError, ValueError, NotImplementedError, MemoryError]  # SystemExit: test_driver_exceptions.py
for kind in kinds:
    x = torch.ones(3, device="chip", requires_grad=True)
    y = (x * 2).sum()
    driver.error = kind("link down")
    for use in (lambda: x + 1, lambda: x.cpu(), lambda: torch.ones(3).to("chip"), lambda: x.detach().clone(),
                lambda: x.detach().add_(1), lambda: y.item(), lambda: y.backward(), lambda: torch.sort(x),
                lambda: torch.rand(3, device="chip")):
        print(kind.__name__, refusal(use).replace(chr(10), " "))
    driver.error = None
    assert (x + 1).tolist() == [2, 2, 2]
""",
        (
            "        ctypes.memmove(dst, src, nbytes)",
            "        if getattr(self, 'error', None):\n            raise self.error\n"
            "        ctypes.memmove(dst, src, nbytes)",
        ),
    )
    assert len(out.splitlines()) == 4 * 9
    arrives = {"OSError": "RuntimeError", "MemoryError": "OutOfMemoryError"}
    for line in out.splitlines():
        raised, _, message = line.partition(" ")
        assert message.startswith(arrives.get(raised, raised)), line
        assert "link down" in message, line
        assert "chip" in message, line


def test_an_allocation_that_fails(run_chip: Run) -> None:
    out = run_chip(
        """
x = torch.ones(4, device="chip")
print(refusal(lambda: torch.ones(1 << 23, device="chip")).splitlines()[0])
assert (x + 1).sum().item() == 8
print(refusal(lambda: x.expand(1 << 22, 4).contiguous()).splitlines()[0])
assert (x + 1).sum().item() == 8
""",
        (
            "        block = ctypes",
            "        if nbytes > 1 << 22:\n            raise MemoryError('the tray is full')\n        block = ctypes",
        ),
    )
    for line in out.splitlines():
        assert line.startswith("OutOfMemoryError: "), line
        assert "chip:0" in line, line


def test_an_address_that_is_none(run_chip: Run) -> None:
    out = run_chip(
        """
import bringup
driver = bringup.active_drivers()[0].driver
for driver.answer in (0, 12345, -64, "here", None, 1 << 70):
    print(refusal(lambda: torch.ones(4, device="chip")).replace(chr(10), " "))
""",
        ("        return address", "        return self.answer"),
        ("del self.memory[address]", "pass"),
    )
    assert len(out.splitlines()) == 6
    for line in out.splitlines():
        assert "alloc" in line, line
        assert "chip" in line, line


# ---- C libraries that do not fit ----
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (".abi_version = BRINGUP_ABI_VERSION", ".abi_version = 99", "99"),
        (".struct_size = sizeof *driver", ".struct_size = 24", "struct_size"),
        (".copy = copy,", "", "copy"),
        ("abi_version != BRINGUP_ABI_VERSION", "abi_version != 99", "built for ABI version 2, not 2"),
        ("int32_t bringup_driver_create", "int32_t other_name", "bringup_driver_create"),
    ],
)
def test_a_library_that_does_not_fit(old: str, new: str, words: str, tmp_path: Path, run_python: Run) -> None:
    """`import torch` works and warns; who uses the device hears why there is none."""
    source = HOSTMEM.read_text()
    assert old in source
    library = compile_c(tmp_path, source.replace(old, new), "-shared", "-fPIC", "-Wno-unused", name="hostmem")
    run = run_python(
        REFUSAL + "import bringup\nassert torch.ones(2).sum() == 2\nprint(refusal(bringup.device))\n",
        env={"BRINGUP_DRIVERS": str(library)},
    )
    assert "RuntimeError" in run.stdout, run.stdout
    assert words in run.stdout, run.stdout
    assert "hostmem" in run.stdout, run.stdout
    assert "RuntimeWarning" in run.stderr, run.stderr
    assert words in run.stderr, run.stderr


def test_a_file_that_is_no_library(tmp_path: Path, run_python: Run) -> None:
    for name, content in (("libbroken.so", "not ELF"), ("broken.py", "def ("), ("nothing.py", "x = 1")):
        (tmp_path / name).write_text(content)
        run = run_python(
            REFUSAL + "import bringup\nassert torch.ones(2).sum() == 2\nprint(refusal(bringup.device))\n",
            env={"BRINGUP_DRIVERS": str(tmp_path / name)},
        )
        assert name in run.stdout, run.stdout
        assert "RuntimeWarning" in run.stderr
