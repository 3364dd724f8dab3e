"""Quantized graphs, whoever made them: integer ops with the bits of the stated reference, else PyTorch's floats.

The graphs here are written by hand, as quantizers write them; those of ``bringup.quantize`` are at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor, nn
from torch.nn import functional as F

import bringup
from bringup.graph.export.artifact import ArtifactFile
from bringup.graph.export.artifact_manifest import program_from
from bringup.graph.quantize.quantizer import without_zero_points
from bringup.graph.quantize.rewrite import use_integer_ops
from bringup.lowering.ops import quantized_reference as reference

qd = torch.ops.quantized_decomposed
INT8 = (-128, 127, torch.int8)
UINT8 = (0, 255, torch.uint8)


def quantized(x: Tensor, scale: float, zero: int, kind: Any = INT8) -> Tensor:
    return qd.quantize_per_tensor(x, scale, zero, *kind)


def shown(x: Tensor, scale: float, zero: int, kind: Any = INT8) -> Tensor:
    return qd.dequantize_per_tensor(x, scale, zero, *kind)


def shown_weight(weight: Tensor, scales: Tensor, axis: int = 0, zeros: Tensor | None = None) -> Tensor:
    return qd.dequantize_per_channel(weight, scales, zeros, axis, -127, 127, torch.int8)


def integers(*shape: int, dtype: torch.dtype = torch.int8, seed: int = 0) -> Tensor:
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max + 1, shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def scales_of(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)) * 1e-2 + 1e-3


class Run:
    """A function compiled for the device: what it gave, and which ops its graph holds."""

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Tensor], device: str) -> None:
        backend = bringup.Backend(strict=True)
        compiled = torch.compile(function, backend=backend)
        with torch.no_grad():
            found = compiled(*(argument.to(device) for argument in arguments))
        self.result: Tensor = found.cpu()
        (graph,) = backend.graphs
        self.ops = {
            str(node.target).split(".")[0] + "." + str(node.target).split(".")[1]
            for node in graph.module.graph.nodes
            if isinstance(node.target, torch._ops.OpOverload)
        }

    @property
    def in_floats(self) -> bool:
        """True if something is still computed by way of floats."""
        return any(op.startswith("quantized_decomposed.") for op in self.ops)


def assert_integers(
    function: Callable[..., Tensor], arguments: Sequence[Tensor], device: str, most: int = 1
) -> np.ndarray[Any, Any]:
    """Compiled, it has no float op, and is within a step of PyTorch's floats; returns its integers."""
    run = Run(function, arguments, device)
    assert not run.in_floats, run.ops
    emulated = function(*arguments)
    assert run.result.dtype is emulated.dtype
    assert emulated.unique().numel() > 1, "a test of nothing"
    assert (run.result.int() - emulated.int()).abs().max() <= most
    return run.result.numpy()


# ---- layers ----
def linear_parts(rows: int = 4, depth: int = 37, columns: int = 10) -> tuple[Tensor, ...]:
    x, weight = integers(rows, depth), integers(columns, depth, seed=1).clamp(-127)
    return x, weight, scales_of(columns), torch.randn(columns, generator=torch.Generator().manual_seed(4))


def of_layer(weight: Tensor, bias: Tensor | None, scales: Tensor, x_scale: float, x_zero: int, y_scale: float) -> Any:
    """(bias, multipliers, shifts) by the reference."""
    start = reference.integer_bias(
        weight.numpy(), None if bias is None else bias.numpy(), scales.double().numpy(), x_scale, x_zero
    )
    return (start, *reference.factors(scales.double().numpy(), x_scale, y_scale))


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("activation", [None, "relu", "relu6", "between"])
def test_linear(device: str, with_bias: bool, activation: str | None) -> None:
    x, weight, scales, bias = linear_parts()
    between = {"relu": (0.0, None), "relu6": (0.0, 6.0), "between": (-0.25, 0.31)}.get(activation or "")

    def layer(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor) -> Tensor:
        y = F.linear(shown(x, 0.03, -7), shown_weight(weight, scales), bias if with_bias else None)
        return quantized(y if between is None else torch.clamp(y, *between), 0.05, 11)

    found = assert_integers(layer, (x, weight, scales, bias), device)
    vectors = of_layer(weight, bias if with_bias else None, scales, 0.03, -7, 0.05)
    low, high = {None: (-128, 127), "relu": (11, 127), "relu6": (11, 127), "between": (6, 17)}[activation]
    expected = reference.linear(x.numpy(), weight.numpy(), *vectors, 11, low, high)
    np.testing.assert_array_equal(found, expected)


def test_linear_on_more_dimensions_and_mm(device: str) -> None:
    x, weight, scales, _ = linear_parts(rows=12)
    vectors = of_layer(weight, None, scales, 0.03, -7, 0.05)
    expected = reference.linear(x.numpy(), weight.numpy(), *vectors, 11, -128, 127)

    def linear(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
        return quantized(F.linear(shown(x, 0.03, -7).view(3, 4, -1), shown_weight(weight, scales)), 0.05, 11)

    np.testing.assert_array_equal(assert_integers(linear, (x, weight, scales), device), expected.reshape(3, 4, -1))

    def product(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
        return quantized(shown(x, 0.03, -7) @ shown_weight(weight, scales, axis=1), 0.05, 11)

    np.testing.assert_array_equal(assert_integers(product, (x, weight.t().contiguous(), scales), device), expected)


def test_one_scale_for_a_whole_weight(device: str) -> None:
    x, weight, _, bias = linear_parts()

    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return quantized(F.linear(shown(x, 0.03, -7), shown(weight, 4e-3, 0), bias), 0.05, 11)

    found = assert_integers(layer, (x, weight, bias), device)
    vectors = of_layer(weight, bias, torch.full([10], 4e-3, dtype=torch.float64), 0.03, -7, 0.05)
    np.testing.assert_array_equal(found, reference.linear(x.numpy(), weight.numpy(), *vectors, 11, -128, 127))


GEOMETRIES = {
    "plain": ((2, 3, 9, 7), (4, 3, 3, 2), {}),
    "strided": ((1, 1, 11, 10), (5, 1, 10, 4), {"stride": (2, 2), "padding": (5, 1)}),
    "depthwise": ((2, 6, 8, 8), (6, 1, 3, 3), {"padding": 1, "groups": 6}),
    "groups": ((1, 4, 9, 9), (6, 2, 3, 3), {"padding": 2, "dilation": 2, "groups": 2}),
    "pointwise": ((2, 8, 5, 5), (3, 8, 1, 1), {}),
    "one dimension": ((2, 3, 12), (4, 3, 5), {"stride": 3, "padding": 2}),
}


@pytest.mark.parametrize("kind", [INT8, UINT8], ids=["int8", "uint8"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_convolution(name: str, kind: Any, device: str) -> None:
    shape, filters, window = GEOMETRIES[name]
    x, weight = integers(*shape, dtype=kind[2]), integers(*filters, seed=1)
    scales, bias = scales_of(filters[0]), torch.randn(filters[0], generator=torch.Generator().manual_seed(3))
    zero, y_zero = (17, -9) if kind is INT8 else (140, 100)
    function = F.conv1d if len(shape) == 3 else F.conv2d

    def layer(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor) -> Tensor:
        y = function(shown(x, 0.02, zero, kind), shown_weight(weight, scales), bias, **window)
        return quantized(torch.relu(y), 0.05, y_zero, kind)

    found = assert_integers(layer, (x, weight, scales, bias), device)
    dims = len(shape) - 2
    each = [window.get(word, default) for word, default in (("stride", 1), ("padding", 0), ("dilation", 1))]
    each = [[number] * dims if isinstance(number, int) else list(number) for number in each]
    vectors = of_layer(weight, bias, scales, 0.02, zero - (128 if kind is UINT8 else 0), 0.05)
    given = (x.numpy(), weight.numpy(), *vectors, zero, y_zero, y_zero, kind[1], *each, window.get("groups", 1))
    np.testing.assert_array_equal(found, reference.convolution(*given))


def test_channels_last(device: str) -> None:
    x, weight, scales = integers(2, 8, 6, 6), integers(4, 8, 3, 3, seed=1), scales_of(4)

    def layer(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
        return quantized(F.conv2d(shown(x, 0.02, 5), shown_weight(weight, scales), padding=1), 0.05, 0)

    last = assert_integers(layer, (x.to(memory_format=torch.channels_last), weight, scales), device)
    np.testing.assert_array_equal(last, assert_integers(layer, (x, weight, scales), device))


# ---- what stands between layers ----
def test_max_pools_and_views_stay_integers(device: str) -> None:
    x = integers(2, 4, 8, 6)

    def pooled(x: Tensor) -> Tensor:
        y = F.max_pool2d(shown(x, 0.1, 3), 3, stride=2, padding=1)
        y = shown(quantized(y, 0.1, 3), 0.1, 3)
        return quantized(y.flatten(1).unsqueeze(1).transpose(1, 2), 0.1, 3)

    found = assert_integers(pooled, (x,), device, most=0)
    expected = F.max_pool2d(x.float(), 3, stride=2, padding=1).to(torch.int8).flatten(1)[:, :, None]
    np.testing.assert_array_equal(found, expected.numpy())


def test_relu_of_what_is_quantized_already(device: str) -> None:
    found = assert_integers(lambda x: quantized(F.relu(shown(x, 0.1, 3)), 0.1, 3), (integers(50),), device, most=0)
    np.testing.assert_array_equal(found, integers(50).numpy().clip(3))


def test_padding_is_the_zero_point(device: str) -> None:
    x, weight, scales = integers(1, 2, 5, 5), integers(3, 2, 3, 3, seed=1), scales_of(3)

    def layer(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
        y = F.conv2d(F.pad(shown(x, 0.02, 5), (0, 1, 2, 0)), shown_weight(weight, scales))
        return quantized(F.pad(y, (1, 1)), 0.05, -20)

    found = assert_integers(layer, (x, weight, scales), device)
    assert (found[..., 0] == -20).all()
    padded = F.pad(x, (0, 1, 2, 0), value=5)
    window = ([1, 1], [0, 0], [1, 1], 1)
    vectors = of_layer(weight, None, scales, 0.02, 5, 0.05)
    expected = reference.convolution(padded.numpy(), weight.numpy(), *vectors, 5, -20, -128, 127, *window)
    np.testing.assert_array_equal(found[..., 1:-1], expected)


def test_a_clamp_that_would_change_the_padding_stays_in_floats(device: str) -> None:
    x = integers(1, 2, 5, 5)

    def padded(x: Tensor) -> Tensor:
        return quantized(torch.clamp(F.pad(shown(x, 0.1, 5), (1, 1)), min=0.35), 0.1, 5)

    run = Run(padded, (x,), device)
    assert torch.equal(run.result, padded(x))


def test_sums(device: str) -> None:
    a, b = integers(3, 4, 5), integers(4, 1, dtype=torch.uint8, seed=1)

    def added(a: Tensor, b: Tensor) -> Tensor:
        return quantized(F.relu(shown(a, 0.1, 3) + shown(b, 0.03, 130, UINT8)), 0.08, -60)

    found = assert_integers(added, (a, b), device)
    factors = reference.add_factors(0.1, 0.03, 0.08)
    np.testing.assert_array_equal(found, reference.add(a.numpy(), b.numpy(), 3, 130, *factors, -60, -60, 127))


def test_other_scales_and_concatenation(device: str) -> None:
    a, b = integers(3, 4), integers(3, 2, seed=1)

    def joined(a: Tensor, b: Tensor) -> Tensor:
        return quantized(torch.cat([shown(a, 0.1, 3), shown(b, 0.05, -4)], 1), 0.05, -4)

    found = assert_integers(joined, (a, b), device)
    scaled = reference.requantize(a.numpy().astype(np.int64) - 3, *reference.multiplier_and_shift(2.0), -4, -128, 127)
    np.testing.assert_array_equal(found, np.concatenate([scaled, b.numpy()], 1))


@pytest.mark.parametrize("how", ["mean", "adaptive", "window", "padded window"])
def test_averages(how: str, device: str) -> None:
    x = integers(2, 3, 6, 8)
    pools: dict[str, Callable[[Tensor], Tensor]] = {
        "mean": lambda y: y.mean((2, 3), keepdim=True),
        "adaptive": lambda y: F.adaptive_avg_pool2d(y, 1),
        "window": lambda y: F.avg_pool2d(y, (3, 2)),
        "padded window": lambda y: F.avg_pool2d(y, 2, padding=1),
    }
    found = assert_integers(lambda x: quantized(pools[how](shown(x, 0.1, 3)), 0.04, -4), (x,), device)
    rows, columns = {"window": (3, 2), "padded window": (2, 2)}.get(how, (6, 8))
    source = F.pad(x, (1, 1, 1, 1), value=3) if how == "padded window" else x
    totals = source.long().unfold(2, rows, rows).unfold(3, columns, columns).sum((-1, -2)).numpy()
    count = rows * columns
    factor = reference.multiplier_and_shift(0.1 / (0.04 * count))
    np.testing.assert_array_equal(found, reference.requantize(totals - 3 * count, *factor, -4, -128, 127))


def test_equal_quantizes_become_one(device: str) -> None:
    """A quantizer writes one per user."""
    x, weight, scales, bias = linear_parts()

    def twice(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor) -> Tensor:
        y = F.linear(shown(x, 0.03, -7), shown_weight(weight, scales), bias)
        first, second = (shown(quantized(y, 0.05, 11), 0.05, 11) for _ in range(2))
        return quantized(first + F.relu(second), 0.1, 0)

    assert_integers(twice, (x, weight, scales, bias), device, most=2)


# ---- what stays in floats, exactly as PyTorch has it ----
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
def test_quantize_and_dequantize(dtype: torch.dtype, source: torch.dtype, device: str) -> None:
    x = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)).mul(40).to(source)
    x[0, :4] = torch.tensor([0.5, -0.5, 1.5, 1e9])
    info = torch.iinfo(dtype)
    high = min(info.max, 2**30)  # 2^31 - 1 is not a float32: PyTorch's own result is undefined there
    scales, zeros = torch.rand(50, generator=torch.Generator().manual_seed(1)) + 0.1, torch.arange(50) % 7

    def there_and_back(x: Tensor, scales: Tensor, zeros: Tensor) -> tuple[Tensor, ...]:
        a = qd.quantize_per_tensor(x, 0.37, 5, info.min, high, dtype)
        b = qd.quantize_per_channel(x, scales, zeros, 1, info.min, high, dtype)
        return (
            *(a, b, qd.dequantize_per_tensor(a, 0.37, 5, info.min, high, dtype)),
            qd.dequantize_per_tensor(a, 0.37, 5, info.min, high, dtype, out_dtype=torch.bfloat16),
            qd.dequantize_per_channel(b, scales, zeros, 1, info.min, high, dtype),
            qd.dequantize_per_channel(b, scales.double(), zeros.int(), 1, info.min, high, dtype),
            qd.dequantize_per_channel(b, scales, None, 1, info.min, high, dtype),
        )

    backend = bringup.Backend(strict=True)
    found = torch.compile(there_and_back, backend=backend)(*(t.to(device) for t in (x, scales, zeros)))
    for ours, theirs in zip(found, there_and_back(x, scales, zeros), strict=True):
        assert ours.dtype is theirs.dtype
        assert torch.equal(ours.cpu(), theirs)


def test_computed_scales_stay_in_floats(device: str) -> None:
    """Dynamic quantization: scale and zero point are tensors."""
    x, weight, scales, bias = linear_parts()
    real = shown(x, 0.03, -7)
    scale, zero = torch.tensor([0.043], dtype=torch.float64), torch.tensor([-3])

    def dynamic(real: Tensor, weight: Tensor, scales: Tensor, bias: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        a = qd.quantize_per_tensor.tensor(real, scale, zero, *INT8)
        a = qd.dequantize_per_tensor.tensor(a, scale, zero, *INT8)
        return quantized(F.linear(a, shown_weight(weight, scales), bias), 0.05, 11)

    run = Run(dynamic, (real, weight, scales, bias, scale, zero), device)
    assert run.in_floats
    assert "bringup.quantized_linear" not in run.ops
    emulated = dynamic(real, weight, scales, bias, scale, zero)
    assert (run.result.int() - emulated.int()).abs().max() <= 1  # sums of floats, in another order


@pytest.mark.parametrize("shift", [0, 3])
def test_zero_points_of_weights(device: str, shift: int, tmp_path: Path) -> None:
    """torch.compile sees them as inputs, which may be anything; an exported model knows them."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x, weight, scales, bias = linear_parts()
            for name, value in (("weight", weight), ("scales", scales), ("bias", bias)):
                self.register_buffer(name, value)
            self.register_buffer("zeros", torch.full([10], shift))

        def forward(self, x: Tensor) -> Tensor:
            weight = shown_weight(self.weight, self.scales, zeros=self.zeros)
            return quantized(F.linear(shown(x, 0.03, -7), weight, self.bias), 0.05, 11)

    layer = Layer()
    traced = torch.export.export(layer, (layer.x,)).module()
    emulated = layer(layer.x)
    for module, on_integers in ((traced, False), (without_zero_points(traced), shift == 0)):
        run = Run(module.to(device), (layer.x,), device)
        assert run.in_floats is not on_integers
        assert (run.result.int() - emulated.int()).abs().max() <= 1
    loaded = bringup.load(bringup.export(layer, (layer.x,), out=tmp_path / "layer.bup", target="host"))
    found = loaded(layer.x.to(device)).cpu()
    assert (found.int() - emulated.int()).abs().max() <= 1
    if shift == 0:
        vectors = of_layer(layer.weight, layer.bias, layer.scales, 0.03, -7, 0.05)
        expected = reference.linear(layer.x.numpy(), layer.weight.numpy(), *vectors, 11, -128, 127)
        np.testing.assert_array_equal(found.numpy(), expected)


def test_one_scale_in_a_vector_stays_in_floats(device: str) -> None:
    """PyTorch repeats a vector of one element; nothing may be read behind it."""
    x, weight, scales, _ = linear_parts()

    def layer(x: Tensor, weight: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        real = shown_weight(weight, scales[:1], zeros=torch.ones(1, dtype=torch.int64, device=x.device))
        y = F.linear(shown(x, 0.03, -7), shown_weight(weight, scales[:1]))
        return real, quantized(y, 0.05, 11)

    found = torch.compile(layer, backend=bringup.Backend(strict=True))(*(t.to(device) for t in (x, weight, scales)))
    expected = layer(x, weight, scales)
    assert torch.equal(found[0].cpu(), expected[0])
    assert (found[1].cpu().int() - expected[1].int()).abs().max() <= 1


def test_results_that_others_use_are_left_alone(device: str) -> None:
    x, weight, scales, bias = linear_parts()

    def both(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        y = F.linear(shown(x, 0.03, -7), shown_weight(weight, scales), bias)
        return quantized(y, 0.05, 11), y

    backend = bringup.Backend(strict=True)
    found = torch.compile(both, backend=backend)(*(t.to(device) for t in (x, weight, scales, bias)))
    ops = [str(node.target) for node in backend.graphs[0].module.graph.nodes]
    assert not any("bringup." in op for op in ops)
    expected = both(x, weight, scales, bias)
    torch.testing.assert_close(found[1].cpu(), expected[1], rtol=1e-5, atol=1e-5)
    assert (found[0].cpu().int() - expected[0].int()).abs().max() <= 1


@pytest.mark.parametrize(
    ("scale", "zero", "kind"),
    [(-0.05, 0, INT8), (1e-40, 0, INT8), (0.05, 300, INT8), (0.05, 0, (-200, 127, torch.int8))],
)
def test_strange_parameters_are_not_rewritten(scale: float, zero: int, kind: Any) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = integers(4)
    real = graph.call_function(qd.dequantize_per_tensor.default, (x, 0.05, 0, *INT8))
    real.meta["val"] = torch.zeros(4)
    out = graph.call_function(qd.quantize_per_tensor.default, (real, scale, zero, *kind))
    out.meta["val"] = integers(4)
    graph.output(out)
    use_integer_ops(graph)
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [real.target, out.target]


def test_a_scale_of_zero_is_an_error(device: str) -> None:
    with pytest.raises(Exception, match="division by zero"):
        torch.compile(lambda x: quantized(x, 0.0, 0), backend="bringup")(torch.ones(3, device=device))


def test_integers_of_another_type_are_an_error(device: str) -> None:
    with pytest.raises(AssertionError, match=r"Expecting input to have dtype: torch\.int8, but got torch\.int32"):
        torch.compile(lambda x: shown(x, 0.1, 0), backend="bringup")(torch.ones(3, dtype=torch.int32, device=device))


# ---- our own quantizer, and whole models ----
class Separable(nn.Sequential):
    """Depthwise, then pointwise, with batch norms."""

    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )


class Residual(nn.Module):
    """Sums, concatenation, padding, pools and a part that stays in floats."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding="same"), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu6(self.first(x)), 2)
        y = F.relu(y + self.second(y))
        y = torch.cat([F.avg_pool2d(y, 2).mean((2, 3)), y.amax((2, 3))], 1)
        return self.head(y).softmax(-1)


def keyword_spotting(width: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, (10, 4), stride=2, padding=(5, 1), bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        *(Separable(width) for _ in range(4)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(width, 12),
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "keyword spotting": (keyword_spotting, (1, 1, 49, 10)),
    "mlp": (mlp, (4, 20)),
    "residual": (Residual, (2, 3, 8, 8)),
}


def trained(name: str) -> tuple[nn.Module, list[tuple[Tensor]]]:
    """A model with statistics and weights as after training, and inputs."""
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.normal_(module.weight, 1, 0.2)
            nn.init.normal_(module.bias, 0, 0.2)
    return model.eval(), [(torch.randn(shape),) for _ in range(8)]


@pytest.mark.parametrize("name", MODELS)
def test_models_end_to_end(name: str, device: str, tmp_path: Path) -> None:
    model, examples = trained(name)
    small = bringup.quantize(model, examples)
    (x,) = examples[3]
    emulated = small(x)
    real = model(x)
    assert (emulated - real).abs().max() < 0.05 * real.abs().max() + 0.02

    loaded = bringup.load(bringup.export(small, (x,), out=tmp_path / "model.bup", target="host"))
    backend = bringup.Backend(strict=True)
    compiled = torch.compile(small.to(device), backend=backend)
    with torch.no_grad():
        found = compiled(x.to(device))
    assert torch.equal(loaded(x.to(device)), found)
    ops = [str(node.target) for node in backend.graphs[0].module.graph.nodes]
    assert not any("aten.convolution" in op or "mm.default" in op for op in ops)
    # A result that another rounding put on the next step may move the next layer's.
    step = 1 / 256 if name == "residual" else float(emulated.diff().abs()[emulated.diff() != 0].min())
    assert (found.cpu() - emulated).abs().max() <= 2.01 * step


def test_a_whole_mlp_is_the_reference(device: str) -> None:
    model, examples = trained("mlp")
    small = bringup.quantize(model, examples)
    (x,) = examples[0]
    parameters: dict[torch.fx.Node, Any] = {}
    for node in small.graph.nodes:
        if node.target is qd.quantize_per_tensor.default:
            parameters[node] = node.args[1:]
    (first, *after) = parameters.values()
    layers = [node for node in small.graph.nodes if node.target is torch.ops.aten.linear.default]
    integers_now = quantized(x, first[0], first[1]).numpy()
    x_scale, x_zero = first[:2]
    for node, (scale, zero, low, high, _) in zip(layers, after, strict=True):
        weight, scales, bias, bias_scales = (
            getattr(small, part.target) for given in node.args[1:3] for part in given.args[:2]
        )
        bias = qd.dequantize_per_channel(bias, bias_scales, None, 0, -(2**31), 2**31 - 1, torch.int32)
        vectors = of_layer(weight, bias, scales, x_scale, x_zero, scale)
        (user,) = node.users
        floor = zero if user.target is torch.ops.aten.relu.default else low
        integers_now = reference.linear(integers_now, weight.numpy(), *vectors, zero, floor, high).astype(np.int8)
        x_scale, x_zero = scale, zero
    expected = shown(torch.from_numpy(integers_now), x_scale, x_zero)
    with torch.no_grad():
        found = torch.compile(small.to(device), backend="bringup")(x.to(device))
    assert torch.equal(found.cpu(), expected)


def test_an_exported_model_computes_nothing_from_weights(tmp_path: Path) -> None:
    model, examples = trained("keyword spotting")
    path = bringup.export(bringup.quantize(model, examples), examples[0], out=tmp_path / "model.bup", target="host")
    program = program_from(ArtifactFile(path).manifest)
    names = {call.kernel.name for call in program.variants[0].kernel_calls}
    assert not any("bias" in name or "factors" in name for name in names), names
    assert {constant.dtype for constant in program.constants} == {"int8", "int32"}


def test_dynamic_batches(device: str, tmp_path: Path) -> None:
    model, examples = trained("mlp")
    batch = torch.export.Dim("batch", min=1, max=16)
    small = bringup.quantize(model, examples, dynamic_shapes=({0: batch},))
    path = bringup.export(small, examples[0], out=tmp_path / "m.bup", target="host", dynamic_shapes=({0: batch},))
    loaded = bringup.load(path)
    for rows in (1, 3, 16):
        x = torch.randn(rows, 20)
        assert (loaded(x.to(device)).cpu() - small(x)).abs().max() < 0.02


def test_the_quantizer_says_what_is_wrong() -> None:
    model, examples = trained("mlp")
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        bringup.quantize(nn.Sequential(nn.Linear(2, 2)), examples)
    with pytest.raises(ValueError, match="at least one example"):
        bringup.quantize(model, [])
    with pytest.raises(TypeError, match=r"tuples of arguments"):
        bringup.quantize(model, torch.ones(4, 20))
    with pytest.raises(TypeError, match=r"a tuple of arguments, \(x,\), not a Tensor"):
        bringup.quantize(model, [torch.ones(4, 20)])
    with pytest.raises(TypeError, match="Module"):
        bringup.quantize(lambda x: x, examples)
    with pytest.raises(ValueError, match="not finite"):
        bringup.quantize(model, [(torch.full([4, 20], torch.nan),)])


def test_a_model_is_not_changed() -> None:
    model, examples = trained("keyword spotting")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    bringup.quantize(model, examples)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
