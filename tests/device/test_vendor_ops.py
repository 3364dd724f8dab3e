"""The op table on a device: routing, forms, gradients, errors; a small library of the test's own, and OpenBLAS."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.c_compiler import compile_c, search_path
from tests.device.vendor_chip import LIBRARY, TABLE

ROOT = Path(__file__).resolve().parents[2]
BLAS = str(ROOT / "examples" / "vendor_blas" / "blas_driver.py")
needs_blas = pytest.mark.skipif(
    not importlib.util.find_spec("scipy_openblas32"), reason="OpenBLAS is not installed: pip install 'bringup[blas]'"
)

PREAMBLE = """
import ctypes, os, sys, pytest, torch, bringup
library = ctypes.CDLL(os.path.join(os.environ["VENDOR_CHIP"], "libchip.so"))
count = ctypes.c_int64.in_dll(library, "calls")
device = bringup.device("vendor_chip")
driver = bringup.active_drivers()[0].driver

def served(function, *args, **kwargs):
    '''The result, and whether the chip's library made it.'''
    before = count.value
    result = function(*args, **kwargs)
    torch.accelerator.synchronize()
    return result, count.value > before

torch.manual_seed(0)
a, b = torch.randn(5, 3), torch.randn(3, 2)
x, y = a.to(device), b.to(device)
"""


@pytest.fixture(scope="module")
def chip(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("chip")
    compile_c(folder, LIBRARY, "-shared", "-fPIC", "-O1", name="chip")
    (folder / "ops.toml").write_text(TABLE)
    shutil.copy(Path(__file__).with_name("vendor_chip.py"), folder / "vendor_chip.py")
    return folder


@pytest.fixture
def run(run_python, chip: Path):
    def run(code: str, **options: Any):
        env = {"BRINGUP_DRIVERS": str(chip / "vendor_chip.py"), "VENDOR_CHIP": str(chip), "BRINGUP_FALLBACK": "error"}
        return run_python(PREAMBLE + code, env=env, **options)

    return run


def test_calls_are_routed_by_shape_dtype_and_layout(run) -> None:
    run("""
for function, args, by_chip in [
    (torch.mm, (a, b), True),
    (torch.mm, (a[:3], b), False),                 # when
    (torch.mm, (a.double(), b.double()), False),   # dtypes
    (torch.mm, (torch.randn(3, 4).t(), b), False),  # layouts
    (torch.add, (a, a), True),
    (torch.add, (a, a[0]), False),
    (torch.add, (a, 1), False),
]:
    there = [v.to(device) if isinstance(v, torch.Tensor) else v for v in args]
    result, chips = served(function, *there)
    assert chips == by_chip, (function, [getattr(v, "shape", v) for v in args])
    torch.testing.assert_close(result.cpu(), function(*[v.cpu() if isinstance(v, torch.Tensor) else v for v in there]))
""")


def test_forms_and_gradients_of_a_pytorch_op(run) -> None:
    run("""
out = torch.empty(0, device=device)
result, chips = served(torch.mm, x, y, out=out)
assert chips and result is out
torch.testing.assert_close(out.cpu(), a @ b)
z = x.clone()
result, chips = served(z.add_, x, alpha=3)
assert chips and result is z
torch.testing.assert_close(z.cpu(), 4 * a)
p = x.clone().requires_grad_()
(p @ y).sum().backward()
torch.testing.assert_close(p.grad.cpu(), torch.ones(5, 2) @ b.t())
with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
    torch.mm(x, x)
""")


def test_a_hit_runs_no_python(run) -> None:
    run("""
for _ in range(2):
    torch.mm(x, y)
info = bringup._C.kernel_cache_info()
seen = []
sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code.co_name) if event == "call" else None)
torch.mm(x, y)
sys.setprofile(None)
after = bringup._C.kernel_cache_info()
assert (after["hits"], after["misses"]) == (info["hits"] + 1, info["misses"])
assert seen == [], seen
before = count.value
for n in range(4, 60):  # new shapes: no new kernel
    torch.mm(torch.ones(n, 3, device=device), y)
assert count.value - before == 56
from bringup.vendor.routing import chosen
assert sum(chosen.values()) == 1, chosen
""")


def test_work_runs_in_stream_order(run) -> None:
    run("""
stream = torch.Stream(device)
with stream:
    torch.get_device_module(device)._sleep(50)
    z = x.clone()
    z.mul_(2)
    result = torch.mm(z, y)
    z.zero_()
stream.synchronize()
torch.testing.assert_close(result.cpu(), 2 * a @ b)
""")


def test_a_new_op_with_two_outputs(run) -> None:
    run("""
(low, high), chips = served(torch.ops.chip.split, x)
assert chips
torch.testing.assert_close((low + high).cpu(), a)
(low, high), chips = served(torch.ops.chip.split, x.t())  # not contiguous: copied first
assert chips
torch.testing.assert_close((low + high).cpu(), a.t())
low, high = torch.empty(3, 5, device=device).t(), torch.empty(5, 3, device=device)
result, chips = served(torch.ops.chip.split.out, x, low=low, high=high)  # and copied back
assert chips and low.stride() == (1, 5)
torch.testing.assert_close((low + high).cpu(), a)
low, high = torch.empty_like(x), torch.empty(0, device=device)
torch.ops.chip.split.out(x, low=low, high=high)
torch.testing.assert_close((low + high).cpu(), a)
assert torch.ops.chip.split(torch.empty(3, device="meta"))[1].shape == (3,)
with pytest.raises(NotImplementedError, match="chip::split is not implemented for float64, only for float32"):
    torch.ops.chip.split(x.double())
""")


def test_python_functions(run) -> None:
    done = run("""
import bringup.vendor.install as activation
calls = sys.modules[activation.active_tables().entries["vendor_chip"][3].function.__module__].calls
result = torch.ops.chip.twice(x)
assert calls == ["twice"], calls
torch.testing.assert_close(result.cpu(), 2 * a)
torch.testing.assert_close(torch.ops.chip.twice(x.double()).cpu(), 2 * a.double())  # the reference, on the device
assert calls == ["twice"], calls
z = x.clone()
torch.ops.chip.twice_(z)
torch.testing.assert_close(z.cpu(), 2 * a)
with pytest.raises(RuntimeError, match=r"chip::twice requires x.ndim == 2; x has shape \\(3,\\)"):
    torch.ops.chip.twice(x[0])
del calls[:]
torch.testing.assert_close((-x).cpu(), -a)
assert calls == ["neg"]
torch.testing.assert_close((-x.double()).cpu(), -a.double())  # a kernel
torch.testing.assert_close((-x.t()).cpu(), -a.t())
assert calls == ["neg"]
p = x.clone().requires_grad_()
torch.ops.chip.twice(p).backward(torch.ones_like(p))
assert (p.grad.cpu() == 2).all() and calls == ["neg", "twice", "twice"], calls
""")
    assert "verriding" not in done.stderr, done.stderr


def test_every_entry_has_a_test(run_python, chip: Path) -> None:
    code = """
import sys
from bringup.vendor import check
cases = check.cases(sys.argv[1])
assert len(cases) == 7, [str(case) for case in cases]
for case in cases:
    case.run()
"""
    run_python(code, str(chip / "vendor_chip.py"), env={"VENDOR_CHIP": str(chip), "BRINGUP_DRIVERS": None})


def test_a_wrong_library_is_caught(run_python, chip: Path, tmp_path: Path) -> None:
    shutil.copytree(chip, tmp_path, dirs_exist_ok=True)
    compile_c(tmp_path, LIBRARY.replace("c[i * n + j] = 0;", "c[i * n + j] = 1;"), "-shared", "-fPIC", name="chip")
    text = TABLE.replace("examples = [{ self = [5, 3], other = [5, 3], alpha = 2 }]", "", 1)
    (tmp_path / "ops.toml").write_text(text)
    code = "from bringup.vendor.command import check_table; import sys; sys.exit(check_table(*sys.argv[1:]))"
    files = [str(tmp_path / name) for name in ("vendor_chip.py", "results.json")]
    done = run_python(code, *files, env={"VENDOR_CHIP": str(tmp_path), "BRINGUP_DRIVERS": None}, check=False)
    assert done.returncode == 1, done.stderr
    assert "fail  entry 1 aten::mm float32 example 1: AssertionError" in done.stdout
    assert "fail  entry 2 aten::add.Tensor: it has no examples" in done.stdout
    assert "6 entries: 5 passed, 2 failed" in done.stdout
    rows = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [row["status"] for row in rows].count("fail") == 2
    assert rows[-1]["message"] == "it has no examples"


def test_a_bad_table_registers_nothing(run_python, chip: Path, tmp_path: Path) -> None:
    shutil.copytree(chip, tmp_path, dirs_exist_ok=True)
    (tmp_path / "ops.toml").write_text(TABLE.replace("chip_split({x.numel}", "chip_splitt({x.numel}"))
    code = """
import sys, bringup
try:
    bringup.activate(sys.argv[1])
    import torch
    bringup.device()
    raise SystemExit("activated")
except (RuntimeError, ValueError) as error:
    print(error)
assert not torch._C._jit_get_schemas_for_operator("chip::twice")
assert torch._C._get_privateuse1_backend_name() == "privateuseone"
from pathlib import Path
table = Path(sys.argv[1]).with_name("ops.toml")
table.write_text(table.read_text().replace("chip_splitt", "chip_split"))
bringup.activate(sys.argv[1])
print(torch.ops.chip.split(torch.ones(2, device=bringup.device()))[1].sum().item())
"""
    env = {"VENDOR_CHIP": str(tmp_path), "BRINGUP_DRIVERS": None}
    done = run_python(code, str(tmp_path / "vendor_chip.py"), env=env)
    assert "ops.toml: entry 3 (chip::split): declare: there is no prototype of chip_splitt" in done.stdout
    assert done.stdout.endswith("2.0\n")


def test_another_drivers_devices_take_their_own_route(run_python, chip: Path) -> None:
    code = """
import torch, bringup
from bringup.vendor.routing import chosen
for name in ("sim", "vendor_chip"):
    x = torch.ones(5, 3, device=bringup.device(name))
    assert (torch.mm(x, x.t().contiguous()).cpu() == 3).all()
    assert bool(chosen) == (name == "vendor_chip"), (name, chosen)
y = torch.ones(2, 3, device=bringup.device("sim"))
assert (torch.ops.chip.twice(y).cpu() == 2).all()  # the reference, of sim's own kernels
"""
    drivers = f"sim,{chip / 'vendor_chip.py'}"
    env = {"BRINGUP_DRIVERS": drivers, "VENDOR_CHIP": str(chip), "BRINGUP_SIM": "mode=kernels,devices=1"}
    run_python(code, env={**env, "BRINGUP_FALLBACK": "error"})


def test_the_commands_say_what_is_missing(run_python, tmp_path: Path) -> None:
    code = "import sys; from bringup.cli import app; app()(sys.argv[1:])"
    for command in (["check", "--level", "table"], ["generate", "--out", str(tmp_path)]):
        done = run_python(code, *command, "--driver", "sim", env={"BRINGUP_DRIVERS": None}, check=False)
        assert (done.returncode, "driver 'sim' has no op table" in done.stderr) == (2, True), done.stderr


# ---- OpenBLAS ----
@needs_blas
def test_blas_entries(run_python) -> None:
    code = """
import sys
from bringup.vendor import check
cases = check.cases(sys.argv[1])
assert len(cases) == 26
for case in cases:
    case.run()
"""
    run_python(code, BLAS, env={"BRINGUP_DRIVERS": None})


@needs_blas
def test_blas_ops(run_python) -> None:
    run_python(
        """
import itertools, pytest, torch, bringup
from bringup.vendor.routing import chosen
device = "blas_chip"
torch.manual_seed(0)

# Every size and layout that BLAS is particular about.
for m, k, n in itertools.product((1, 9, 17), (0, 1, 5), (0, 1, 8)):
    for ta, tb in itertools.product((False, True), repeat=2):
        a = torch.randn(k, m).t() if ta else torch.randn(m, k)
        b = torch.randn(n, k).t() if tb else torch.randn(k, n)
        x, y, c = a.to(device), b.to(device), torch.randn(n)
        assert x.stride() == a.stride()
        torch.testing.assert_close((x @ y).cpu(), a @ b)
        torch.testing.assert_close(torch.addmm(c.to(device), x, y).cpu(), torch.addmm(c, a, b))
        if n:
            torch.testing.assert_close(torch.mv(x, y[:, 0]).cpu(), torch.mv(a, b[:, 0]))
nan = torch.full((16, 16), torch.nan, device=device)
ones = torch.ones(16, 16, device=device)
assert (torch.addmm(nan, ones, ones, beta=0) == 16).all()
assert (ones[0].expand(16, 16) @ ones == 16).all()
small = torch.nn.Linear(16, 16).to(device)
small(ones).sum().backward()
assert len({number for _, number, _ in chosen}) == 3, chosen

# The new ops.
y, x = torch.randn(10, device=device), torch.randn(10, device=device)
expected = y + 0.5 * x
for result in (
    torch.ops.blas.axpy(y, x, 0.5),
    torch.ops.blas.axpy_(y.clone(), x, 0.5),
    torch.ops.blas.axpy.out(y, x, 0.5, out=torch.empty(0, device=device)),
    torch.ops.blas.axpy(y.cpu(), x.cpu(), 0.5).to(device),
    torch.ops.blas.axpy(y[::2], x[::2], 0.5).new_tensor(expected.tolist()),
):
    torch.testing.assert_close(result, expected)
torch.testing.assert_close(torch.ops.blas.axpy_(y.clone(), x, 0.5), expected)
both = y.clone()
torch.testing.assert_close(torch.ops.blas.axpy_(both, both, 1.0), 2 * y)
half = torch.ops.blas.axpy(y.half(), x.half(), 0.5)  # no entry: the reference, on the device
assert half.dtype == torch.float16
torch.testing.assert_close(half.float(), expected, rtol=1e-2, atol=1e-2)
with pytest.raises(RuntimeError, match=r"blas::axpy requires y.shape == x.shape; y has shape \\(10,\\), x has"):
    torch.ops.blas.axpy(y, x[:3], 0.5)
with pytest.raises(RuntimeError, match="blas::axpy: tensors of one dtype are needed, but y is float32, x is float64"):
    torch.ops.blas.axpy(y, x.double(), 0.5)
with pytest.raises(RuntimeError, match="device"):
    torch.ops.blas.axpy(y, x.cpu(), 0.5)
with pytest.raises(RuntimeError, match="out is torch.float64, the result is torch.float32"):
    torch.ops.blas.axpy.out(y, x, 0.5, out=torch.empty(10, dtype=torch.float64, device=device))

# Gradients, also of the in-place form.
p, q = y.clone().requires_grad_(), x.clone().requires_grad_()
z = p * 1
torch.ops.blas.axpy_(z, q, 3.0)
z.sum().backward()
assert (p.grad == 1).all() and (q.grad == 3).all()
with pytest.raises(RuntimeError, match="leaf"):
    torch.ops.blas.axpy_(p, q, 3.0)

# Autocast.
m = torch.zeros(10, 10, device=device)
with torch.autocast(device, dtype=torch.bfloat16):
    assert torch.ops.blas.axpy(y.bfloat16(), x, 0.5).dtype == torch.float32  # promote
    assert torch.ops.blas.rank_one(m.half(), x.half(), y.half()).dtype == torch.float32  # float32
with pytest.raises(RuntimeError, match="one dtype"):
    torch.ops.blas.axpy(y.bfloat16(), x, 0.5)

# torch.library's own checks.
torch.library.opcheck(torch.ops.blas.rank_one.default, (m, x, y, 2.0),
                      test_utils=("test_schema", "test_faketensor"))
compiled = torch.ops.blas.axpy(torch.empty(4, device="meta"), torch.empty(4, device="meta"), 1.0)
assert compiled.shape == (4,)
""",
        env={"BRINGUP_DRIVERS": BLAS},
    )


# ---- written out ----
GENERATED = """
import sys, pytest, torch
device = "sim"
LOAD
torch.manual_seed(0)
a, b, c = torch.randn(64, 48), torch.randn(48, 32), torch.randn(64, 32)
x, y, z = a.to(device), b.to(device), c.to(device)
torch.testing.assert_close((x @ y).cpu(), a @ b)
torch.testing.assert_close((y.t() @ x.t()).cpu(), b.t() @ a.t())
torch.testing.assert_close((x[:3] @ y).cpu(), a[:3] @ b)
torch.testing.assert_close((x.double() @ y.double()).cpu(), a.double() @ b.double())
torch.testing.assert_close((x.bfloat16() @ y.bfloat16()).cpu(), a.bfloat16() @ b.bfloat16())
torch.testing.assert_close(torch.addmm(y[0], x, y, beta=2, alpha=0.5).cpu(), torch.addmm(b[0], a, b, beta=2, alpha=0.5))
torch.testing.assert_close(z.addmm_(x, y).cpu(), c.addmm_(a, b))
torch.testing.assert_close((x @ y[:, 0]).cpu(), a @ b[:, 0])
out = torch.empty(0, device=device)
torch.mm(x, y, out=out)
torch.testing.assert_close(out.cpu(), a @ b)
v, w = torch.randn(10, device=device), torch.randn(10, device=device)
expected = v + 0.5 * w
torch.testing.assert_close(torch.ops.blas.axpy(v, w, 0.5), expected)
torch.testing.assert_close(torch.ops.blas.axpy_(v.clone(), w, 0.5), expected)
torch.testing.assert_close(torch.ops.blas.axpy.out(v, w, 0.5, out=torch.empty(0, device=device)), expected)
m, p, q = (torch.randn(*s, device=device, requires_grad=True) for s in ((3, 4), (3,), (4,)))
result, reference = torch.ops.blas.rank_one(m, p, q, 2.0), m + 2 * torch.outer(p, q)
torch.testing.assert_close(result, reference)
grads = [torch.autograd.grad((r * r).sum(), [m, p, q]) for r in (result, reference)]
for mine, theirs in zip(*grads):
    torch.testing.assert_close(mine, theirs)
with pytest.raises(RuntimeError, match="blas::axpy requires y.shape == x.shape"):
    torch.ops.blas.axpy(v, w[:3], 0.5)
with torch.autocast(device, dtype=torch.bfloat16):
    assert torch.ops.blas.rank_one(m.half(), p.half(), q.half()).dtype == torch.float32
assert torch.ops.blas.axpy(v.to("meta"), w.to("meta"), 1.0).shape == (10,)
print("calls", calls())
"""


@pytest.fixture(scope="module")
def generated(run_python, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    code = "from pathlib import Path; from bringup.vendor.command import generate; import sys; " \
        "generate(sys.argv[1], Path(sys.argv[2]))"  # fmt: skip
    done = run_python(code, BLAS, str(folder), env={"BRINGUP_DRIVERS": None})
    assert "blas_chip_ops.cpp" in done.stdout
    return folder


@needs_blas
def test_the_generated_python_runs(run_python, generated: Path) -> None:
    load = f"""
sys.path.insert(0, {str(generated)!r})
import blas_chip_ops
count = []
real = blas_chip_ops.scipy_cblas_sgemm
blas_chip_ops.scipy_cblas_sgemm = lambda *args: (count.append(1), real(*args))
calls = lambda: len(count)
"""
    done = run_python(GENERATED.replace("LOAD", load), env={"BRINGUP_DRIVERS": "sim"})
    assert "calls 5" in done.stdout  # two products, addmm, addmm_ and mm.out
    assert "bringup" not in (generated / "blas_chip_ops.py").read_text().split('"""')[2]
    page = (generated / "blas_chip_ops.md").read_text()
    assert "| `blas::axpy(Tensor y, Tensor x, float a) -> Tensor` | `scipy_cblas_saxpy, scipy_cblas_daxpy` |" in page


@pytest.mark.slow
@needs_blas
def test_the_generated_cpp_runs(run_python, generated: Path) -> None:
    load = f"""
import os, scipy_openblas32
from torch.utils.cpp_extension import load
folder = scipy_openblas32.get_lib_dir()
load("blas_chip_ops", [{str(generated / "blas_chip_ops.cpp")!r}], is_python_module=False, extra_cflags=["-O0", "-Wall"],
     extra_ldflags=[f"-L{{folder}}", "-lscipy_openblas", f"-Wl,-rpath,{{folder}}"], build_directory={str(generated)!r})
calls = lambda: "unknown"
"""
    run_python(GENERATED.replace("LOAD", load), env={"BRINGUP_DRIVERS": "sim", "PATH": search_path()}, timeout=280)


WITH_STATE = """
import array
from . import dictmem

class Driver(dictmem.Driver):
    name = "counting"
    op_table = __import__("pathlib").Path(__file__).with_name("ops.toml")

    def __init__(self):
        super().__init__()
        self.served = 0

    def negated(self, out, x):
        self.served += 1
        numbers = array.array("f", bytes(self.bytes_at(x.device, x.address, 4 * x.shape[0])))
        done = array.array("f", [-number for number in numbers])
        self.bytes_at(out.device, out.address, 4 * x.shape[0])[:] = memoryview(done).cast("B")
"""


def test_a_function_of_the_table_is_a_method_of_the_driver(run_python: Any, tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(WITH_STATE)
    (tmp_path / "ops.toml").write_text(
        '[[op]]\nschema = "aten::neg"\nfunction = "driver:negated"\ndtypes = ["float32"]\nexamples = [{ self = [4] }]\n'
    )
    shutil.copy(ROOT / "examples" / "drivers" / "dictmem.py", tmp_path)
    code = """
        import bringup, torch
        x = torch.arange(3.0).to("counting")
        assert (-x).tolist() == [0.0, -1.0, -2.0]
        assert bringup.active_drivers()[0].driver.served == 1
    """
    run_python(code, env={"BRINGUP_DRIVERS": str(tmp_path / "counting.py")})
    table = tmp_path / "ops.toml"
    table.write_text(table.read_text().replace("driver:negated", "driver:negate"))
    done = run_python(
        "import torch; torch.ones(1, device='counting')",
        env={"BRINGUP_DRIVERS": str(tmp_path / "counting.py")},
        check=False,
    )
    assert "has no method 'negate': did you mean driver:negated?" in done.stderr
