"""The code to beat: a model as the plain C loops that a person would write, one loop nest for each layer.

Nothing is blocked, packed, fused or unrolled here; all of that is left to the compiler, which gets every size as a
number, every tensor as an array of its own (so that it sees what cannot alias) and, where it helps, fast-math. Views
(transpose, split, flatten) cost nothing: the loops index the tensor that they look at.

    code = naive_source(model, (x,))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from bringup.lowering.ops.quantized_reference import factors

aten = torch.ops.aten
_C = {torch.float32: "float", torch.int8: "signed char", torch.int32: "int"}
_EXP = """
static float naive_exp(float x) {
  x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
  const int n = (int)(x * 1.44269504f + (x < 0 ? -0.5f : 0.5f));
  const float r = x - (float)n * 0.693145752f - (float)n * 1.42860677e-6f;
  const float high = 0.166666667f + r * (0.0416666667f + r * (8.33333e-3f + r * 1.38889e-3f));
  const float p = 1 + r * (1 + r * (0.5f + r * high));
  const union { int bits; float value; } power = {(n + 127) << 23};
  return p * power.value;
}
"""
_REQUANTIZE = """
static signed char naive_requantize(int sum, int multiplier, int shift, int zero, int low) {
  int q = (int)(((long long)sum * multiplier + (1ll << (shift - 1))) >> shift) + zero;
  return (signed char)(q < low ? low : q > 127 ? 127 : q);
}
static signed char naive_quantize(float x, float scale, int zero) {
  const float q = x * scale;
  const int n = (int)(q + (q < 0 ? -0.5f : 0.5f)) + zero;
  return (signed char)(n < -128 ? -128 : n > 127 ? 127 : n);
}
"""


@dataclass(frozen=True)
class Value:
    """A tensor of the program, or a view of one; with scales if it holds integers that stand for numbers."""

    array: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    scale: Any = None
    zero: int = 0
    rectified: bool = False

    def at(self, *places: str) -> str:
        """One element."""
        terms = [f"{place} * {stride}" for place, stride in zip(places, self.strides, strict=True)]
        return f"{self.array}[{' + '.join([str(self.offset), *terms])}]"


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


class Loops:
    """The C text, written layer by layer."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.arrays: list[str] = []
        self.data: dict[str, bytes] = {}
        self._count = 0

    def new(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Value:
        name = f"t{self._count}"
        self._count += 1
        self.arrays.append(f"{_C[dtype]} {name}[{max(math.prod(shape), 1)}] __attribute__((aligned(64)));")
        return Value(name, dtype, tuple(shape), contiguous(shape))

    def constant(self, tensor: torch.Tensor) -> Value:
        tensor = tensor.detach().contiguous()
        name = f"w{self._count}"
        self._count += 1
        self.arrays.append(f"extern const {_C[tensor.dtype]} {name}[{tensor.numel()}];")
        self.data[name] = tensor.numpy().tobytes()
        return Value(name, tensor.dtype, tuple(tensor.shape), contiguous(tensor.shape))

    def say(self, line: str) -> None:
        self.lines.append(line)

    @contextmanager
    def over(self, **extents: int) -> Iterator[None]:
        """Nested loops, the first outermost."""
        for name, extent in extents.items():
            self.say(f"for (int {name} = 0; {name} < {extent}; {name}++) {{")
        yield
        self.say("}" * len(extents))

    @contextmanager
    def elements(self, shape: Sequence[int]) -> Iterator[list[str]]:
        """Nested loops over a shape; gives their names."""
        names = [f"i{d}" for d in range(len(shape))]
        with self.over(**dict(zip(names, shape))):
            yield names

    def map(self, x: Value, formula: Callable[[str], str]) -> Value:
        """One formula on every element."""
        y = self.new(x.shape)
        with self.elements(x.shape) as at:
            self.say(f"const float v = {x.at(*at)};")
            self.say(f"{y.at(*at)} = {formula('v')};")
        return y


def product(loops: Loops, x: Value, w: Value, b: Value | None) -> Value:
    """x · wᵀ + b over the last dimension of x; integers add up in int."""
    integers = x.scale is not None
    *rows, _ = x.shape
    outs, inner = w.shape
    y = loops.new((*rows, outs), torch.int32 if integers else torch.float32)
    with loops.elements(rows) as at, loops.over(o=outs):
        loops.say(f"{_C[y.dtype]} sum = {b.at('o') if b else 0};")
        with loops.over(k=inner):
            loops.say(f"sum += {_term(x, x.at(*at, 'k'))} * {w.at('o', 'k')};")
        loops.say(f"{y.at(*at, 'o')} = sum;")
    return _with_scales(y, x, w)


def convolution(
    loops: Loops,
    x: Value,
    w: Value,
    b: Value | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> Value:
    integers = x.scale is not None
    n, _, height, width = x.shape
    filters, channels, tall, wide = w.shape
    size = [
        (e + 2 * p - d * (k - 1) - 1) // s + 1
        for e, p, d, k, s in zip((height, width), padding, dilation, (tall, wide), stride)
    ]
    y = loops.new((n, filters, *size), torch.int32 if integers else torch.float32)
    with loops.over(n=n, o=filters, i=size[0], j=size[1]):
        loops.say(f"{_C[y.dtype]} sum = {b.at('o') if b else 0};")
        with loops.over(c=channels, ky=tall, kx=wide):
            loops.say(f"const int r = i * {stride[0]} + ky * {dilation[0]} - {padding[0]};")
            loops.say(f"const int q = j * {stride[1]} + kx * {dilation[1]} - {padding[1]};")
            if any(padding):
                loops.say(f"if (r < 0 || r >= {height} || q < 0 || q >= {width}) continue;")
            channel = "c" if groups == 1 else f"(o / {filters // groups} * {channels} + c)"
            loops.say(f"sum += {_term(x, x.at('n', channel, 'r', 'q'))} * {w.at('o', 'c', 'ky', 'kx')};")
        loops.say(f"{y.at('n', 'o', 'i', 'j')} = sum;")
    return _with_scales(y, x, w)


def _term(x: Value, element: str) -> str:
    return element if x.scale is None else f"({element} - {x.zero})" if x.zero >= 0 else f"({element} + {-x.zero})"


def _with_scales(y: Value, x: Value, w: Value) -> Value:
    return y if x.scale is None else replace(y, scale=np.float64(x.scale) * np.asarray(w.scale, np.float64))


def max_pool(loops: Loops, x: Value, window: Sequence[int], stride: Sequence[int] = (), *_: Any) -> Value:
    stride = stride or window
    n, channels, *space = x.shape
    size = [(e - k) // s + 1 for e, k, s in zip(space, window, stride)]
    y = replace(loops.new((n, channels, *size), x.dtype), scale=x.scale, zero=x.zero)
    with loops.over(n=n, c=channels, i=size[0], j=size[1]):
        first = x.at("n", "c", f"(i * {stride[0]})", f"(j * {stride[1]})")
        loops.say(f"{_C[x.dtype]} most = {first};")
        with loops.over(ky=window[0], kx=window[1]):
            loops.say(
                f"const {_C[x.dtype]} v = {x.at('n', 'c', f'(i * {stride[0]} + ky)', f'(j * {stride[1]} + kx)')};"
            )
            loops.say("if (v > most) most = v;")
        loops.say(f"{y.at('n', 'c', 'i', 'j')} = most;")
    return y


def batch_norm(
    loops: Loops, x: Value, w: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, *rest: Any
) -> Value:
    """Scale and shift of each channel are computed beforehand, which everybody does."""
    epsilon = rest[2]
    factor = w / torch.sqrt(var + epsilon)
    scale, shift = loops.constant(factor), loops.constant(b - mean * factor)
    y = loops.new(x.shape)
    with loops.elements(x.shape) as at:
        loops.say(f"{y.at(*at)} = {x.at(*at)} * {scale.at(at[1])} + {shift.at(at[1])};")
    return y


def layer_norm(
    loops: Loops, x: Value, shape: Sequence[int], w: Value, b: Value, epsilon: float = 1e-5, *_: Any
) -> Value:
    *rows, width = x.shape
    assert list(shape) == [width]
    y = loops.new(x.shape)
    with loops.elements(rows) as at:
        loops.say("float sum = 0, squares = 0;")
        with loops.over(k=width):
            loops.say(f"sum += {x.at(*at, 'k')};")
        loops.say(f"const float mean = sum * {1 / width!r}f;")
        with loops.over(k=width):
            loops.say(f"squares += ({x.at(*at, 'k')} - mean) * ({x.at(*at, 'k')} - mean);")
        loops.say(f"const float scale = 1 / __builtin_sqrtf(squares * {1 / width!r}f + {epsilon!r}f);")
        with loops.over(k=width):
            loops.say(f"{y.at(*at, 'k')} = ({x.at(*at, 'k')} - mean) * scale * {w.at('k')} + {b.at('k')};")
    return y


def attention(loops: Loops, q: Value, k: Value, v: Value, *_: Any) -> Value:
    n, heads, tokens, width = q.shape
    reached = k.shape[2]
    stored = loops.new((n, tokens, heads, width))  # as the layer behind it reads it
    y = replace(stored, shape=q.shape, strides=tuple(stored.strides[d] for d in (0, 2, 1, 3)))
    with loops.over(n=n, h=heads, i=tokens):
        loops.say(f"float score[{reached}], most = -1e30f, total = 0;")
        with loops.over(j=reached):
            loops.say("float sum = 0;")
            with loops.over(d=width):
                loops.say(f"sum += {q.at('n', 'h', 'i', 'd')} * {k.at('n', 'h', 'j', 'd')};")
            loops.say(f"score[j] = sum * {1 / math.sqrt(width)!r}f;")
            loops.say("if (score[j] > most) most = score[j];")
        with loops.over(j=reached):
            loops.say("score[j] = naive_exp(score[j] - most);")
            loops.say("total += score[j];")
        loops.say("total = 1 / total;")
        with loops.over(d=width):
            loops.say("float sum = 0;")
            with loops.over(j=reached):
                loops.say(f"sum += score[j] * {v.at('n', 'h', 'j', 'd')};")
            loops.say(f"{y.at('n', 'h', 'i', 'd')} = sum * total;")
    return y


def add(loops: Loops, a: Value, b: Value) -> Value:
    y = loops.new(a.shape)
    assert a.shape == b.shape
    with loops.elements(a.shape) as at:
        loops.say(f"{y.at(*at)} = {a.at(*at)} + {b.at(*at)};")
    return y


def relu(loops: Loops, x: Value) -> Value:
    """On sums of integers it is part of the clamp that follows."""
    return replace(x, rectified=True) if x.scale is not None else loops.map(x, lambda v: f"{v} > 0 ? {v} : 0")


def quantize(loops: Loops, x: Value, scale: float, zero: int, low: int, high: int, dtype: torch.dtype) -> Value:
    assert (low, high, dtype) == (-128, 127, torch.int8)
    if x.dtype is torch.int8:
        assert (x.scale, x.zero) == (scale, zero)
        return x
    y = replace(loops.new(x.shape, torch.int8), scale=scale, zero=zero)
    if x.dtype is torch.float32:
        with loops.elements(x.shape) as at:
            loops.say(f"{y.at(*at)} = naive_quantize({x.at(*at)}, {1 / scale!r}f, {zero});")
        return y
    multiplier, shift = (loops.constant(torch.from_numpy(one)) for one in factors(x.scale, 1.0, scale))
    with loops.elements(x.shape) as at:
        channel = at[1]
        numbers = f"{multiplier.at(channel)}, {shift.at(channel)}, {zero}, {max(low, zero) if x.rectified else low}"
        loops.say(f"{y.at(*at)} = naive_requantize({x.at(*at)}, {numbers});")
    return y


def dequantized(loops: Loops, x: Value) -> Value:
    """The result as numbers."""
    y = loops.new(x.shape)
    with loops.elements(x.shape) as at:
        loops.say(f"{y.at(*at)} = (float){_term(x, x.at(*at))} * {x.scale!r}f;")
    return y


def hardtanh(loops: Loops, x: Value, low: float, high: float) -> Value:
    return loops.map(x, lambda v: f"{v} < {low}f ? {low}f : {v} > {high}f ? {high}f : {v}")


_OPS: dict[Any, Callable[..., Value]] = {
    aten.linear.default: product,
    aten.conv2d.default: convolution,
    aten.max_pool2d.default: max_pool,
    aten.batch_norm.default: batch_norm,
    aten.layer_norm.default: layer_norm,
    aten.scaled_dot_product_attention.default: attention,
    aten.add.Tensor: add,
    aten.relu.default: relu,
    aten.hardtanh.default: hardtanh,
}
_VIEWS = {aten.permute.default, aten.transpose.int, aten.select.int, aten.view.default}
_SHAPES = {aten.reshape.default, aten.flatten.using_ints}


def _view(x: Value, node: torch.fx.Node, rest: Sequence[Any]) -> Value:
    """How PyTorch says that a view of x lies; a reshape that is not a view is an error."""
    lies = torch.empty(1 << 30, device="meta").as_strided(x.shape, x.strides, x.offset)
    lies = lies.view(node.meta["val"].shape) if node.target in _SHAPES else node.target(lies, *rest)  # type: ignore
    return replace(x, shape=tuple(lies.shape), strides=lies.stride(), offset=int(lies.storage_offset()))


@dataclass(frozen=True)
class NaiveCode:
    """The C text, the constants that it names, its inputs and its outputs."""

    source: str
    constants: dict[str, bytes]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def naive_source(model: nn.Module, example: tuple[torch.Tensor, ...]) -> NaiveCode:
    """The loops of a model, which may be quantized; raises KeyError for an op that has none here."""
    exported = torch.export.export(model, example)
    names = {**exported.graph_signature.inputs_to_parameters, **exported.graph_signature.inputs_to_buffers}
    tensors = {**exported.state_dict, **exported.constants}
    loops = Loops()
    values: dict[torch.fx.Node, Any] = {}
    inputs, outputs = [], []
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            if node.name in names:
                values[node] = tensors[names[node.name]].detach()
            else:
                values[node] = loops.new(node.meta["val"].shape)
                inputs.append(values[node])
            continue
        arguments = torch.fx.node.map_arg(node.args, values.__getitem__)
        if node.op == "output":
            outputs = [dequantized(loops, one) if one.scale is not None else one for one in arguments[0]]
            continue
        if node.op != "call_function":
            continue
        values[node] = _emit(loops, node, arguments)
    body = "\n".join(loops.lines)
    source = "\n".join([*loops.arrays, _EXP, _REQUANTIZE, f"void naive_run(void) {{\n{body}\n}}"])
    return NaiveCode(source, loops.data, tuple(inputs), tuple(outputs))


def _emit(loops: Loops, node: torch.fx.Node, arguments: Sequence[Any]) -> Any:
    name = str(node.target)
    first, *rest = arguments
    if name.startswith("quantized_decomposed.quantize_per_tensor"):
        return quantize(loops, first, *rest)
    if name.startswith("quantized_decomposed.dequantize_per_tensor"):
        return first
    if name.startswith("quantized_decomposed.dequantize_per_channel"):
        return replace(loops.constant(first), scale=rest[0].numpy())
    if node.target is aten.unbind.int:
        return [_select(first, number) for number in range(first.shape[0])]
    if name.startswith("<built-in function getitem"):
        return first[rest[0]]
    if node.target in _VIEWS or node.target in _SHAPES:
        return _view(first, node, rest)
    keeps = node.target is aten.batch_norm.default
    given = [loops.constant(one) if isinstance(one, torch.Tensor) and not keeps else one for one in arguments]
    return _OPS[node.target](loops, *given)


def _select(x: Value, number: int) -> Value:
    return replace(x, shape=x.shape[1:], strides=x.strides[1:], offset=x.offset + number * x.strides[0])
