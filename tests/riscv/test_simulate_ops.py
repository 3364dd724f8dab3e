"""Every op of the first release, and what networks are made of, in an emulator: equal to eager, scalar and vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bringup
from tests.sweeps import swept_unless

Case = tuple[Any, ...]


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def _integers(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(high))


R = _numbers
CASES: dict[str, Case] = {
    "add": (lambda a, b: a + b, R(3, 5), R(5)),
    "sub": (lambda a, b: a - b, R(3, 5), R(3, 1)),
    "mul": (lambda a, b: a * b, R(7), R(7)),
    "div": (lambda a, b: a / b, R(33), R(33)),
    "neg": (torch.neg, R(9)),
    "exp": (torch.exp, R(20)),
    "where": (lambda x: torch.where(x > 0, x, -x), R(30)),
    "integers": (lambda a, b: (a // b, a % b, a & b), _integers(-50, 50, 20), _integers(1, 9, 20)),
    "relu": (torch.relu, R(40)),
    "sigmoid": (torch.sigmoid, R(40)),
    "tanh": (torch.tanh, R(40)),
    "gelu": (F.gelu, R(40)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), R(40)),
    "matmul": (torch.matmul, R(2, 3, 4), R(4, 5)),
    "mm": (torch.mm, R(5, 7), R(7, 9)),
    "bmm": (torch.bmm, R(3, 4, 5), R(3, 5, 6)),
    "linear": (F.linear, R(4, 8), R(6, 8), R(6)),
    "mm_bfloat16": (torch.mm, R(5, 7).bfloat16(), R(7, 9).bfloat16()),
    "softmax": (lambda x: torch.softmax(x, -1), R(4, 37)),
    "softmax_rows": (lambda x: torch.softmax(x, 0), R(7, 5)),
    "batch_norm": (F.batch_norm, R(2, 3, 4, 4), R(3), R(3).abs() + 0.5, R(3), R(3)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (16,), w, b), R(3, 16), R(16), R(16)),
    "sum": (lambda x: (x.sum(), x.sum(1), x.sum((0, 1), keepdim=True)), R(5, 9)),
    "mean": (lambda x: (x.mean(), x.mean(0)), R(5, 9)),
    "max": (lambda x: (x.max(), x.max(1).values, x.max(1).indices), R(5, 9)),
    "min": (lambda x: (x.min(), x.min(0).values, x.min(0).indices), R(5, 9)),
    "argmax": (lambda x: x.argmax(-1), R(3, 9)),
    "cumsum": (lambda x: x.cumsum(0), R(5, 3)),
    "sort": (lambda x: torch.sort(x, -1), R(3, 9)),
    "reshape": (lambda x: x.reshape(6, 4), R(4, 6)),
    "view": (lambda x: x.view(-1) + 1, R(4, 6)),
    "transpose": (lambda x: x.transpose(0, 1), R(4, 6)),
    "permute": (lambda x: x.permute(2, 0, 1) * 2, R(2, 3, 4)),
    "expand": (lambda x: x.relu().unsqueeze(0).expand(3, 2, 4), R(2, 4)),
    "flatten": (lambda x: x.flatten(1), R(2, 3, 4)),
    "cat": (lambda a, b: torch.cat([a, b], 1), R(2, 3), R(2, 4)),
    "embedding": (F.embedding, _integers(0, 10, 2, 5), R(10, 6)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), R(1, 3, 9, 9), R(4, 3, 3, 3), R(4)),
    "conv2d_stride": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), R(2, 3, 9, 9), R(4, 3, 3, 3)),
    "conv2d_depthwise": (lambda x, w: F.conv2d(x, w, groups=6, padding=1), R(1, 6, 9, 9), R(6, 1, 3, 3)),
    "conv2d_groups": (lambda x, w: F.conv2d(x, w, groups=2), R(1, 6, 7, 7), R(4, 3, 3, 3)),
    "conv2d_dilation": (lambda x, w: F.conv2d(x, w, dilation=2), R(1, 2, 9, 9), R(3, 2, 3, 3)),
    "conv1d": (F.conv1d, R(1, 3, 20), R(5, 3, 3)),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2), R(1, 3, 5, 5), R(3, 4, 3, 3)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), R(1, 3, 9, 9)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), R(1, 3, 9, 9)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 1), R(1, 3, 9, 9)),
    "attention": (F.scaled_dot_product_attention, R(1, 2, 7, 8), R(1, 2, 7, 8), R(1, 2, 7, 8)),
    "attention_causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *(R(1, 2, 9, 8), R(1, 2, 9, 8), R(1, 2, 9, 8)),
    ),
    "float16": (lambda x: x * 2 + 1, R(20).half()),
    "float64": (lambda x: x.sin().sum(), R(20).double()),
    "several": (lambda x: (x + 1, x.T, x), R(3, 4)),
    "empty": (lambda x: x * 2, R(0, 3)),
    "scalar": (lambda x: x.exp(), R()),
    "strided_input": (lambda x: x.sum(0), R(6, 4).t()),
    "special": (torch.sigmoid, torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, 88.0])),
}
OF_THE_FIRST_RELEASE = (
    "add sub mul div neg matmul mm bmm linear relu sigmoid tanh gelu softmax reshape view transpose permute flatten "
    "batch_norm layer_norm sum mean max min"
)


def test_the_list_is_complete() -> None:
    assert not set(OF_THE_FIRST_RELEASE.split()) - set(CASES)


#: `make test` takes scalar and vector code in turn; each is a cross compilation.
BOTH = [(name, vector) for name in CASES for vector in (0, 256)]


@pytest.mark.parametrize(("name", "vector"), swept_unless(lambda index, _: index % 4 in (0, 3), BOTH))
def test_equals_eager(name: str, vector: int) -> None:
    function: Callable[..., Any]
    function, *tensors = CASES[name]
    expected = _tuple(function(*tensors))
    torch._dynamo.reset()
    backend = bringup.Backend(target="riscv", vector=vector)
    found = _tuple(torch.compile(function, backend=backend, dynamic=False)(*tensors))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
    assert len(backend.reports()) == 1, "it ran somewhere else"


def _tuple(results: Any) -> tuple[torch.Tensor, ...]:
    return (results,) if isinstance(results, torch.Tensor) else tuple(results)
