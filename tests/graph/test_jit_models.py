"""TorchScript models whose groups run on the device: traced, scripted, frozen, saved and loaded; against eager."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import bringup.jit

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # TorchScript is deprecated as a whole
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


class ConvolutionExample(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, stride=2)
        self.head = nn.Linear(4 * 7 * 7, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu_(self.second(x))
        return torch.log_softmax(self.head(x.flatten(1)), dim=-1)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(12, 32),
            nn.GELU(),
            nn.LayerNorm(32),
            nn.Dropout(0.1),
            nn.Linear(32, 32),
            nn.Tanh(),
            nn.Linear(32, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * 0.5 + 1


class ResNetBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 3, 2, 1, bias=False), nn.Conv2d(8, 8, 3, 1, 1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential(nn.Conv2d(4, 8, 1, 2, bias=False), nn.BatchNorm2d(8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        y += self.shortcut(x)
        return self.relu(y)


class TransformerBlock(nn.Module):
    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).chunk(3, dim=-1)
        q = q.view(batch, length, self.heads, -1).transpose(1, 2)
        k = k.view(batch, length, self.heads, -1).transpose(1, 2)
        v = v.view(batch, length, self.heads, -1).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.between(x))))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (ConvolutionExample, (2, 3, 16, 16)),
    "mlp": (Mlp, (6, 12)),
    "resnet": (ResNetBlock, (2, 4, 8, 8)),
    "transformer": (TransformerBlock, (2, 5, 16)),
}
WAYS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "traced": lambda model, x: torch.jit.trace(model, x),
    "scripted": lambda model, x: torch.jit.script(model),
    "frozen": lambda model, x: torch.jit.freeze(torch.jit.script(model)),
}


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    # Scripted modules of one class share their optimized code, also with those of an earlier test.
    torch._C._jit_clear_class_registry()
    torch.jit._recursive.concrete_type_store = torch.jit._recursive.ConcreteTypeStore()
    torch.jit._state._clear_class_state()
    bringup.jit.enable(driver="sim")
    yield
    bringup.jit.disable()


def made(name: str) -> tuple[nn.Module, Tensor]:
    build, shape = MODELS[name]
    torch.manual_seed(3)
    model = build().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics that are not neutral
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model, torch.randn(shape)


def run_optimized(scripted: Any, *inputs: Tensor) -> Any:
    """The third result: the first call is profiled, the second optimized."""
    for _ in range(2):
        scripted(*inputs)
    return scripted(*inputs)


def compiled_ops(scripted: Any) -> list[str]:
    """Ops in groups, all of which ran compiled."""
    report = bringup.jit.report(scripted)
    assert report.optimized
    for group in report.groups:
        assert group.calls, report
        assert group.compiled, report
        assert not group.op_by_op, report
    return [op.removeprefix("aten::") for group in report.groups for op in group.ops]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("place", ["cpu", "sim"])
def test_a_model_is_as_eager(name: str, way: str, place: str) -> None:
    model, x = made(name)
    with torch.no_grad():
        expected = model(x)
        model, x = copy.deepcopy(model).to(place), x.to(place)
        scripted = WAYS[way](model, x)
        found = run_optimized(scripted, x)
    assert found.device.type == place
    torch.testing.assert_close(found.cpu(), expected, rtol=2e-5, atol=2e-5)
    ops = compiled_ops(scripted)
    if name == "resnet" and way == "scripted":  # training is an attribute there
        rows = bringup.jit.report(scripted).left_out
        assert sum("torch.jit.freeze" in row.reason for row in rows if row.op == "aten::batch_norm") == 3
    else:
        report = bringup.jit.report(scripted)
        assert len(report.groups) == 1, report
        heavy = {"convolution": 3, "mlp": 3, "resnet": 3, "transformer": 5}[name]
        assert sum(op in ("linear", "conv2d", "_convolution", "scaled_dot_product_attention") for op in ops) == heavy


@pytest.mark.parametrize("way", ["traced", "scripted"])
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_and_loaded_model(name: str, way: str) -> None:
    model, x = made(name)
    with torch.no_grad():
        scripted = WAYS[way](model, x)
        run_optimized(scripted, x)
        file = io.BytesIO()
        torch.jit.save(scripted, file)
        assert b"CompilationGroup" not in file.getvalue()
        file.seek(0)
        loaded = torch.jit.load(file)
        torch.testing.assert_close(run_optimized(loaded, x), model(x), rtol=2e-5, atol=2e-5)
    assert compiled_ops(loaded)


@pytest.mark.parametrize("place", ["cpu", "sim"])
@pytest.mark.parametrize("way", ["traced", "scripted"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_eager(name: str, way: str, place: str) -> None:
    model, x = made(name)
    model.train(name != "mlp")  # dropout would draw
    own = copy.deepcopy(model).to(place)
    scripted = WAYS[way](own, x.to(place))
    own.load_state_dict(model.state_dict())  # tracing has moved the running statistics
    for _ in range(4):  # the first call is profiled, and so is the first of what autograd makes of it
        results = []
        for one, network, inputs in ((model, model, x), (own, scripted, x.to(place))):
            one.zero_grad()
            leaf = inputs.clone().requires_grad_()
            result = network(leaf)
            result.square().sum().backward()
            assert leaf.grad is not None
            results.append([result.detach(), leaf.grad, *(p.grad for p in one.parameters()), *one.buffers()])
        for found, expected in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["convolution", "mlp", "transformer"])
def test_what_the_jit_differentiates_itself_runs_compiled_both_ways(name: str) -> None:
    model, x = made(name)
    scripted = torch.jit.script(model)
    for _ in range(4):
        scripted(x).sum().backward()
    report = bringup.jit.report(scripted)
    ran = {group.backward for group in report.groups if group.compiled and not group.op_by_op}
    assert ran == {False, True}, report


def test_a_model_that_was_optimized_without_gradients_can_train() -> None:
    model, x = made("mlp")
    scripted = torch.jit.trace(model, x)
    with torch.no_grad():
        run_optimized(scripted, x)
    scripted(x).sum().backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(x).sum().backward()
    for own, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(own, parameter.grad, rtol=1e-5, atol=1e-5)


def test_other_shapes_and_types_get_code_of_their_own() -> None:
    model, x = made("mlp")
    scripted = torch.jit.script(model)
    with torch.no_grad():
        run_optimized(scripted, x)
        for rows in (1, 4, 6, 1):
            torch.testing.assert_close(scripted(x[:rows]), model(x[:rows]), rtol=2e-5, atol=2e-5)
        wide = x[:, :6].repeat(1, 4)[:, ::2]
        torch.testing.assert_close(scripted(wide), model(wide), rtol=2e-5, atol=2e-5)
    (group,) = bringup.jit.report(scripted).groups
    assert group.compiled == 4  # six rows, one, four, and six with other strides


def test_weights_that_change_are_seen() -> None:
    model, x = made("mlp")
    scripted = torch.jit.trace(model, x)
    with torch.no_grad():
        run_optimized(scripted, x)
        for parameter in model.parameters():
            parameter.mul_(0.5)
        torch.testing.assert_close(scripted(x), model(x), rtol=2e-5, atol=2e-5)
        model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
        torch.testing.assert_close(scripted(x), model(x), rtol=2e-5, atol=2e-5)
    compiled_ops(scripted)
