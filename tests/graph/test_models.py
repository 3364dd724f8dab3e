"""Whole models, compiled: as exact as the CPU's float32, whose own error against float64 is the measure.

The sizes are small; what is compiled is what ``benchmarks/compile.py`` times at full size.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from graph_models import WORKLOADS, Batch, Workload

from tests.sweeps import swept_unless

# torch.backends.mkldnn.flags() warns about Intel GPUs on every CPU build.
pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")

#: Networks whose training `make test` compiles: products, convolutions with BatchNorm, a recurrence, attention.
KEPT = ("mlp", "resnet18", "lstm", "gpt2")
TRAINED = swept_unless(KEPT, [name for name, work in WORKLOADS.items() if work.loss is not None])
BATCHES = 4
STEPS = 20
EPSILON = torch.finfo(torch.float32).eps

Compiler = Callable[[Any], Any]
Tensors = dict[str, torch.Tensor]


def plain(function: Any) -> Any:
    return function


def wide(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().to("cpu", copy=True).double() for name, tensor in tensors.items()}


def wrong(found: list[Tensors], on_cpu: list[Tensors], exact: list[Tensors]) -> list[str]:
    """Tensors whose error is more than twice the CPU's: largest error of each batch, averaged over batches.

    One batch alone is luck: on a bias of 8 elements two right programs differ threefold, with four batches by half.
    A CPU that hits the exact bits counts as rounding once.
    """
    said = []
    for name in exact[0]:
        error = cpu_error = 0.0
        for ours, theirs, reference in zip(found, on_cpu, exact, strict=True):
            rounding = EPSILON / 2 * reference[name].abs().max().item()
            error += (ours[name] - reference[name]).abs().max().item()
            cpu_error += max((theirs[name] - reference[name]).abs().max().item(), rounding)
        if not error <= 2 * cpu_error:
            said.append(f"{name}: compiled {error / len(exact):.2e}, CPU float32 {cpu_error / len(exact):.2e}")
    return said


# ---- inference ----
def infer(work: Workload, device: str, compiler: Compiler, dtype: torch.dtype = torch.float32) -> list[Tensors]:
    """By batch: the output, and the buffers afterwards (which optimizers change)."""
    model = work.model(small=True).eval().to(device, dtype)
    forward = compiler(model)
    found = []
    with torch.no_grad():
        for index in range(BATCHES):
            output = forward(*work.batch(index, small=True).to(device, dtype).inputs)
            found.append(wide({"output": output, **dict(model.named_buffers())}))
    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_inference_is_as_exact_as_the_cpu(name: str, device: str, backend: str) -> None:
    work = WORKLOADS[name]
    found = infer(work, device, lambda model: torch.compile(model, backend=backend, fullgraph=True))
    off = wrong(found, infer(work, "cpu", plain), infer(work, "cpu", plain, torch.float64))
    assert not off, "errors against CPU float64:\n" + "\n".join(off)


# ---- training ----
@dataclass(frozen=True)
class Run:
    """``steps``: loss, parameters, gradients and buffers after one step from the start, by batch.

    ``losses``: of 20 steps in a row.
    """

    steps: list[Tensors]
    losses: list[float]


def reordered(batch: Batch, shift: int) -> Batch:
    """The same samples in another order: for the mathematics nothing, for sums another order."""
    count = len(batch.inputs[0])

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.roll(shift, 0) if len(tensor) == count else tensor

    target = batch.target.unflatten(0, (count, -1)).roll(shift, 0).flatten(0, 1)
    return replace(batch, inputs=tuple(map(move, batch.inputs)), target=target)


def train(work: Workload, device: str, compiler: Compiler, dtype: torch.dtype = torch.float32, shift: int = 0) -> Run:
    model = work.model(small=True).train().to(device, dtype)
    start = copy.deepcopy(model.state_dict())
    assert work.loss is not None
    loss_of = work.loss
    forward = compiler(lambda inputs, target: loss_of(model(*inputs), target))

    def optimizer() -> torch.optim.Optimizer:
        # Not Adam: its first steps divide a gradient by its own size, and so enlarge what is rounding noise.
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(update: torch.optim.Optimizer, index: int) -> torch.Tensor:
        batch = reordered(work.batch(index, small=True), shift).to(device, dtype)
        update.zero_grad()
        loss = forward(batch.inputs, batch.target)
        loss.backward()
        update.step()
        return loss

    steps = []
    for index in range(BATCHES):
        model.load_state_dict(start)
        loss = step(optimizer(), index)
        gradients = {f"gradient of {key}": value.grad for key, value in model.named_parameters()}
        steps.append(wide({"loss": loss, **gradients, **dict(model.named_parameters()), **dict(model.named_buffers())}))
    model.load_state_dict(start)
    update = optimizer()
    return Run(steps, [step(update, index).item() for index in range(STEPS)])


@cache
def on_the_cpu(name: str) -> tuple[Run, list[Run]]:
    """The float64 run, and float32 in several orders; the first is the plain one."""
    work = WORKLOADS[name]
    runs = [train(work, "cpu", plain, shift=shift) for shift in (0, 1, 2)]
    with torch.backends.mkldnn.flags(enabled=False):
        runs += [train(work, "cpu", plain, shift=shift) for shift in (0, 1)]
    return train(work, "cpu", plain, torch.float64), runs


@cache
def compiled(name: str, device: str, backend: str) -> Run:
    return train(WORKLOADS[name], device, lambda step: torch.compile(step, backend=backend, fullgraph=True))


@pytest.mark.parametrize("name", TRAINED)
def test_one_step_is_as_exact_as_the_cpu(name: str, device: str, backend: str) -> None:
    exact, runs = on_the_cpu(name)
    off = wrong(compiled(name, device, backend).steps, runs[0].steps, exact.steps)
    assert not off, "errors against CPU float64:\n" + "\n".join(off)


@pytest.mark.parametrize("name", TRAINED)
def test_twenty_steps_stay_as_close_as_the_cpu_to_itself(name: str, device: str, backend: str) -> None:
    _, runs = on_the_cpu(name)
    spread = max(max(losses) - min(losses) for losses in zip(*(run.losses for run in runs), strict=True))
    spread = max(spread, EPSILON * abs(runs[0].losses[-1]))
    difference = abs(compiled(name, device, backend).losses[-1] - runs[0].losses[-1])
    assert difference <= 3 * spread, f"loss off by {difference:.2e}; CPU against itself {spread:.2e}"


@pytest.mark.parametrize("name", ["mlp", "gpt2", "resnet18"])
def test_compiled_and_eager_take_turns(name: str, device: str, backend: str) -> None:
    """One module, called compiled and plain: the same state, and eval mode compiles again."""
    work = WORKLOADS[name]
    model = work.model(small=True).to(device)
    twin = copy.deepcopy(model)
    forward = torch.compile(model, backend=backend)
    batch = work.batch(0, small=True).to(device)
    for training in (True, False):
        model.train(training)
        twin.train(training)
        torch.testing.assert_close(forward(*batch.inputs), twin(*batch.inputs), rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(model(*batch.inputs), twin(*batch.inputs), rtol=2e-5, atol=2e-5)
    for (key, one), (_, other) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5, msg=lambda text, key=key: f"{key}: {text}")
