"""Kernels on memory in partitions: shared out where that is right, with the CPU's numbers, no byte moved in vain."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from tests.device import test_training

SIM = {"BRINGUP_DRIVERS": "sim", "BRINGUP_FALLBACK": "error", "BRINGUP_TEST_DEVICE": None}
START = """
import torch
from bringup import _C
from bringup.driver import PlacementKind
SINGLE, REPLICATE, SHARD, PARTIAL = PlacementKind

def lies(tensor):
    return _C.placement(tensor.untyped_storage())

def moved(work):
    before = _C.relayouts()[1]
    result = work()
    return result, _C.relayouts()[1] - before

def agree(device, cpu):
    torch.testing.assert_close(device.cpu(), cpu, rtol=1e-4, atol=1e-4)

torch.manual_seed(0)
"""


@pytest.fixture
def on_partitions(run_python: Callable[..., Any]) -> Callable[..., str]:
    def run(code: str, options: str = "partitions=4,memory=1G,placement=auto") -> str:
        program = START + textwrap.dedent(code)
        return str(run_python(program, env={**SIM, "BRINGUP_SIM": options}).stdout)

    return run


@pytest.mark.timeout(300)
@pytest.mark.parametrize("placement", ["auto", "shard"])
def test_training_without_fallbacks(placement: str, run_python: Callable[..., Any]) -> None:
    """The four programs of test_training.py, where a fallback is an error: their first steps and their losses."""
    wanted = "one_step_is_as_exact or loss_falls" if placement == "auto" else "loss_falls"
    options = [str(test_training.__file__), "-q", "-k", wanted, "-p", "no:cacheprovider", "-n0"]
    code = f"import pytest, sys; sys.exit(pytest.main({options!r}))"
    env = {**SIM, "BRINGUP_SIM": f"partitions=4,placement={placement}"}
    said = run_python(code, env=env, timeout=280).stdout
    marks = said.partition("[100%]")[0].strip()
    assert len(marks) >= 4
    assert set(marks) == {"."}, said


def test_where_results_lie(on_partitions: Callable[..., str]) -> None:
    on_partitions("""
        x, y, w, b = torch.randn(1000, 64), torch.randn(1000, 64), torch.randn(64, 64), torch.randn(64)
        dx, dy, dw, db = (t.to("sim") for t in (x, y, w, b))
        assert lies(dx) == (SHARD, 64000) and lies(db) == (REPLICATE, 0)
        for name, work, cpu, most in [
            ("elementwise", lambda: dx * dy + 1, x * y + 1, 0),
            ("rows with a bias", lambda: torch.relu(dx + db), torch.relu(x + b), 0),
            ("rows reduced", lambda: dx.sum(1), x.sum(1), 0),
            ("softmax of rows", lambda: dx.softmax(1), x.softmax(1), 0),
            ("rows by a matrix", lambda: dx @ dw, x @ w, w.numel() * 4),
            ("in place", lambda: dy.mul_(2), y * 2, 0),
        ]:
            result, nbytes = moved(work)
            agree(result, cpu)
            assert lies(result)[0] == SHARD, name
            assert nbytes <= most, (name, nbytes)
        small = db * 2 + 1
        assert lies(small) == (REPLICATE, 0)
        agree(small, b * 2 + 1)
    """)


def test_every_layout_gives_the_numbers_of_the_cpu(on_partitions: Callable[..., str]) -> None:
    on_partitions(
        """
        F = torch.nn.functional
        places = [(SINGLE, 0), (REPLICATE, 0), (SHARD, 8), (SHARD, 96), (SHARD, 4096), (PARTIAL, 0)]
        for rows, columns in ((1, 1), (3, 5), (7, 16), (33, 24), (130, 3)):
            x, y = torch.randn(rows, columns), torch.randn(rows, columns)
            for n, place in enumerate(places):
                dx, dy = x.to("sim"), y.to("sim")
                _C.relayout(dx.untyped_storage(), *place)
                _C.relayout(dy.untyped_storage(), *places[n - 2])
                for work in (
                    lambda a, b: a + b,
                    lambda a, b: a[1:] * b[:-1],
                    lambda a, b: a.t() @ b,
                    lambda a, b: a @ b.t(),
                    lambda a, b: a.t().contiguous() - 1,
                    lambda a, b: torch.cat([a, b], 1),
                    lambda a, b: a.flip(0) + b[::1, :1],
                    lambda a, b: F.layer_norm(a, (a.shape[1],)) + b.sum(0),
                    lambda a, b: a.cumsum(0) + b.amax(1, keepdim=True),
                    lambda a, b: torch.where(a > b, a, b).sort(1).values,
                ):
                    agree(work(dx, dy), work(x, y))
                here = x.clone()
                for one, other in ((here, y), (dx, dy)):
                    one[:, ::2].add_(other[:, ::2])
                    one[rows // 2].fill_(3)
                    torch.mul(one, other, out=one)
                agree(dx, here)
                assert lies(dx) == place, "ops do not move a storage"
        index = torch.randint(0, 130, (40,))
        agree(torch.randn(130, 3).to("sim").index_add(0, index.to("sim"), torch.ones(40, 3).to("sim")) * 0,
              torch.zeros(130, 3))
        table = torch.randn(130, 30)
        agree(F.embedding(index.to("sim"), table.to("sim")), F.embedding(index, table))
        try:
            F.embedding(index.to("sim") + 100, table.to("sim")).cpu()
            assert False
        except IndexError as error:
            assert "embedding" in str(error)
        """,
        options="partitions=3,memory=1G,placement=auto",
    )


def test_a_chain_moves_nothing_and_is_one_launch_when_compiled(on_partitions: Callable[..., str]) -> None:
    on_partitions("""
        import bringup
        from torch.profiler import profile

        def chain(x):
            for n in range(5):
                x = torch.relu(x * 0.5) + n
            return x

        x = torch.randn(4096, 32)
        dx = x.to("sim")
        result, nbytes = moved(lambda: chain(dx))
        agree(result, chain(x))
        assert nbytes == 0 and lies(result)[0] == SHARD
        backend = bringup.Backend()
        compiled = torch.compile(chain, backend=backend)
        compiled(dx)
        result, nbytes = moved(lambda: compiled(dx))
        agree(result, chain(x))
        assert nbytes == 0 and lies(result)[0] == SHARD, (nbytes, lies(result))
        assert len(backend.graphs[0].structures[0].variant.kernel_calls) == 1
    """)


def test_compiled_networks(on_partitions: Callable[..., str]) -> None:
    on_partitions("""
        import copy
        from torch import nn
        net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                            nn.Flatten(), nn.Linear(8 * 64, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 10))
        there = copy.deepcopy(net).to("sim")
        compiled = torch.compile(there, backend="bringup")
        for _ in range(2):
            x, target = torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))
            loss = nn.functional.cross_entropy(net(x), target)
            other = nn.functional.cross_entropy(compiled(x.to("sim")), target.to("sim"))
            agree(other, loss)
            loss.backward()
            other.backward()
            for p, q in zip(net.parameters(), there.parameters()):
                agree(q.grad, p.grad)
            for model in (net, there):
                torch.optim.SGD(model.parameters(), lr=0.01).step()
                model.zero_grad()
    """)


def test_a_capture_is_refused(on_partitions: Callable[..., str]) -> None:
    assert "partitioned" in on_partitions("""
        x = torch.ones(8, device="sim")
        y = x + 1
        graph = torch.sim.Graph() if hasattr(torch.sim, "Graph") else torch.sim.CUDAGraph()
        try:
            with torch.sim.graph(graph):
                x + 1
        except RuntimeError as error:
            print(error)
    """)
