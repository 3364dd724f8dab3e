"""Ops that only graphs hold: eager PyTorch makes them of other ops before they reach a device.

Each is a lowering like those of bringup/lowering: ``definition(call, *arguments of the schema)`` fills ``call.outs``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bringup.ir.dtypes import boolean, int64
from bringup.ir.expr import AsIndex, Expr, Fma, Where, binary, const
from bringup.lowering.call import Call, NoKernel, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.ops import (
    attention,
    attention_backward,
    casts_and_copies,
    convolution,
    convolution_backward,
    movement,
    random_numbers,
    sorting,
)
from bringup.lowering.ops import quantized as quantized  # whose ops are of graphs alone
from bringup.lowering.ops.inverse import inverse
from bringup.lowering.registry import Defined, Lowering, define
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike

GRAPH_LOWERINGS: Mapping[str, Lowering] = Defined("graph lowering")
FILE_LOWERINGS: Mapping[str, Lowering] = Defined("file lowering")


def _number(value: bool | int | float, call: Call) -> Number:
    return Number(-1, value, None, False, call.trace)


@define("file lowering", "aten::_assert_async", "aten::_assert_async.msg")
def assert_async(call: Call, self: Tensor, *_: Any) -> None:
    """Reports a bad index where an assertion is false: what a kernel can say, and what every target hears."""
    k = call.kernel("assertion")
    claim = k.read(self.view((1,), (1,)))
    value = claim.at(0)
    truth = value if self.dtype is boolean else binary("ne", value, const(0, self.dtype))
    place = AsIndex(Where(truth, const(0, int64), const(1, int64)), k.size(1), "check")
    k.store(k.write(call.temporary(self.dtype, (1,))), [0], claim.at(place))
    k.launch()


define("file lowering", "aten::linalg_inv_ex")(inverse)


# ---- memory and what is in it at first ----


@define(
    "graph lowering",
    "aten::empty.memory_format",
    "aten::empty_strided",
    "aten::empty_like",
    "aten::empty_permuted",
    "aten::new_empty",
    "aten::new_empty_strided",
)
def empty(call: Call, *_: Any) -> None:
    """Memory, whatever it holds."""


@define("graph lowering", "aten::full", "aten::new_full")
def full(call: Call, *arguments: Any) -> None:
    """One number everywhere."""
    value = next(a for a in arguments if isinstance(a, Number))
    casts_and_copies.fill(call, call.outs[0], value)


@define("graph lowering", "aten::scalar_tensor")
def scalar_tensor(call: Call, value: Number, *_: Any) -> None:
    """A number as a tensor."""
    casts_and_copies.fill(call, call.outs[0], value)


@define("graph lowering", "aten::zeros", "aten::new_zeros", "aten::zeros.names")
def zeros(call: Call, *_: Any) -> None:
    """Zeros."""
    casts_and_copies.fill(call, call.outs[0], _number(0, call))


@define("graph lowering", "aten::ones", "aten::new_ones")
def ones(call: Call, *_: Any) -> None:
    """Ones."""
    casts_and_copies.fill(call, call.outs[0], _number(1, call))


@define("graph lowering", "aten::sort")
def sort(call: Call, self: Tensor, dim: int, descending: bool) -> None:
    """Ours is stable, whether asked for or not."""
    sorting.sort(call, self, True, dim, descending)


# ---- sequences: the traced output says how long they are, so that no number has to be known ----


@define("graph lowering", "aten::arange")
def arange(call: Call, *_: Any) -> None:
    """0, 1, …"""
    casts_and_copies.arange_elements(call, 0, 1)


@define("graph lowering", "aten::arange.start")
def arange_start(call: Call, start: Number, *_: Any) -> None:
    """From a start."""
    casts_and_copies.arange_elements(call, start, 1)


@define("graph lowering", "aten::arange.start_step")
def arange_start_step(call: Call, start: Number, end: Number, step: Number, *_: Any) -> None:
    """From a start, by a step."""
    casts_and_copies.arange_elements(call, start, step)


# ---- copies ----


@define("graph lowering", "aten::_to_copy", "aten::lift_fresh_copy", "aten::alias_copy", "aten::detach_copy")
def to_copy(call: Call, self: Tensor, *_: Any) -> None:
    """The same elements in another type or layout."""
    movement.copy_elements(call, call.outs[0], self)


@define("graph lowering", "aten::copy", "aten::copy_")
def copy(call: Call, self: Tensor, src: Tensor | Number, *_: Any) -> None:
    """The elements of another tensor, in the type and shape of this one."""
    if isinstance(src, Number):
        casts_and_copies.fill(call, call.outs[0], src)
    else:
        movement.copy_elements(call, call.outs[0], src)


def _written_over(call: Call, self: Tensor, src: Tensor, place: Tensor) -> None:
    """A copy of one tensor, with another in some part of it."""
    movement.copy_elements(call.part("aten::clone", call.outs), call.outs[0], self)
    movement.copy_elements(call.part("aten::copy_", [place]), place, src)


def _clamped(position: IntLike, extent: IntLike) -> IntLike:
    if position < 0:
        position = position + extent
    return 0 if position < 0 else extent if position > extent else position


@define("graph lowering", "aten::slice_scatter")
def slice_scatter(
    call: Call, self: Tensor, src: Tensor, dim: int, start: IntLike | None, end: IntLike | None, step: IntLike
) -> None:
    """A tensor with another in a slice of it."""
    (out,) = call.outs
    dim %= out.ndim
    extent = out.shape[dim]
    first = _clamped(0 if start is None else start, extent)
    _written_over(call, self, src, out.narrow(dim, first, src.shape[dim], step))


@define("graph lowering", "aten::select_scatter")
def select_scatter(call: Call, self: Tensor, src: Tensor, dim: int, index: IntLike) -> None:
    """A tensor with another at one position of a dimension."""
    (out,) = call.outs
    dim %= out.ndim
    position = index + out.shape[dim] if index < 0 else index
    _written_over(call, self, src, out.select(dim, position))


@define("graph lowering", "aten::as_strided_scatter")
def as_strided_scatter(
    call: Call,
    self: Tensor,
    src: Tensor,
    size: Sequence[IntLike],
    stride: Sequence[IntLike],
    storage_offset: IntLike | None,
) -> None:
    """A tensor with another in a strided part of its memory."""
    (out,) = call.outs
    if not (self.contiguous and out.contiguous):
        raise NoKernel("as_strided of a tensor that is not contiguous")
    _written_over(call, self, src, out.view(size, stride, storage_offset or 0))


@define("graph lowering", "aten::diagonal_scatter")
def diagonal_scatter(call: Call, self: Tensor, src: Tensor, offset: int, dim1: int, dim2: int) -> None:
    """A tensor with another on a diagonal."""
    (out,) = call.outs
    first, second = dim1 % out.ndim, dim2 % out.ndim
    keep = [d for d in range(out.ndim) if d not in (first, second)]
    start = out.strides[second] * offset if offset >= 0 else out.strides[first] * -offset
    place = out.view(
        [*(out.shape[d] for d in keep), src.shape[-1]],
        [*(out.strides[d] for d in keep), out.strides[first] + out.strides[second]],
        start,
    )
    _written_over(call, self, src, place)


# ---- convolution: eager PyTorch picks a backend's own op ----


define("graph lowering", "aten::convolution")(convolution.convolution)


@define("graph lowering", "aten::convolution_backward")
def convolution_gradients(
    call: Call, grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, *rest: Any
) -> None:
    """The gradients of a convolution."""
    convolution_backward.convolution_backward(call, grad, x, weight, *rest)


# ---- what Dynamo itself writes into graphs ----


@define("graph lowering", "prims::fma")
def fma(call: Call, a: Tensor | float, b: Tensor | float, c: Tensor | float) -> None:
    """a × b + c, rounded once: Dynamo's way to write addcmul_ and addcdiv_."""
    wide = opmath(call.outs[0].dtype)
    if not wide.is_float:
        raise NoKernel("fma of integers")

    def formula(*values: Expr | float) -> Expr:
        return Fma(*(value if isinstance(value, Expr) else const(value, wide) for value in values))

    elementwise(call, call.outs, (a, b, c), formula, wide)


# ---- attention: PyTorch keeps the dropout's key as two tensors, the kernels as one ----


def _scale(call: Call, query: Tensor, scale: Number | None) -> Number:
    return _number(1 / math.sqrt(int(query.shape[-1])), call) if scale is None else scale


@define("graph lowering", "aten::_scaled_dot_product_fused_attention_overrideable")
def fused_attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: Number,
    causal: bool,
    debug: bool,
    scale: Number | None,
) -> None:
    """Attention; also the logarithm of the sums, and the dropout's seed and offset."""
    drawn = call.temporary(int64, [2])
    if not 0 <= dropout.value <= 1:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {dropout.value:g}")
    part = call.part("bringup::attention", [call.outs[0], call.outs[1], drawn])
    attention.attention(part, query, key, value, mask, dropout, causal, _scale(call, query, scale))
    if dropout > 0:
        for place, out in enumerate((call.outs[6], call.outs[7])):
            movement.copy_elements(call.part("aten::copy_", [out]), out, drawn.select(0, place))


@define("graph lowering", "aten::_scaled_dot_product_fused_attention_overrideable_backward")
def fused_attention_backward(
    call: Call,
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    wanted: Sequence[bool],
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout: Number,
    causal: bool,
    seed: Tensor,
    offset: Tensor,
    scale: Number | None,
) -> None:
    """The gradients of query, key and value, and of the mask."""
    mask_gradient = bool(wanted[3]) and mask is not None
    drawn = call.temporary(int64, [2])
    if dropout > 0:
        for place, word in enumerate((seed, offset)):
            target = drawn.select(0, place)
            movement.copy_elements(call.part("aten::copy_", [target]), target, word)
    part = call.part("bringup::attention_backward", call.outs[:4] if mask_gradient else call.outs[:3])
    given = (grad, query, key, value, mask, out, logsumexp, drawn, dropout, causal, _scale(call, query, scale))
    attention_backward.attention_backward(part, *given, mask_gradient)


# ---- random numbers: the in-place definitions, into new memory ----


define("graph lowering", "aten::uniform")(random_numbers.uniform)
define("graph lowering", "aten::normal_functional")(random_numbers.normal)
define("graph lowering", "aten::exponential")(random_numbers.exponential)
define("graph lowering", "bringup::dropout_key")(random_numbers.dropout_key)
define("graph lowering", "bringup::keyed_dropout")(random_numbers.keyed_dropout)


@define("graph lowering", "aten::rand", "aten::rand_like", "aten::rand.generator")
def rand(call: Call, *_: Any) -> None:
    """Evenly in [0, 1)."""
    random_numbers.uniform(call, call.outs[0], _number(0.0, call), _number(1.0, call), None)


@define("graph lowering", "aten::randn", "aten::randn_like", "aten::randn.generator")
def randn(call: Call, *_: Any) -> None:
    """Bell-shaped around 0."""
    random_numbers.normal(call, call.outs[0], _number(0.0, call), _number(1.0, call), None)
