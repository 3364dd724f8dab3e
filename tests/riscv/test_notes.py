"""Every generated kernel says which ops, shapes and lines of the model it is; programs do not change by it."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bringup
from bringup.graph.bare_metal.build import model_files, model_of
from bringup.graph.bare_metal.options import BareMetal
from tests.riscv.static_models import program_of_model

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(32, 4)

    def forward(self, x):
        y = torch.relu(self.conv(x))  # line 11
        return self.head(y.flatten(1))  # line 12
"""
X = torch.randn(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _modules_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo looks modules up by name."""
    for name in ("net", "net0", "net1"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def net(folder: Path, file: str = "net.py", ahead: str = "") -> nn.Module:
    """A model from a file of its own."""
    path = folder / file
    path.write_text(ahead + SOURCE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    made: nn.Module = module.Net().eval()
    return made


def notes(folder: Path) -> list[str]:
    """The comments above the functions of a project."""
    text = (folder / "model.c").read_text()
    return re.findall(r"^/\* (.* → .*) \*/\n(?:extern|static|void) .*\)(?: \{|;)$", text, re.MULTILINE)


CONVOLUTION = "convolution, relu: 1 × 1 × 4 × 4, 2 × 1 × 3 × 3, 2 → 1 × 2 × 4 × 4 (net.py:11, layer conv)"
PRODUCT = "addmm: 4, 1 × 32, 32 × 4 → 1 × 4 (net.py:12, layer head)"


@pytest.mark.parametrize("vector", [0, 256])
def test_exported_and_compiled_kernels_say_where_they_come_from(vector: int, tmp_path: Path) -> None:
    model = net(tmp_path)
    bringup.export(model, (X,), target="riscv", out=tmp_path / "exported", vector=vector)
    torch._dynamo.reset()
    backend = bringup.Backend(mode="codegen", target="riscv", output_dir=tmp_path / "compiled", vector=vector)
    with torch.no_grad():
        torch.compile(model, backend=backend)(X)
    for folder in ("exported", "compiled"):
        found = notes(tmp_path / folder)
        assert set(found) == {CONVOLUTION, PRODUCT}, "padding and rows are the convolution's"
        assert len(found) == len(re.findall(r"^  [a-z_0-9]+\(.*report\);$", _text(tmp_path / folder), re.MULTILINE))


def _text(folder: Path) -> str:
    return (folder / "model.c").read_text()


def test_the_same_loops_from_another_line_are_the_same_program(tmp_path: Path) -> None:
    """What the emulator runs, and the key that it is cached by, know no lines; those that people read do."""
    files = []
    for n, ahead in enumerate(("", "# a line more\n\n")):
        (tmp_path / str(n)).mkdir()
        model = model_of(program_of_model(net(tmp_path / str(n), f"net{n}.py", ahead), X), BareMetal())
        files.append((model_files(model, notes=False), model_files(model)))
    assert files[0][0] == files[1][0]
    assert files[0][1] != files[1][1]
    for built, shown in files:
        assert str(built["model.c"]).count("\n") == str(shown["model.c"]).count("\n"), "lines of errors are the same"


def test_reports_say_it_too(tmp_path: Path) -> None:
    torch._dynamo.reset()
    backend = bringup.Backend(target="riscv")
    with torch.no_grad():
        torch.compile(net(tmp_path), backend=backend)(X)
    (report,) = backend.reports()
    assert [layer.source for layer in report.layers][-1] == PRODUCT
    assert PRODUCT in [layer["source"] for layer in json.loads(report.json())["layers"]]


def test_files_of_other_targets_do_not_change(tmp_path: Path) -> None:
    paths = []
    for n, ahead in enumerate(("", "# a line more\n\n")):
        (tmp_path / str(n)).mkdir()
        paths.append(bringup.export(net(tmp_path / str(n), "net.py", ahead), (X,), out=tmp_path / f"{n}.bup"))
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_sources_of_a_devices_kernels_say_it(tmp_path: Path, device: str) -> None:
    torch._dynamo.reset()
    backend = bringup.Backend(mode="codegen", output_dir=tmp_path / "kernels")
    model = nn.Sequential(net(tmp_path), nn.Linear(4, 4)).eval().to(device)
    with torch.no_grad():
        torch.compile(model, backend=backend)(X.to(device))
    texts = [path.read_text() for path in sorted((tmp_path / "kernels").iterdir())]
    wanted = CONVOLUTION.replace("layer conv", "layer 0.conv, layer 0")
    assert any(text.startswith(f"/* {wanted} */\n") for text in texts), [text.partition("\n")[0] for text in texts]
    assert all(text.startswith("/* ") for text in texts)
