"""Training on the device, judged by the CPU's distance from float64 and from itself (rule: judged by float64)."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import models

# torch.backends.mkldnn.flags() warns about Intel GPUs on every CPU build.
pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")

Optimizer = Callable[[Any, dict[str, bool]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda parameters, form: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, **form),
    # eps is larger than the default 1e-8: Adam's first step divides a gradient by its own size, so that the rounding
    # noise of the smallest one (1e-9) decides the largest error of a weight: with 1e-5 the CPU's own changes tenfold
    # from seed to seed. With 1e-3 noise stays noise.
    "adamw": lambda parameters, form: torch.optim.AdamW(parameters, lr=3e-3, eps=1e-3, **form),
}
FORMS: dict[str, dict[str, bool]] = {
    "plain": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}

every_combination = [
    pytest.param(model, optimizer, form, id=f"{model}-{optimizer}-{form}")
    for model in models.MODELS
    for optimizer in OPTIMIZERS
    for form in FORMS
]

Tensors = dict[str, torch.Tensor]


def train(
    name: str,
    optimizer: str,
    form: str,
    device: str,
    steps: int,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> tuple[list[float], Tensors]:
    """Losses of every step; then parameters, gradients and buffers of the end, as float64 on the CPU."""
    model = models.build(name).to(device=device, dtype=dtype)
    data = models.Data(name, batch_size=16)
    if name == "cnn":
        model = model.to(memory_format=memory_format)
    update = OPTIMIZERS[optimizer](model.parameters(), FORMS[form])
    losses = []
    for step in range(steps):
        inputs, targets = data.batch(step)
        inputs, targets = inputs.to(device=device, dtype=dtype), targets.to(device)
        if name == "cnn":
            inputs = inputs.contiguous(memory_format=memory_format)
        update.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        update.step()
        losses.append(loss.item())
    tensors = {f"gradient of {key}": value.grad for key, value in model.named_parameters()}
    tensors |= dict(model.named_parameters()) | dict(model.named_buffers())
    return losses, {key: value.detach().to("cpu").double() for key, value in tensors.items()}


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cpu_against_itself(model: str, optimizer: str, form: str, steps: int) -> list[tuple[list[float], Tensors]]:
    """The same mathematics on the CPU in other orders; the first run is the plain one."""
    runs = [train(model, optimizer, form, "cpu", steps)]
    with torch.backends.mkldnn.flags(enabled=False):
        runs.append(train(model, optimizer, form, "cpu", steps))
    if model == "cnn":
        runs.append(train(model, optimizer, form, "cpu", steps, memory_format=torch.channels_last))
        return runs
    for count in (1, 2):
        with threads(count):
            runs.append(train(model, optimizer, form, "cpu", steps))
    return runs


@pytest.mark.parametrize(("model", "optimizer", "form"), every_combination)
def test_one_step_is_as_exact_as_the_cpu(model: str, optimizer: str, form: str, device: str) -> None:
    _, exact = train(model, optimizer, "plain", "cpu", 1, torch.float64)
    _, on_cpu = train(model, optimizer, form, "cpu", 1)
    _, on_device = train(model, optimizer, form, device, 1)
    wrong = []
    for key, reference in exact.items():
        cpu_error = (on_cpu[key] - reference).abs().max().item()
        device_error = (on_device[key] - reference).abs().max().item()
        if not device_error <= 2 * cpu_error:
            wrong.append(f"{key}: device {device_error:.2e}, CPU float32 {cpu_error:.2e}")
    assert not wrong, "errors against CPU float64:\n" + "\n".join(wrong)


@pytest.mark.parametrize(("model", "optimizer", "form"), every_combination)
def test_twenty_steps_stay_as_close_as_the_cpu_to_itself(model: str, optimizer: str, form: str, device: str) -> None:
    runs = [losses for losses, _ in cpu_against_itself(model, optimizer, form, 20)]
    on_device, _ = train(model, optimizer, form, device, 20)
    # Two runs may cross by chance at the last step, so the spread is the largest of the 20 steps.
    spread = max(max(losses) - min(losses) for losses in zip(*runs, strict=True))
    # The CPU may add up in one order only (the MLP): then the last bit of the loss counts.
    spread = max(spread, torch.finfo(torch.float32).eps * runs[0][-1])
    difference = abs(on_device[-1] - runs[0][-1])
    assert difference <= 3 * spread, f"loss off by {difference:.2e}; CPU against itself {spread:.2e}"


@pytest.mark.parametrize("model", list(models.MODELS))
def test_the_loss_falls(model: str, device: str) -> None:
    losses, _ = train(model, "adamw", "plain", device, 60)
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


@pytest.mark.parametrize("model", list(models.MODELS))
def test_evaluation_after_training_agrees(model: str, device: str) -> None:
    """A model trained on the CPU and moved gives the same predictions in eval mode (BatchNorm uses its buffers)."""
    trained = models.build(model)
    trained.train()
    trained(models.Data(model).batch(0)[0])
    trained.eval()
    inputs = models.Data(model).batch(1)[0]
    with torch.no_grad():
        expected = trained(inputs)
        moved = copy.deepcopy(trained).to(device)(inputs.to(device)).cpu()
    torch.testing.assert_close(moved, expected)


def test_optimizer_state_survives_save_and_load(device: str, tmp_path: Path) -> None:
    """Stopping after 3 steps, saving, loading and going on gives the bits of 6 steps in one go."""

    def step(model: torch.nn.Module, update: torch.optim.Optimizer, index: int) -> None:
        inputs, targets = (tensor.to(device) for tensor in models.Data("mlp").batch(index))
        update.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        update.step()

    def fresh() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = models.build("mlp").to(device)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    straight, straight_update = fresh()
    for index in range(6):
        step(straight, straight_update, index)
    model, update = fresh()
    for index in range(3):
        step(model, update, index)
    torch.save({"model": model.state_dict(), "optimizer": update.state_dict()}, tmp_path / "checkpoint.pt")
    model, update = fresh()
    checkpoint = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    model.load_state_dict(checkpoint["model"])
    update.load_state_dict(checkpoint["optimizer"])
    for index in range(3, 6):
        step(model, update, index)
    for got, expected in zip(model.parameters(), straight.parameters(), strict=True):
        assert got.device.type == torch.device(device).type
        assert torch.equal(got, expected)
