"""A chip whose compiler fails: tensors can still be looked at, and errors say why there is no kernel."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

DRIVER = """
from bringup.drivers.sim import Driver as Sim

class Driver(Sim):
    name = device_name = "chip"
    def compile(self, source):
        {compile}
"""


@pytest.fixture
def on_chip(run_python: Any, tmp_path: Path) -> Any:
    """Runs code with a driver whose ``compile`` has the given body; kernels of other tests are not found."""

    def run(code: str, body: str, policy: str = "allow", check: bool = True) -> Any:
        (tmp_path / "chip.py").write_text(DRIVER.format(compile=body))
        env = {"BRINGUP_DRIVERS": str(tmp_path / "chip.py"), "BRINGUP_CACHE": "off", "BRINGUP_FALLBACK": policy}
        return run_python(code, env=env, check=check)

    return run


BROKEN = 'raise RuntimeError("the compiler is broken")'
PRINTED = r"""
    import re, torch
    from torch import nn

    x = torch.linspace(-2, 3, 12).view(3, 4)
    made = [x, x.double(), x.half(), x.bfloat16(), x.long(), x > 0, torch.complex(x, x), torch.complex(x, x).conj()]
    made += [x.t(), x[:, ::2], x[0, 0], x[:0], torch.arange(2000.0), torch.tensor([1.0, float("nan"), float("inf")])]
    made += [nn.Parameter(x), x.clone().requires_grad_() * 1, x * 1e9]
    for tensor in made:
        ours = re.sub(r",\s*device='chip:0'", "", repr(tensor.to("chip")))
        theirs = repr(tensor)
        assert ours.split() == theirs.split() or "grad_fn" in ours, f"{ours}\nexpected {theirs}"
    print(torch.nn.Linear(2, 2).to("chip"), x.to("chip").nonzero().cpu().equal(x.nonzero()))
    degree = torch.arange(12.0).view(3, 4)
    found = torch.special.legendre_polynomial_p(x.to("chip"), degree.to("chip")).cpu()
    torch.testing.assert_close(found, torch.special.legendre_polynomial_p(x, degree))
"""


def test_tensors_can_be_printed(on_chip: Any) -> None:
    done = on_chip(PRINTED, BROKEN)
    assert done.stdout == "Linear(in_features=2, out_features=2, bias=True) True\n"
    assert done.stderr.count("RuntimeWarning") == 1, done.stderr
    assert "the compiler is broken" in done.stderr


def test_parts_of_ops_have_a_way_to_the_cpu() -> None:
    """The ops of bringup that others are made of; without a kernel and without this the whole op would fail."""
    import torch

    torch.ones(1, device=torch._C._get_privateuse1_backend_name()) + 1  # the first use registers them
    from bringup.lowering.registry import LOWERINGS

    parts = [name for name in LOWERINGS if name.startswith("bringup::")]
    without = {name for name in parts if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU")}
    # Their dropout draws from the device's generator; the error says what failed.
    assert without == {"bringup::attention", "bringup::attention_backward"}


@pytest.mark.parametrize(
    ("body", "said"),
    [("return None", "compile returned None"), ("return source", "compile returned an object of type str")],
)
def test_compile_must_return_bytes(body: str, said: str, on_chip: Any) -> None:
    said = f"driver 'chip': {said}; it must return the binary as bytes"
    done = on_chip("import torch\ntorch.ones(3, device='chip') + 1", body, check=False)
    assert re.search(rf"^[\w.]+: {re.escape(said)}", done.stderr, re.MULTILINE), done.stderr


# ---- why there is no kernel ----
def test_after_a_failure_the_policy_says_what_the_compiler_said(on_chip: Any) -> None:
    """Also where the failure was in an earlier call, which was allowed to fall back."""
    code = """
    import torch, bringup
    x = torch.arange(3.0).to("chip")
    x.exp()
    with bringup.fallback_policy("error"):
        try:
            x.exp()
        except NotImplementedError as error:
            print(error)
    try:
        torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 1, 4, 8).to("chip")] * 3)
    except NotImplementedError as error:
        print(error)
    """
    first, second = on_chip(code, BROKEN).stdout.splitlines()
    assert first.startswith(
        "aten::exp has no kernel on chip:0 (the kernel exp could not be made for chip: the compiler"
    )
    assert "is broken" in first
    assert "fallback policy" in first
    assert second.startswith("bringup::attention has no kernel on chip:0 (the kernel ")
    assert "and none on the CPU" in second


WHY = {
    "no lowering": ("torch.linalg.svd(torch.ones(3, 3).to('sim'))", "aten::_linalg_svd", "the op has no lowering"),
    "a type": (
        "torch.ones(3, dtype=torch.complex64).to('sim').exp()",
        "aten::exp",
        "complex64 is not a type of kernels",
    ),
    "a case of this op": ("torch.ones(4).to('sim').roll((1, 1), (0, 0))", "aten::roll", "the same dimension twice"),
    "a copy": (
        "torch.ones(3).to('sim').to(torch.float8_e4m3fn)",
        "aten::copy_",
        "kernels do not copy these types",
    ),
}


def test_policy_errors_say_why(run_python: Any) -> None:
    code = f"""
    import json, torch
    said = {{}}
    for name, (call, *_) in {WHY!r}.items():
        try:
            eval(call)
            said[name] = "no error"
        except NotImplementedError as error:
            said[name] = str(error)
    print(json.dumps(said))
    """
    env = {"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "mode=kernels", "BRINGUP_FALLBACK": "error"}
    found = json.loads(run_python(code, env=env).stdout)
    for name, (_, op, why) in WHY.items():
        assert found[name].startswith(op), name
        assert " has no kernel on sim:0 (" in found[name], found[name]
        assert why in found[name], found[name]
        assert "the fallback policy is 'error'" in found[name]


@pytest.mark.parametrize(
    ("driver", "options", "why"),
    [
        ("examples/drivers/dictmem.py", "", "its driver compiles none"),
    ],
)
def test_devices_without_kernels_say_so(driver: str, options: str, why: str, run_python: Any) -> None:
    code = """
    import bringup, torch
    try:
        torch.ones(3).to(bringup.device()).exp()
    except NotImplementedError as error:
        print(error)
    """
    env = {"BRINGUP_DRIVERS": driver, "BRINGUP_SIM": options, "BRINGUP_FALLBACK": "error"}
    said = run_python(code, env=env).stdout
    assert f":0 ({why}) and the fallback policy is 'error'" in said


def test_the_warning_says_why(run_python: Any) -> None:
    code = "import torch\ntorch.linalg.svdvals(torch.ones(3, 3).to('sim'))"
    env = {"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "mode=kernels", "BRINGUP_FALLBACK": "warn"}
    assert "has no kernel on sim:0 (the op has no lowering) and runs on the CPU" in run_python(code, env=env).stderr


NO_KERNELS = """
import warnings
import torch
from torch.testing._internal.common_methods_invocations import op_db
from bringup import _C

torch.empty(1, device="sim")
_C.set_kernel_resolver(lambda *call: None)
warnings.simplefilter("ignore")


def moved(value):
    if isinstance(value, torch.Tensor):
        return value.detach().to("sim").requires_grad_(value.requires_grad)
    return type(value)(map(moved, value)) if type(value) in (list, tuple) else value


failed, run = [], 0
for op in op_db:
    if torch.float32 not in op.supported_dtypes("cpu") or op.name == "tensor_split":  # which takes indices on the CPU
        continue
    for sample in list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))[:2]:
        try:
            expected = op(sample.input, *sample.args, **sample.kwargs)
        except Exception:
            continue
        keywords = {name: moved(value) for name, value in sample.kwargs.items()} | (
            {"device": "sim"} if "device" in sample.kwargs else {}
        )
        try:
            result = op(moved(sample.input), *moved(sample.args), **keywords)
            if isinstance(result, torch.Tensor):
                assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
                if result.requires_grad and not result.is_complex():
                    result.sum().backward()
            run += 1
        except Exception as error:
            failed.append(f"{op.name}: {type(error).__name__}: {error}")
assert run > 1000 and not failed, "\\n".join(failed)

x, w = torch.randn(2, 3, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)
ours = [tensor.detach().to("sim").requires_grad_() for tensor in (x, w)]
for on, (a, b) in (("cpu", (x, w)), ("sim", ours)):
    (torch.nn.functional.rms_norm(a, (3, 8), b).sin().sum()).backward()
torch.testing.assert_close(ours[0].grad.cpu(), x.grad)
torch.testing.assert_close(ours[1].grad.cpu(), w.grad)
"""


def test_every_op_runs_where_no_call_gets_a_kernel(run_python: Any) -> None:
    """huber_loss_backward called itself for ever: its functional form is a composition of its out= form."""
    run_python(NO_KERNELS, env={"BRINGUP_FALLBACK": "allow"}, timeout=300)
