"""``Backend(target="riscv")``: the five modes, what they print and write, reports, and models that change."""

from __future__ import annotations

import json
import re
import shutil
import threading
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import nn

import bringup
from bringup.riscv import machine_class

X = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> nn.Module:
    torch._dynamo.reset()
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).eval().requires_grad_(False)


# ---- modes ----
def test_eager_and_trace_run_no_guest(model: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("eager", "trace"):
        torch._dynamo.reset()
        backend = bringup.Backend(mode=mode, target="riscv")
        assert torch.equal(torch.compile(model, backend=backend)(X), model(X))
        assert backend.report() == "no graph has run yet"
    assert "addmm" in capsys.readouterr().out


def test_compile_prints_the_kernels(model: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    backend = bringup.Backend(mode="compile", target="riscv")
    assert torch.equal(torch.compile(model, backend=backend)(X), model(X))
    assert capsys.readouterr().out.count("kernel ") == 2
    assert not backend.reports()


@pytest.mark.parametrize("mode", ["codegen", "run", "simulate"])
def test_an_output_folder_gets_the_project(model: nn.Module, mode: str, tmp_path: Path) -> None:
    backend = bringup.Backend(mode=mode, target="riscv", output_dir=tmp_path / "out", name="net", vector=128)
    torch.testing.assert_close(torch.compile(model, backend=backend)(X), model(X))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    wanted = "Makefile crt0.S main.c net.c net.h net.ld net_inputs.bin net_vector.S net_weights.bin net_weights.c"
    assert names >= set(wanted.split())
    assert "layer_0_addmm_relu" in (tmp_path / "out" / "net.c").read_text()
    assert bool(backend.reports()) == (mode != "codegen")


def test_codegen_without_a_folder_is_an_error() -> None:
    with pytest.raises(ValueError, match="output_dir"):
        bringup.Backend(mode="codegen", target="riscv")


def test_verbose_shows_graph_and_kernels(model: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    backend = bringup.Backend(target="riscv", verbose=True)
    torch.compile(model, backend=backend)(X)
    out = capsys.readouterr().out
    assert "aten" in out
    assert "kernel " in out


def test_a_break_in_the_graph_makes_two_programs(model: nn.Module, tmp_path: Path) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        torch._dynamo.graph_break()
        return y.exp()

    backend = bringup.Backend(target="riscv", output_dir=tmp_path)
    torch.testing.assert_close(torch.compile(broken, backend=backend)(X), model(X).exp())
    assert len(backend.reports()) == 2
    assert (tmp_path / "Makefile").exists()
    assert (tmp_path / "graph1" / "Makefile").exists()


# ---- machines ----
@pytest.mark.parametrize("vector", [0, 256])
def test_machines_agree_on_bytes_and_instructions(model: nn.Module, vector: int) -> None:
    found = {}
    if reason := machine_class("qemu").absent_reason():
        pytest.skip(reason)
    for machine in ("interpreter", "qemu"):
        torch._dynamo.reset()
        backend = bringup.Backend(target="riscv", machine=machine, vector=vector)
        result = torch.compile(model, backend=backend)(X)
        found[machine] = result.numpy().tobytes(), backend.reports()[0].instructions
    assert found["interpreter"] == found["qemu"]


def test_every_vector_length_gives_the_same_bytes(model: nn.Module) -> None:
    results = []
    for vector in (0, 128, 256, 512, 1024):
        torch._dynamo.reset()
        backend = bringup.Backend(target="riscv", vector=vector)
        results.append(torch.compile(model, backend=backend)(X))
    assert all(torch.equal(one, results[0]) for one in results)


@pytest.mark.parametrize("isa", ["rv32imc", "rv32imfc"])
def test_cores_of_32_bits(model: nn.Module, isa: str) -> None:
    backend = bringup.Backend(target="riscv", isa=isa)
    torch.testing.assert_close(torch.compile(model, backend=backend)(X), model(X))
    assert backend.reports()[0].isa == isa


def test_weights_that_change_without_a_count(model: nn.Module) -> None:
    """Writes through .data and NumPy move no version counter."""
    backend = bringup.Backend(target="riscv")
    run = torch.compile(model, backend=backend)
    for write in (lambda: None, lambda: model[0].weight.data.mul_(3), lambda: model[2].bias.numpy().fill(2)):
        write()
        torch.testing.assert_close(run(X), model(X))


# ---- reports ----
def test_the_difference_from_eager_is_the_last_calls() -> None:
    torch._dynamo.reset()
    backend = bringup.Backend(target="riscv")
    run = torch.compile(lambda x: (x * 3 + x.exp()).sum(), backend=backend)
    found = []
    for x in (torch.zeros(9), torch.full((9,), 8.3)):
        run(x)
        found.append(backend.reports()[0].error)
    assert found[0] == 0
    assert found[1] > 0


class _Page(HTMLParser):
    """The words of a page, and what its bars say when one points at them."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tips: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tips += [value or "" for name, value in attrs if name == "title"]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_reports_as_text_json_and_page(model: nn.Module, tmp_path: Path) -> None:
    backend = bringup.Backend(target="riscv", vector=256, name="net")
    torch.compile(model, backend=backend)(X)
    (report,) = backend.reports()
    assert backend.report() == report.text()
    assert re.match(r"net on interpreter \(rv64gcv, vectors of 256 bits\): [\d,]+ instructions, ", report.text())
    assert [layer.macs for layer in report.layers] == [2 * 6 * 16, 2 * 16 * 3]
    told = [layer.instructions or 0 for layer in report.layers]
    assert min(told) > 0
    assert sum(told) <= report.instructions < sum(told) + 100, "all but the calls themselves is some layer's"
    assert report.error is not None
    assert report.error < 1e-5

    saved = json.loads(report.save(tmp_path / "report.json").read_text())
    assert saved["instructions"] == report.instructions
    assert [layer["instructions"] for layer in saved["layers"]] == told
    assert set(saved["sizes"]) == {"code", "weights", "arena", "tensors", "stack"}
    page = _Page()
    page.feed(report.save(tmp_path / "report.html").read_text())
    assert len(page.tips) == len(report.layers)
    assert all(layer.name in " ".join(page.words) for layer in report.layers)
    assert report.save(tmp_path / "report.txt").read_text() == report.text()


@pytest.mark.parametrize("toolchain", ["zig", "gcc"])
def test_layers_are_told_apart_whichever_compiler(model: nn.Module, toolchain: str) -> None:
    """gcc makes copies of functions under other names."""
    if toolchain == "gcc" and shutil.which("riscv64-unknown-elf-gcc") is None:
        pytest.skip("riscv64-unknown-elf-gcc is not installed (Debian: gcc-riscv64-unknown-elf)")
    backend = bringup.Backend(target="riscv", toolchain=toolchain)
    torch.compile(model, backend=backend)(X)
    (report,) = backend.reports()
    assert sum(layer.instructions or 0 for layer in report.layers) > 0.8 * report.instructions


def test_a_hostile_name_stays_text_in_the_page() -> None:
    torch._dynamo.reset()
    backend = bringup.Backend(target="riscv", name="<script>alert(1)</script>")
    torch.compile(torch.exp, backend=backend)(X)
    assert "<script" not in backend.reports()[0].html()


def test_reports_are_of_this_target() -> None:
    with pytest.raises(ValueError, match="riscv"):
        bringup.Backend().reports()


# ---- models that change ----
def test_changed_weights_are_seen(model: nn.Module) -> None:
    compiled = torch.compile(model, backend=bringup.Backend(target="riscv"))
    before = compiled(X)
    layer = model[0]  # type: ignore[index]
    layer.weight.mul_(2.0)
    after = compiled(X)
    torch.testing.assert_close(after, model(X))
    assert not torch.equal(before, after)
    layer.weight = nn.Parameter(torch.zeros_like(layer.weight), requires_grad=False)
    torch.testing.assert_close(compiled(X), model(X))


def test_other_sizes_get_a_program_of_their_own(model: nn.Module) -> None:
    compiled = torch.compile(model, backend=bringup.Backend(target="riscv"))
    for rows in (2, 5, 1, 2):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(compiled(x), model(x))


def test_gradients() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    backend = bringup.Backend(target="riscv")
    torch.compile(model, backend=backend)(X).square().sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(X).square().sum().backward()
    for ours, parameter in zip(found, model.parameters()):
        torch.testing.assert_close(ours, parameter.grad)
    assert len(backend.reports()) == 2


def test_two_threads_share_a_guest(model: nn.Module) -> None:
    compiled = torch.compile(model, backend=bringup.Backend(target="riscv"))
    compiled(X)
    wrong = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            x = torch.randn(2, 6, generator=generator)
            if not torch.allclose(compiled(x), model(x), atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_int8_model_gives_its_integers() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)).eval()
    x = torch.randn(1, 1, 8, 8)
    quantized = bringup.quantize(model, [(torch.randn(1, 1, 8, 8),) for _ in range(4)])
    for vector in (0, 256):
        torch._dynamo.reset()
        backend = bringup.Backend(target="riscv", vector=vector)
        with torch.no_grad():
            assert torch.equal(torch.compile(quantized, backend=backend)(x), quantized(x))
