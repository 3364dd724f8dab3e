"""The layers of benchmarks/riscv_layers.py: one of each kind, at the size of a small network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


class Recurrent(nn.Module):
    """The outputs of a recurrent layer, without its states."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)[0]
        return result


def _image(*layers: nn.Module, channels: int = 8, size: tuple[int, int] = (16, 16)) -> Callable[[], Made]:
    model = layers[0] if len(layers) == 1 else nn.Sequential(*layers)
    return lambda: (model, (torch.randn(1, channels, *size),))


def _rows(layer: nn.Module, rows: int = 8, width: int = 64) -> Callable[[], Made]:
    return lambda: (layer, (torch.randn(rows, width),))


def _of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[], Made]:
    return lambda: (Call(function), tuple(torch.randn(shape) for shape in shapes))


def _with_state(layer: nn.Module) -> nn.Module:
    """A batch norm whose statistics are not trivial."""
    for tensor in (*layer.parameters(), *layer.buffers()):
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 1.5)
    return layer


def _words(rows: int, count: int) -> Callable[[], Made]:
    return lambda: (nn.Embedding(rows, count), (torch.randint(rows, (1, 24)),))


def _half(make: Callable[[], Made], dtype: torch.dtype) -> Callable[[], Made]:
    def made() -> Made:
        model, inputs = make()
        return model.to(dtype), tuple(one.to(dtype) if one.is_floating_point() else one for one in inputs)

    return made


def _int8(make: Callable[[], Made]) -> Callable[[], Made]:
    def made() -> Made:
        import bringup

        model, (x,) = make()
        return bringup.quantize(model.eval(), [(torch.randn_like(x),) for _ in range(4)]), (x,)

    return made


def _encoder() -> Made:
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, activation="gelu")
    return layer, (torch.randn(1, 16, 32),)


_LONG = (8, 64)
_PLANE = (1, 8, 16, 16)
_mlp = _rows(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))

#: name → model and inputs, made anew each time after the same seed.
LAYERS: dict[str, Callable[[], Made]] = {
    # products and convolutions
    "linear, one row": lambda: (nn.Linear(64, 48), (torch.randn(1, 64),)),
    "linear, batch 8": lambda: (nn.Linear(64, 48), (torch.randn(8, 64),)),
    "linear, narrow": lambda: (nn.Linear(64, 3), (torch.randn(8, 64),)),
    "matmul": _of(torch.matmul, (24, 32), (32, 20)),
    "matmul, transposed": _of(lambda a, b: a @ b.transpose(-1, -2), (2, 16, 16), (2, 16, 16)),
    "matrix times vector": _of(torch.mv, (48, 64), (64,)),
    "dot": _of(torch.dot, (256,), (256,)),
    "conv 1 × 1": _image(nn.Conv2d(8, 16, 1)),
    "conv 3 × 3": _image(nn.Conv2d(8, 16, 3, padding=1), size=(12, 12)),
    "conv 3 × 3, stride 2": _image(nn.Conv2d(8, 8, 3, stride=2, padding=1)),
    "conv 3 × 3, dilated": _image(nn.Conv2d(8, 8, 3, dilation=2, padding=2)),
    "conv, groups": _image(nn.Conv2d(8, 16, 3, groups=4, padding=1)),
    "depthwise 3 × 3": _image(nn.Conv2d(8, 8, 3, groups=8, padding=1)),
    "depthwise 5 × 5, mish": _image(nn.Conv2d(8, 8, 5, groups=8, padding=2), nn.Mish()),
    "depthwise 7 × 7": _image(nn.Conv2d(8, 8, 7, groups=8, padding=3)),
    "depthwise 3 × 3, stride 2": _image(nn.Conv2d(8, 8, 3, groups=8, padding=1, stride=2)),
    "conv, transposed": _image(nn.ConvTranspose2d(8, 4, 3, stride=2), size=(8, 8)),
    "conv1d": lambda: (nn.Conv1d(8, 16, 5, padding=2), (torch.randn(1, 8, 64),)),
    "conv1d, causal, depthwise": lambda: (nn.Conv1d(16, 16, 4, groups=16, padding=3), (torch.randn(1, 16, 40),)),
    "conv3d": lambda: (nn.Conv3d(2, 4, 3), (torch.randn(1, 2, 6, 8, 8),)),
    "conv, pool": _image(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.MaxPool2d(2)),
    "bilinear": lambda: (nn.Bilinear(12, 12, 6), (torch.randn(2, 12), torch.randn(2, 12))),
    # recurrence and attention
    "lstm": lambda: (Recurrent(nn.LSTM(16, 16, batch_first=True)), (torch.randn(1, 6, 16),)),
    "gru": lambda: (Recurrent(nn.GRU(16, 16, batch_first=True)), (torch.randn(1, 6, 16),)),
    "attention": _of(F.scaled_dot_product_attention, (1, 2, 16, 16), (1, 2, 16, 16), (1, 2, 16, 16)),
    "attention, causal": _of(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *[(1, 2, 24, 16)] * 3
    ),
    "transformer layer": _encoder,
    # activations
    "relu": _rows(nn.ReLU()),
    "leaky relu": _rows(nn.LeakyReLU()),
    "hardswish": _rows(nn.Hardswish()),
    "sigmoid": _rows(nn.Sigmoid()),
    "tanh": _rows(nn.Tanh()),
    "silu": _rows(nn.SiLU()),
    "gelu": _rows(nn.GELU()),
    "gelu, tanh": _rows(nn.GELU("tanh")),
    "mish": _rows(nn.Mish()),
    "elu": _rows(nn.ELU()),
    "softplus": _rows(nn.Softplus()),
    "prelu": _image(nn.PReLU(8)),
    "glu": _rows(nn.GLU()),
    "exp": _of(torch.exp, _LONG),
    "log": _of(lambda x: torch.log(x.abs() + 1), _LONG),
    "sin": _of(torch.sin, _LONG),
    "pow": _of(lambda x: x.abs() ** 1.5, _LONG),
    "division": _of(lambda a, b: a / (b.abs() + 1), _LONG, _LONG),
    # softmax, norms, reductions
    "softmax": _rows(nn.Softmax(-1)),
    "softmax, short rows": _rows(nn.Softmax(-1), 64, 10),
    "softmax over channels": _image(nn.Softmax(1), size=(8, 8)),
    "log softmax": _rows(nn.LogSoftmax(-1)),
    "logsumexp": _of(lambda x: x.logsumexp(-1), _LONG),
    "layer norm": _rows(nn.LayerNorm(64)),
    "rms norm": _rows(nn.RMSNorm(64)),
    "batch norm": _image(_with_state(nn.BatchNorm2d(8))),
    "group norm": _image(nn.GroupNorm(2, 8), size=(8, 8)),
    "instance norm": _image(nn.InstanceNorm2d(8), size=(8, 8)),
    "normalize": _of(lambda x: F.normalize(x, dim=-1), _LONG),
    "sum of rows": _of(lambda x: x.sum(-1), _LONG),
    "sum of columns": _of(lambda x: x.sum(0), _LONG),
    "mean of an image": _of(lambda x: x.mean((2, 3)), _PLANE),
    "variance": _of(lambda x: x.var(-1), _LONG),
    "largest of rows": _of(lambda x: x.amax(-1), _LONG),
    "argmax": _of(lambda x: x.argmax(-1), _LONG),
    "cumsum": _of(lambda x: x.cumsum(-1), _LONG),
    "cross entropy": lambda: (
        Call(lambda x, y: F.cross_entropy(x, y)),
        (torch.randn(16, 10), torch.randint(10, (16,))),
    ),
    "mse": _of(F.mse_loss, _LONG, _LONG),
    "cosine similarity": _of(F.cosine_similarity, _LONG, _LONG),
    "cdist": _of(torch.cdist, (8, 12), (10, 12)),
    # pooling, resampling, moving elements
    "max pool 2": _image(nn.MaxPool2d(2)),
    "max pool 3, stride 2": _image(nn.MaxPool2d(3, stride=2, padding=1)),
    "average pool": _image(nn.AvgPool2d(2)),
    "average pool 3, padded": _image(nn.AvgPool2d(3, stride=1, padding=1)),
    "adaptive average pool": _image(nn.AdaptiveAvgPool2d(3)),
    "global average pool": _image(nn.AdaptiveAvgPool2d(1)),
    "upsample, nearest": _image(nn.Upsample(scale_factor=2), size=(8, 8)),
    "upsample, bilinear": _image(nn.Upsample(scale_factor=2, mode="bilinear"), size=(8, 8)),
    "upsample, bicubic": _image(nn.Upsample(scale_factor=2, mode="bicubic"), channels=2, size=(8, 8)),
    "grid sample": lambda: (
        Call(lambda x, grid: F.grid_sample(x, grid, align_corners=False)),
        (torch.randn(1, 4, 8, 8), torch.rand(1, 6, 6, 2) * 2 - 1),
    ),
    "pixel shuffle": _image(nn.PixelShuffle(2)),
    "pad, constant": _image(nn.ZeroPad2d(2)),
    "pad, reflection": _image(nn.ReflectionPad2d(2)),
    "pad, replication": _image(nn.ReplicationPad2d(2)),
    "pad, circular": _image(nn.CircularPad2d(2)),
    "unfold": _image(nn.Unfold(3), channels=2, size=(8, 8)),
    "transpose": _of(lambda x: x.t().contiguous(), (32, 48)),
    "flip": _of(lambda x: x.flip(-1), _LONG),
    "roll": _of(lambda x: x.roll(3, -1), _LONG),
    "cat": _of(lambda a, b: torch.cat([a, b], -1), _LONG, _LONG),
    "embedding": _words(40, 32),
    "gather": lambda: (Call(lambda x, at: x.gather(-1, at)), (torch.randn(_LONG), torch.randint(64, (8, 16)))),
    "index select": lambda: (Call(lambda x, at: x.index_select(0, at)), (torch.randn(20, 32), torch.randint(20, (9,)))),
    "where": _of(lambda a, b: torch.where(a > b, a, b * 2), _LONG, _LONG),
    "masked fill": _of(lambda x: x.masked_fill(x > 0.5, -1.0), _LONG),
    "one hot": lambda: (Call(lambda y: F.one_hot(y, 10)), (torch.randint(10, (16,)),)),
    "sort": _of(lambda x: x.sort(-1), (4, 64)),
    "topk": _of(lambda x: x.topk(5, -1), (4, 64)),
    "median": _of(lambda x: x.median(-1), (4, 63)),
    # other types
    "linear, float16": _half(_rows(nn.Linear(64, 32)), torch.float16),
    "linear, bfloat16": _half(_rows(nn.Linear(64, 32)), torch.bfloat16),
    "gelu, float16": _half(_rows(nn.GELU()), torch.float16),
    "softmax, float16": _half(_rows(nn.Softmax(-1)), torch.float16),
    "layer norm, bfloat16": _half(_rows(nn.LayerNorm(64)), torch.bfloat16),
    "relu, float16": _half(_rows(nn.ReLU()), torch.float16),
    "gelu, float64": _half(_rows(nn.GELU()), torch.float64),
    "matmul, float64": _half(_of(torch.matmul, (12, 16), (16, 20)), torch.float64),
    "add, int64": lambda: (Call(lambda a, b: a * 3 + b), (torch.randint(99, _LONG), torch.randint(99, _LONG))),
    "add, int32": lambda: (
        Call(lambda a, b: a * 3 + b),
        (torch.randint(99, _LONG, dtype=torch.int32), torch.randint(99, _LONG, dtype=torch.int32)),
    ),
    "mlp, int8": _int8(_mlp),
    "conv, int8": _int8(_image(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), size=(12, 12))),
    "depthwise, int8": _int8(_image(nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.ReLU(), size=(12, 12))),
}


def built(name: str) -> Made:
    """A layer with its weights, and its inputs: the same each time."""
    torch.manual_seed(0)
    model, inputs = LAYERS[name]()
    model = model.eval().requires_grad_(False)
    return model, inputs
