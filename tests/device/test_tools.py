"""The tools of the kernel compiler in fresh processes: explain, the debug ladder, the disk cache of made kernels."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fork_server import run_bringup

KERNELS = {"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "mode=kernels,devices=1"}


@pytest.fixture
def explain(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        import os

        plain = {name: value for name, value in os.environ.items() if name not in KERNELS}
        given = {**plain, "BRINGUP_CACHE": str(tmp_path / "cache"), **environment}
        return run_bringup("explain", *arguments, env=given)

    return run


def test_explain_shows_a_kernel_from_the_call_to_its_source(explain) -> None:
    done = explain("torch.softmax(torch.randn(8, 128), -1)")
    assert done.returncode == 0, done.stderr
    part = done.stdout.partition("aten::_softmax(float32[8, 128], -1, False)")[2]
    assert part.lstrip().startswith("kernel")
    assert "t0_n1 < 65536" in part
    assert "kernel bringup__softmax (compiled)" in part
    assert "reduce (" in part
    assert "void bringup__softmax(const uint64_t *args" in part
    assert "4,096 bytes read, 4,096 written" in part
    assert "compile " in part
    assert "warm call" in part

    again = explain("torch.softmax(torch.randn(8, 128), -1)", "--show", "time")
    assert "kernel bringup__softmax (disk cache)" in again.stdout
    assert "compile" not in again.stdout.partition("(disk cache)")[2]
    assert "void" not in again.stdout


def test_explain_gives_reasons_where_there_is_no_kernel(explain) -> None:
    code = "x = torch.ones(3, 3); x.to(torch.complex64).exp(); torch.linalg.qr(x); x.view(9); x + x; x + x"
    done = explain(code, "--show", "time")
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "aten::exp(complex64[3, 3]) kernel: complex64 is not a type of kernels" in words
    assert "aten::linalg_qr(float32[3, 3]) fallback: it fell back to the CPU" in words
    assert "aten::view(float32[3, 3], [9]) native: written in the core" in words
    assert "known by its signature: launched without Python" in words


def test_explain_shows_backward(explain) -> None:
    done = explain("F.gelu(torch.ones(4, requires_grad=True)).sum().backward()", "--show", "cost")
    assert done.returncode == 0, done.stderr
    assert "kernel bringup_gelu_backward" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("torch.ones(3",), "SyntaxError"),
        (("torch.ones(2) + torch.ones(3)",), "RuntimeError: The size of tensor a (2) must match"),
        (("1", "--show", "everything"), "--show of code knows guards, ir, source, cost, time, not everything"),
        (("net.py:Net", "--show", "guards"), "--show of a model knows ir, source, not guards"),
        (("net.py:Net", "--ir"), "--ir and --source are now --show ir,source"),
        (("1", "--train"), "--input, --train and --html are for a model"),
        (("1", "--driver", "nosuchchip"), "nosuchchip"),
    ],
)
def test_explain_says_what_is_wrong_in_a_line(explain, arguments: tuple[str, ...], message: str) -> None:
    done = explain(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("bringup explain: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


PROGRAM = """
import torch
x = torch.ones(4, 8, device="sim")
for _ in range(3):
    y = x.mul(2.5)
torch.ones(5, 8, device="sim").mul(2.5)
"""


@pytest.mark.parametrize("level", range(6))
def test_the_debug_ladder(level: int, run_python, tmp_path: Path) -> None:
    environment = {**KERNELS, "BRINGUP_CACHE": str(tmp_path), "BRINGUP_DEBUG": str(level)}
    done = run_python(PROGRAM, env=environment)
    said = done.stderr
    assert done.stdout == ""
    assert ("kernel bringup_mul_Tensor compiled for device 0 in " in said) == (level >= 1)
    assert ("aten::mul.Tensor(float32[5, 8], 2.5): known structure, plan in " in said) == (level >= 2)
    assert ("guard t0_n0 == o0_n0" in said) == (level >= 2)
    assert ("store y0[i0] = (x1[i0] * p0)" in said) == (level >= 3)
    assert ("void bringup_mul_Tensor(" in said) == (level >= 4)
    # Two of the four calls are known by their signature, and are launches all the same.
    assert said.count("launch bringup_mul_Tensor on sim:0: 1 units") == (4 if level == 5 else 0)
    if level == 0:
        assert said == ""


def test_launches_are_told_with_numbers_that_stay_right(run_python, tmp_path: Path) -> None:
    code = """
    import torch
    x = torch.arange(300000.0, device="sim").view(300, 1000) % 7
    assert torch.equal((x @ x.t()).cpu(), x.cpu() @ x.cpu().t())
    try:
        x[torch.tensor([400], device="sim")].cpu()
    except IndexError:
        print("raised")
    """
    environment = {**KERNELS, "BRINGUP_CACHE": str(tmp_path), "BRINGUP_DEBUG": "5"}
    done = run_python(code, env=environment)
    assert done.stdout == "raised\n"
    assert "launch bringup_mm on sim:0" in done.stderr


CACHED = """
import torch
from bringup.ir import verify
from bringup.compile.kernel_cache import default_cache
from bringup.compile import loader
rendered, calls = loader.rendered, []
loader.rendered = lambda *arguments: calls.append(arguments) or rendered(*arguments)
x = torch.randn(64, 96, device="sim")
y = x @ x.t()
z = (x.softmax(-1), x.sum(0))
torch.testing.assert_close(y.cpu(), x.cpu() @ x.cpu().t(), rtol=1e-4, atol=1e-4)
torch.testing.assert_close(z[0].cpu(), x.cpu().softmax(-1))
print(len(calls), default_cache().misses)
"""


def test_a_kernel_from_disk_is_not_rendered_again(run_python, tmp_path: Path) -> None:
    environment = {**KERNELS, "BRINGUP_CACHE": str(tmp_path)}
    first = run_python(CACHED, env=environment).stdout.split()
    assert int(first[0]) > 0
    assert first[0] == first[1]
    assert run_python(CACHED, env=environment).stdout.split() == ["0", "0"]


def test_another_compiler_takes_nothing_from_disk(run_python, tmp_path: Path) -> None:
    environment = {**KERNELS, "BRINGUP_CACHE": str(tmp_path)}
    first = run_python(CACHED, env=environment).stdout
    changed = "from bringup.compile import loader; loader.generation = lambda: 'another compiler'\n" + CACHED
    assert run_python(changed, env=environment).stdout == first


def test_different_scalars_are_one_entry(run_python, tmp_path: Path) -> None:
    code = """
    import torch
    from bringup import _C
    from bringup.compile.kernel_cache import default_cache
    x = torch.ones(16, device="sim")
    x * 0.5
    _C.kernel_cache_clear()
    files = default_cache().info().entries
    for n in range(10_000):
        x * (n + 1.5)
    info = _C.kernel_cache_info()
    print(info["entries"], info["misses"], default_cache().info().entries - files)
    """
    assert run_python(code, env={**KERNELS, "BRINGUP_CACHE": str(tmp_path)}).stdout.split() == ["1", "1", "0"]
