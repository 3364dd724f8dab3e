"""Custom operators: every example in examples/operators/ runs, agrees with the CPU and has the right gradient."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests import fork_server
from tests.c_compiler import search_path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "operators"
PYTHON = ("python_kernel", "custom_op", "autograd_function", "storage_metadata")
CPP = ("cpp_kernel/soft_clip", "stub_form", "structured_form")
LIMIT = 2.0


def example(name: str) -> ModuleType:
    """Imports an example once per process: a schema can be defined only once."""
    known = f"example_{name.replace('/', '_')}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[known] = module
        spec.loader.exec_module(module)
    return sys.modules[known]


def reference(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + x.abs() / LIMIT)


def run_as_script(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = EXAMPLES / f"{name}.py"
    return fork_server.run(fork_server.SCRIPT.format(str(path)), env={**os.environ, **environment}, timeout=280)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, subprocess.CompletedProcess[str]]]:
    """Runs the C++ examples as scripts, which builds them; later loads find the binaries."""
    folder = str(tmp_path_factory.mktemp("extensions"))
    environment = {"TORCH_EXTENSIONS_DIR": folder, "MAX_JOBS": "1", "PATH": search_path()}
    finished = {name: run_as_script(name, **environment) for name in CPP}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", folder)
        yield finished


@pytest.fixture
def host_visible(device: str) -> None:
    properties = torch.get_device_module(device).get_device_properties()
    if not properties.host_visible or "trap=1" in os.environ.get("BRINGUP_SIM", ""):
        pytest.skip("these C++ kernels read device memory at its own addresses")


# ---- as scripts ----
@pytest.mark.parametrize("name", PYTHON)
def test_a_python_example_is_a_script(name: str) -> None:
    result = run_as_script(name)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


@pytest.mark.parametrize("name", CPP)
@pytest.mark.usefixtures("host_visible")
def test_a_cpp_example_is_a_script(name: str, built: dict[str, subprocess.CompletedProcess[str]]) -> None:
    assert built[name].returncode == 0, built[name].stderr
    assert built[name].stdout.strip()
    # Only the structured form takes an op that bringup has already; PyTorch says so, up to 2.14.
    assert ("Overriding" in built[name].stderr) == (name == "structured_form" and torch.__version__ < (2, 14))


# ---- new operators ----
@pytest.fixture
def op(name: str, request: pytest.FixtureRequest) -> Any:
    """The operator that the example called ``name`` defines."""
    if name in CPP:
        request.getfixturevalue("host_visible")
        request.getfixturevalue("built")
    module = example(name)
    if name == "python_kernel":
        return torch.ops.python_kernel.soft_clip
    return module.SoftClip.apply if name == "autograd_function" else module.soft_clip


def examples(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", names)


@examples("python_kernel", "custom_op", "autograd_function", "cpp_kernel/soft_clip")
def test_the_values_are_the_cpus(op: Any, device: str) -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(5, 7, dtype=torch.float64).mul(10).to(dtype)
        for on_cpu, on_device in ((x, x.to(device)), (x.t()[1:], x.to(device).t()[1:]), (x[:0], x[:0].to(device))):
            result = op(on_device, LIMIT)
            assert result.device.type == device
            assert result.dtype == dtype
            torch.testing.assert_close(result.cpu(), reference(on_cpu))
            torch.testing.assert_close(op(on_cpu, LIMIT), reference(on_cpu))


@examples("custom_op", "autograd_function", "cpp_kernel/soft_clip")
def test_the_gradient_is_right(op: Any, device: str) -> None:
    x = torch.randn(6, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: op(x, LIMIT), x)
    assert torch.autograd.gradgradcheck(lambda x: op(x, LIMIT), x)


@examples("python_kernel", "custom_op", "cpp_kernel/soft_clip")
def test_opcheck(op: Any, name: str, device: str) -> None:
    overload = getattr(op, "_opoverload", None) or op.default
    has_gradient = name != "python_kernel"
    x = torch.randn(4, 3, device=device, requires_grad=has_gradient)
    # test_autograd_registration knows only the tensors of a few devices: it runs on the CPU's.
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    assert set(torch.library.opcheck(overload, (x, LIMIT), test_utils=checks).values()) == {"SUCCESS"}
    on_cpu = x.detach().cpu().requires_grad_(has_gradient)
    torch.library.opcheck(overload, (on_cpu, LIMIT), test_utils="test_autograd_registration")


@examples("python_kernel", "custom_op", "cpp_kernel/soft_clip")
def test_the_fake_kernel_knows_the_shape(op: Any) -> None:
    result = op(torch.empty(3, 4, dtype=torch.float16, device="meta"), LIMIT)
    assert (result.shape, result.dtype, result.device.type) == ((3, 4), torch.float16, "meta")


@examples("python_kernel", "cpp_kernel/soft_clip")
def test_a_bad_argument_is_an_error(op: Any, device: str) -> None:
    with pytest.raises(ValueError, match="limit must be above 0, got -1"):
        op(torch.ones(2, device=device), -1.0)


def test_a_straight_through_gradient(device: str) -> None:
    x = torch.tensor([0.1, 0.4, -1.3], device=device, requires_grad=True)
    y = example("autograd_function").StraightThroughRound.apply(x, 0.5)
    (y * torch.arange(3.0, device=device)).sum().backward()
    assert y.tolist() == [0.0, 0.5, -1.5]
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 2]


def test_torch_func_transforms_an_autograd_function(device: str) -> None:
    op = example("autograd_function").SoftClip.apply
    x = torch.randn(4, 3, device=device)
    rows = torch.func.vmap(lambda row: op(row, LIMIT))(x)
    torch.testing.assert_close(rows.cpu(), reference(x.cpu()))
    slope = torch.func.grad(lambda x: op(x, LIMIT).sum())(x)
    torch.testing.assert_close(slope.cpu(), (1 + x.cpu().abs() / LIMIT) ** -2)


# ---- ATen operators: in a process of their own, because they change what the op does ----
IN_A_NEW_PROCESS = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("example", sys.argv[1])
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
device = example.DEVICE

def same(call, *tensors):
    before = example.calls()
    found = call(*[tensor.to(device) for tensor in tensors])
    assert example.calls() == before + 1, "another kernel ran"
    expected = call(*tensors)
    assert found.device.type == device and found.dtype == expected.dtype
    half = dict(atol=1e-5, rtol=4e-3) if found.dtype == torch.float16 else {}  # the CPU rounds between two steps
    torch.testing.assert_close(found.cpu(), expected, equal_nan=True, **half)
    return found
"""

LOGIT = """
x = torch.tensor([[0.0, 0.1, 0.5], [0.9, 1.0, float("nan")]])
for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
    same(torch.logit, x.to(dtype))
    same(lambda x: torch.logit(x, eps=0.05), x.to(dtype).t())
same(torch.logit, torch.tensor([0, 1]))
same(lambda x: x.clone().logit_(0.1), x)
same(lambda x: torch.logit(x, out=x.new_empty(0)), x)
same(lambda x: torch.logit(x, out=x.new_empty(2, 3, dtype=torch.float64)), x)
y = torch.rand(5, dtype=torch.float64).mul(0.8).add(0.1).to(device).requires_grad_()
assert torch.autograd.gradcheck(torch.logit, y)
"""

SOFTSHRINK = """
from torch.nn.functional import softshrink
x = torch.tensor([[-2.0, -0.5, 0.0], [0.25, 3.0, float("nan")]])
for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
    same(softshrink, x.to(dtype))
    same(lambda x: softshrink(x, 1.0), x.to(dtype).t())
out = torch.ops.aten.softshrink.out
same(lambda x: out(x, 0.1, out=x.new_empty(0)), x)
strided = same(lambda x: out(x, 0.1, out=x.new_empty(3, 2).t()), x)
assert strided.stride() == (1, 2)
for wrong in (dict(dtype=torch.float64), dict(device="cpu")):
    try:
        out(x.to(device), 0.1, out=torch.empty(2, 3, **{"device": device, **wrong}))
    except RuntimeError as error:
        assert "softshrink" in str(error) or "xpected" in str(error), error
    else:
        raise AssertionError(wrong)
try:
    softshrink(x.to(device), -1.0)
except RuntimeError as error:  # ATen's own check, from meta
    assert "lambda must be" in str(error), error
else:
    raise AssertionError("a negative lambda")
y = torch.randn(5, dtype=torch.float64).mul(3).to(device).requires_grad_()
assert torch.autograd.gradcheck(softshrink, y)
"""


@pytest.mark.parametrize(("name", "code"), [("stub_form", LOGIT), ("structured_form", SOFTSHRINK)])
@pytest.mark.usefixtures("host_visible", "built")
def test_an_aten_op_runs_the_example_kernel(name: str, code: str, run_python) -> None:
    run_python(IN_A_NEW_PROCESS + code, str(EXAMPLES / f"{name}.py"))


# ---- storages ----
def test_quantised_values_keep_their_scale(device: str) -> None:
    module = example("storage_metadata")
    x = torch.linspace(-3, 3, 25, device=device)
    values = module.quantise(x)
    assert values.dtype == torch.int8
    for again in (values, values.clone(), module.saved_and_loaded(values), values[5:].view(4, 5)):
        assert module.layout_of(again) == module.layout_of(values)
    torch.testing.assert_close(module.dequantise(values), x, atol=3 / 127, rtol=0)
    with pytest.raises(ValueError, match="has no metadata"):
        module.dequantise(values + 0)
