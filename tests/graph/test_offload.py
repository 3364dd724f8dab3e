"""bringup.offload: chosen ops on the device, the model and its tensors on the CPU, the same numbers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bringup
from bringup.offloading import table

MODES = ("module", "fx", "compile")


class Block(nn.Module):
    """A residual block whose ReLU writes to its argument, which the sum reads afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(3 * 36, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x))
        h = h + self.relu(h)
        return F.softmax(self.head(h.flatten(1)), dim=1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        h = torch.tanh(self.first(x))
        return self.second(h), {"hidden": h, "size": h.size(0) * x.new_ones(())}


class Where(TorchDispatchMode):
    """Which ops ran on which kind of device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, str]] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        places = {x.device.type for x in tree_leaves((args, result)) if isinstance(x, Tensor)}
        self.seen |= {(function._overloadpacket.__name__, place) for place in places}
        return result


def close(found: Any, expected: Any) -> None:
    for x, y in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert x.device.type == "cpu"
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


@pytest.fixture
def kept_table() -> Iterator[None]:
    before = dict(table._table)
    yield
    table._table.clear()
    table._table.update(before)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [Block, Tied])
@pytest.mark.parametrize("training", [False, True])
def test_outputs_and_gradients_are_the_models(mode: str, make: type, training: bool, device: str) -> None:
    torch.manual_seed(0)
    here = make().train(training)
    there = copy.deepcopy(here)
    fast = bringup.offload(there, device, min_flops=0, mode=mode)
    shape = (4, 3, 6, 6) if make is Block else (4, 6)
    for _ in range(2):
        x = torch.randn(shape, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        expected, found = here(x), fast(y)
        close(found, expected)
        for one in (expected, found):
            sum(leaf.square().sum() for leaf in tree_leaves(one)).backward()
        close(y.grad, x.grad)
        close([p.grad for p in fast.parameters()], [p.grad for p in here.parameters()])
        close(fast.state_dict(), here.state_dict())  # running statistics too
        for model in (here, there):
            torch.optim.SGD(model.parameters(), lr=0.1).step()
    report = bringup.offload.report(fast)
    assert sum(unit.device_calls for unit in report.units) >= 2 * len(report.units) > 0
    assert bringup.offload.restore(fast) is there
    assert {type(m) for m in there.modules()} == {type(m) for m in here.modules()}
    close(there(x.detach()), here(x.detach()))


@pytest.mark.parametrize("mode", ["module", "fx"])
def test_only_the_chosen_ops_run_there(mode: str, device: str) -> None:
    kind = torch.device(device).type
    model = bringup.offload(Block().eval(), device, ops=["conv"], min_flops=0, mode=mode)
    with Where() as where:
        model(torch.randn(2, 3, 6, 6))
    assert ("convolution", kind) in where.seen
    assert ("convolution", "cpu") not in where.seen
    assert ("addmm", kind) not in where.seen


def test_weights_go_once_and_again_when_they_have_changed(device: str) -> None:
    model = nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 3))
    nbytes = sum(p.numel() * 4 for p in model.parameters())
    bringup.offload(model, device, min_flops=0)
    for _ in range(3):
        model(torch.randn(2, 10))
    assert bringup.offload.report(model).weight_bytes_moved == nbytes
    with torch.no_grad():
        model[0].bias.add_(1)
    model[1].weight.data = torch.zeros(3, 20)
    close(model(torch.zeros(1, 10)), model[1].bias.detach()[None])
    assert bringup.offload.report(model).weight_bytes_moved == nbytes + 4 * (20 + 60)
    assert bringup.offload.report(model).weight_bytes_resident == nbytes
    with torch.inference_mode():
        model(torch.randn(2, 10))
    assert bringup.offload.report(model).weight_bytes_moved == nbytes + 4 * (20 + 60)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_small_stays(mode: str, device: str) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    fast = bringup.offload(model, device, min_flops=2 * 16 * 16 * 8, mode=mode)
    for rows in (2, 64):
        close(fast(torch.ones(rows, 16)), F.relu(F.linear(torch.ones(rows, 16), model[0].weight, model[0].bias)))
    units = bringup.offload.report(fast).units  # compiled: another one for dynamic sizes
    layers = [unit for unit in units if "linear" in unit.ops]
    assert (sum(unit.cpu_calls for unit in layers), sum(unit.device_calls for unit in layers)) == (1, 1)
    assert layers[-1].flops is not None
    assert layers[-1].flops >= 2 * 16 * 16 * 64
    assert "≥ 4,096" in layers[-1].reason


def test_neighbours_go_together(device: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2), nn.Dropout(0.5)).eval()
    for mode, to_device in (("module", 4 * 3 * (4 + 8 + 8)), ("compile", 4 * 3 * 4)):
        fast = bringup.offload(model, device, min_flops=0, mode=mode)
        fast(torch.randn(3, 4))
        report = bringup.offload.report(fast)
        assert sum(unit.bytes_to for unit in report.units) == to_device, str(report)
        bringup.offload.restore(fast)


def test_arguments_that_are_written_to(device: str) -> None:
    """A ReLU in place writes to the CPU's tensor, which is also what it returns."""
    model = bringup.offload(nn.Sequential(nn.ReLU(inplace=True)), device, min_flops=0)
    for context in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with context():
            x = torch.tensor([-1.0, 2.0])
            y = model(x)
            assert y is x
            assert x.tolist() == [0.0, 2.0]


def test_hooks_see_tensors_of_the_cpu(device: str) -> None:
    model, seen = nn.Sequential(nn.Linear(2, 2)), []
    model[0].register_forward_hook(lambda module, args, out: seen.append((args[0].device.type, out.device.type)))
    bringup.offload(model, device, min_flops=0)
    model(torch.ones(1, 2))
    assert seen == [("cpu", "cpu")]


@pytest.mark.usefixtures("kept_table")
def test_registered_modules_and_functions(device: str) -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(3.0))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert x.device.type != "cpu"
            return x + x

    bringup.offload.register("scale", Scale)
    model = bringup.offload(nn.Sequential(Scale()), device, ops=["scale"], min_flops=0)
    close(model(torch.ones(2)), torch.tensor([3.0, 3.0]))
    bringup.offload.register("doubled", Scale, replacement=lambda module, device: Doubled())
    model = bringup.offload(nn.Sequential(Scale()), device, ops=["doubled"], min_flops=0)
    close(model(torch.ones(2)), torch.tensor([2.0, 2.0]))
    for wrong, error in (((), ValueError), ((int,), TypeError)):
        with pytest.raises(error, match="register"):
            bringup.offload.register("nothing", *wrong)


def test_a_model_with_branches_is_for_compile(device: str) -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if x.sum() > 0 else -self.layer(x)

    model = Branch()
    with pytest.raises(ValueError, match="mode='compile'"):
        bringup.offload(model, device, mode="fx")
    fast = bringup.offload(model, device, min_flops=0, mode="compile")
    for sign in (1, -1):
        x = sign * torch.ones(2, 3)
        close(fast(x), model(x))


def raised(call: Callable[[], Any]) -> str:
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    return str(caught.value)


def test_wrong_arguments_are_errors(device: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    offload = bringup.offload
    assert "did you mean 'linear'" in raised(lambda: offload(model, device, ops=["linaer"]))
    assert "a list of names" in raised(lambda: offload(model, device, ops="linear"))
    assert "no mode 'modul'" in raised(lambda: offload(model, device, mode="modul"))
    assert "from 0 on" in raised(lambda: offload(model, device, min_flops=-1))
    assert "name one" in raised(lambda: offload(model, "cpu"))
    assert "torch.nn.Module" in raised(lambda: offload(torch.relu, device))
    assert "not offloaded" in raised(lambda: offload.restore(model))
    assert "leaves the model on the CPU" in raised(lambda: offload(copy.deepcopy(model).to(device), device))
    fast = offload(model, device)
    assert "already" in raised(lambda: offload(model, device))
    assert "restore" in raised(lambda: pickle.dumps(fast))
    assert "restore" in raised(lambda: copy.deepcopy(fast))
    assert offload.restore(fast) is model
    pickle.dumps(model)
    nothing = offload(nn.Sequential(nn.Flatten()), device)
    assert "nothing of this model" in str(offload.report(nothing))


class Steps(nn.Module):
    """Arguments that are no tensors decide what is computed, results are nested."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(
        self, x: torch.Tensor, times: int = 2, before: tuple[torch.Tensor, ...] | None = None, *, name: str = "first"
    ) -> dict[str, object]:
        for _ in range(times):
            x = torch.relu(self.layer(x))
        y = x if before is None else x + before[0]
        if name == "second":
            y = self.layer(y)
        return {"results": (y, [x]), "name": name}


@pytest.mark.parametrize("mode", MODES)
def test_arguments_that_are_no_tensors(mode: str, device: str) -> None:
    model, x = Steps(), torch.randn(3, 6)
    calls: list[tuple[tuple[object, ...], dict[str, object]]] = [
        ((x,), {}),
        ((x, 1), {}),
        ((x,), {"name": "second", "before": (torch.ones(3, 6), x)}),
        ((x, 3, (x,)), {"name": "second"}),
        ((x,), {}),
    ]
    expected = [model(*args, **kwargs) for args, kwargs in calls]
    fast = bringup.offload(model, device, min_flops=0, mode=mode)
    for (args, kwargs), right in zip(calls, expected, strict=True):
        found = fast(*args, **kwargs)
        assert found["name"] == right["name"]
        torch.testing.assert_close(found["results"], right["results"], rtol=1e-4, atol=1e-5)
    bringup.offload.restore(fast)
