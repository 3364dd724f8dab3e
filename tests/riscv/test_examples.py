"""The examples of examples/riscv run as commands, small; each compares its guest with eager PyTorch itself."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

Run = Callable[..., str]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "riscv"
#: Example → its arguments, and words that it prints.
RUNS = {
    "mlp": ("--vector 256 --steps 150", ["points are classified right", "layer_2_addmm_relu"]),
    "matmul": ("", ["bias and relu", "VLEN 512"]),
    "attention": ("--vector 0 --tokens 6", ["safe_softmax"]),
    "mobilenet": ("--side 16", ["mobilenet on interpreter"]),
    "keyword_spotting": ("--steps 5 --count 2", ["quantized_convolution", "by the int8 guest"]),
    "tiny_gpt": ("--steps 5 --letters 3 --prompt day", ["day", "instructions a letter"]),
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs an example as ``python examples/riscv/NAME.py ARGUMENTS`` does; gives what it prints."""

    def as_command(name: str, *arguments: str) -> str:
        torch._dynamo.reset()
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.syspath_prepend(str(EXAMPLES))
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    threads = torch.get_num_threads()
    yield as_command
    torch.set_num_threads(threads)


def test_every_example_runs_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_it_runs(name: str, run: Run) -> None:
    arguments, words = RUNS[name]
    out = run(name, *arguments.split())
    assert all(word in out for word in words), out


def test_the_mlp_writes_a_project(run: Run, tmp_path: Path) -> None:
    run("mlp", "--steps", "1", "--out", str(tmp_path / "project"))
    assert (tmp_path / "project" / "Makefile").exists()


def test_mobilenet_draws_its_page(run: Run, tmp_path: Path) -> None:
    run("mobilenet", "--side", "16", "--page", str(tmp_path / "page.html"))
    assert "<h1>mobilenet" in (tmp_path / "page.html").read_text()


def test_a_prompt_of_other_letters_is_refused(run: Run) -> None:
    with pytest.raises(SystemExit, match="which has no '3', 'Z'"):
        run("tiny_gpt", "--prompt", "Z3")
