"""Captured work and its replay, on compiled kernels where a fallback is an error; and devices that cannot capture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.device.programs_graph_limits
import tests.device.programs_graphs  # noqa: F401 (they list themselves)
from tests.device.capturing import PROGRAMS

pytestmark = pytest.mark.skipif(
    not hasattr(torch.accelerator, "Graph"), reason="this PyTorch has no torch.accelerator.Graph"
)

KERNELS = {"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "mode=kernels,devices=2"}


@pytest.fixture(scope="module")
def results(run_python: Any) -> Any:
    code = """
        import tests.device.programs_graph_limits, tests.device.programs_graphs
        from tests.device.capturing import main
        main()
    """
    return json.loads(run_python(code, env=KERNELS, timeout=290).stdout.splitlines()[-1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, results: Any) -> None:
    if results[name] is not None:
        pytest.fail(results[name], pytrace=False)


REFUSED = """
    import torch
    name = {name!r}
    module = getattr(torch, name)
    x = torch.ones(4, device=name)
    graph = module.Graph()
    try:
        with module.graph(graph):
            x.add_(1)
    except RuntimeError as error:
        print(error)
    assert (x + 1).cpu().tolist() == [2, 2, 2, 2]
    assert not module.is_current_stream_capturing()
    module.synchronize()
"""


@pytest.mark.parametrize(
    ("env", "name", "words"),
    [
        ({"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "mode=library"}, "sim", "ATen's CPU kernels"),
        ({"BRINGUP_DRIVERS": "examples/drivers/dictmem.py"}, "dictmem", "no kernels"),
    ],
)
def test_a_device_without_kernels_says_why_nothing_is_captured(
    run_python: Any, env: dict[str, str], name: str, words: str
) -> None:
    done = run_python(REFUSED.format(name=name), env={"BRINGUP_SIM": None, **env})
    assert words in done.stdout
    assert f"{name}:0" in done.stdout


PYTHON_DRIVER = """
import tempfile
from pathlib import Path

from tests.driver.test_python_kernels import HostKernels

class Driver(HostKernels):
    name = "pychip"
    ops = {"aten::mm": lambda out, a, b: None}

    def __init__(self):
        super().__init__(Path(tempfile.mkdtemp()))
"""


def test_a_driver_in_python_without_streams(run_python: Any, tmp_path: Path) -> None:
    """Its only stream is captured; its library would run at once, and is refused by the op's name."""
    path = tmp_path / "pychip.py"
    path.write_text(PYTHON_DRIVER)
    code = """
    import torch
    x = torch.ones(2, 2, device="pychip")
    graph = torch.pychip.Graph()
    with torch.pychip.graph(graph):
        x.add_(1)
        y = x * torch.rand(2, 2, device="pychip").round()
    assert x.sum().item() == 4
    graph.replay()
    graph.replay()
    assert x.sum().item() == 12
    try:
        with torch.pychip.graph(torch.pychip.Graph()):
            x @ x
    except RuntimeError as error:
        print(error)
    assert x.sum().item() == 12
    """
    done = run_python(code, env={"BRINGUP_DRIVERS": str(path), "BRINGUP_SIM": None})
    assert "aten::mm of the driver's library cannot be captured" in done.stdout, done.stdout


def test_graphs_at_exit_and_in_a_fork_are_left_alone(run_python: Any) -> None:
    code = """
    import os, torch
    x = torch.ones(4, device="sim")
    graph = torch.sim.Graph()
    with torch.sim.graph(graph):
        y = x + 1
    graph.replay()
    child = os.fork()
    if child == 0:
        del graph, y
        assert not torch.sim.is_current_stream_capturing()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    unfinished = torch.sim.Graph()
    torch.sim.set_stream(torch.sim.Stream())
    unfinished.capture_begin()
    """
    run_python(code, env=KERNELS, whole_end=True)
