"""Bad input at the front doors of target riscv: errors that say what is wrong, and what to install or change."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import nn

import bringup
from bringup.graph.bare_metal.build import DoesNotFit
from bringup.riscv import GuestError
from bringup.riscv.toolchain import ToolchainMissing

X = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def simulate(model: Any, *inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    backend = bringup.Backend(target="riscv", **options)
    with torch.no_grad():
        result: torch.Tensor = torch.compile(model, backend=backend, dynamic=False)(*inputs)
    return result


def linear(inside: int, outside: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(inside, outside).eval()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"vectors": 256}, "unknown option 'vectors' for target riscv: there are vector, isa"),
        ({"vector": 100}, "vector=100 is none of 0, 128, 256, 512 and 1024 bits"),
        ({"isa": "rv16"}, "isa 'rv16' is none of rv64gc"),
        ({"isa": "rv64gc", "vector": 128}, "vector=128 needs an isa with v, not rv64gc"),
        ({"machine": "spike"}, "machine 'spike' is none of interpreter, qemu"),
        ({"toolchain": "icc"}, "toolchain 'icc' is none of zig, clang and gcc"),
        ({"ram": "lots"}, "'lots' is not a number of bytes: write 65536, 64K, 2M or 1G"),
        ({"flash": -1}, "-1 bytes are less than none"),
        ({"stack": 100}, "a stack of 112 bytes is too small"),
        ({"seconds": -1}, "seconds=-1 is not a time for a run"),
        ({"seconds": float("nan")}, "seconds=nan is not a time for a run"),
        ({"accelerator": "tpu"}, "accelerator 'tpu' reads unlike gemm@0x10320000"),
    ],
)
def test_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bringup.Backend(target="riscv", **options)


def test_an_unknown_option_of_export(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="unknown option 'vektor' for target riscv"):
        bringup.export(linear(8, 2), (X,), target="riscv", out=tmp_path, vektor=256)


def test_an_unknown_target() -> None:
    with pytest.raises(ValueError, match="no target 'riscv128'"):
        bringup.Backend(target="riscv128")


def test_too_big_for_its_memory() -> None:
    with pytest.raises(DoesNotFit, match=r"bytes of RAM, and there are 16,384: .* stack"):
        simulate(linear(8, 8), X, ram="16K")
    with pytest.raises(DoesNotFit, match=r"bytes of flash, and there are 1,024: code .* weights"):
        simulate(linear(8, 64), X, flash="1K")


def test_weights_take_no_ram() -> None:
    model, x = linear(300, 300), torch.ones(1, 300)
    torch.testing.assert_close(simulate(model, x, ram="128K", flash="512K"), model(x))


def test_an_op_without_a_kernel_is_named() -> None:
    with pytest.raises(Exception, match=r"linalg_qr|linalg_householder") as caught:
        simulate(lambda x: torch.linalg.qr(x.view(2, 4)).R, X)
    assert "kernel" in str(caught.value) or "lowering" in str(caught.value)


def test_dynamic_sizes_cannot_be_exported(tmp_path: Any) -> None:
    batch = torch.export.Dim("batch", min=2, max=8)
    with pytest.raises(ValueError, match="fixed sizes, and batch is dynamic"):
        bringup.export(linear(8, 2), (X.repeat(3, 1),), target="riscv", out=tmp_path, dynamic_shapes=({0: batch},))


def test_dropout_of_a_model_in_training_is_refused(tmp_path: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).train()
    with pytest.raises(ValueError, match=r"random numbers .* model\.eval\(\)"):
        bringup.export(model, (X,), target="riscv", out=tmp_path)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "ziglang" else found(name, *more)
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BRINGUP_RISCV_CC", raising=False)
    with pytest.raises(ToolchainMissing, match="pip install ziglang, or apt-get install gcc-riscv64-unknown-elf"):
        simulate(linear(8, 3), X)


def test_no_compiler_of_a_family(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The advice is for the family that was asked for, not for one that is there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainMissing, match=r"of the family clang: .* apt-get install clang lld") as caught:
        simulate(linear(8, 3), X, toolchain="clang")
    assert "zig" not in str(caught.value)


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_RISCV_CC", "no-such-gcc -O2")
    with pytest.raises(ToolchainMissing, match="there is no program 'no-such-gcc'"):
        simulate(linear(8, 3), X)


def test_no_qemu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"machine 'qemu' cannot run here: .* apt-get install qemu-system-misc"):
        simulate(linear(8, 3), X, machine="qemu", toolchain="zig")


def test_an_index_out_of_range_names_the_step() -> None:
    table = torch.randn(5, 3)
    with pytest.raises(IndexError, match=r"embedding.*: an index is out of range"):
        simulate(nn.functional.embedding, torch.tensor([1, 9]), table)


def test_a_run_that_takes_too_long_ends_with_the_place() -> None:
    with pytest.raises(GuestError, match=r"(?s)ran longer than 0.01 s.*pc 0x8\w+ in \w+ \(model.c:\d+\).* ra 0x"):
        simulate(lambda x: x @ x @ x, torch.randn(256, 256), seconds=0.01)
