"""The decomposition table: which ops of a traced graph are taken apart before they are lowered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bringup.lowering import composed
from bringup.lowering.ops import recurrent, transformer
from bringup.lowering.registry import LOWERINGS, Defined, define


@define("decomposition", "aten::mkldnn_rnn_layer")
def onednn_lstm_layer(
    input: Tensor, w0: Tensor, w1: Tensor, b0: Tensor, b1: Tensor, hx: Tensor, cx: Tensor, reverse: bool, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A layer of nn.LSTM over all steps, which PyTorch's tracer gives to oneDNN for CPU tensors without gradients."""
    from torch._decomp.decompositions import one_layer_lstm

    has_biases = bool(rest[4])
    weights = [w0, w1, b0, b1] if has_biases else [w0, w1]
    output, (hy, cy) = one_layer_lstm(input, (hx.squeeze(0), cx.squeeze(0)), weights, has_biases, reverse)
    return output, hy.unsqueeze(0), cy.unsqueeze(0), input.new_empty(0)


_embedding_bag_arguments = inspect.signature(composed.embedding_bag_backward)


@define("decomposition", "aten::_embedding_bag_backward")
def embedding_bag_backward(*arguments: Any, **named: Any) -> Tensor:
    """The gradient of the table, as eager composes it; a sparse one is left to eager PyTorch."""
    if _embedding_bag_arguments.bind(*arguments, **named).arguments["sparse"]:
        return NotImplemented  # type: ignore[no-any-return]
    return composed.embedding_bag_backward(*arguments, **named)


@define("decomposition", "aten::linalg_vector_norm")
def vector_norm(x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Dimensions are counted from the front: up to 2.12 PyTorch's fake kernel keeps one of size 1 that is not."""
    if dim is None or all(d >= 0 for d in dim):
        return NotImplemented  # type: ignore[no-any-return]
    found: Tensor = torch.ops.aten.linalg_vector_norm(x, ord, [d % max(x.dim(), 1) for d in dim], keepdim, dtype=dtype)
    return found


def lstm(theirs: Callable[..., Any], x: Tensor, states: Any, *others: Any, **named: Any) -> tuple[Tensor, ...]:
    """PyTorch's decomposition; up to 2.12 its last states have a dimension too many."""
    output, *last = theirs(x, states, *others, **named)
    return output, *(one.reshape(state.shape) for one, state in zip(last, states))


@define("decomposition", "aten::_trilinear")
def trilinear(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    expand_a: Sequence[int],
    expand_b: Sequence[int],
    expand_c: Sequence[int],
    summed: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """Sums the product of three tensors, each with new dimensions of 1 where ``expand`` says: nn.Bilinear is one."""
    parts = []
    for factor, dims in ((a, expand_a), (b, expand_b), (c, expand_c)):
        for dim in sorted(dims):
            factor = factor.unsqueeze(dim)
        parts.append(factor)
    return torch.mul(parts[0], parts[1]).mul(parts[2]).sum(list(summed))


@define("decomposition", "aten::index_put")
def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, *_: Any, **__: Any
) -> Tensor:
    """Writes one number wherever a mask is true, as in ``x[x > 0] = 1``, however many places those are."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # asks without a guard

    given = [index for index in indices if index is not None]
    masked = len(given) == 1 and given[0].dtype is torch.bool and not accumulate
    if not masked or not statically_known_true(values.numel() == 1):
        return NotImplemented  # type: ignore[no-any-return]
    first = next(n for n, index in enumerate(indices) if index is not None)
    mask = given[0].reshape([*given[0].shape, *(1 for _ in x.shape[first + given[0].ndim :])])
    return torch.where(mask, values.reshape(()), x)


@define("decomposition", "aten::_scaled_dot_product_flash_attention_for_cpu")
def cpu_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The CPU's attention, whose result lies in memory as its query does; PyTorch's decomposition lays it out otherwise
    than the op that a program was traced with, and a view behind it fails."""
    output, weights = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout, causal, None, scale=scale, enable_gqa=query.size(1) != key.size(1)
    )
    order = sorted(range(4), key=query.stride, reverse=True)
    return output.permute(order).contiguous().permute([order.index(dim) for dim in range(4)]), weights


@define("decomposition", "aten::zero")
def zero(x: Tensor) -> Tensor:
    """What zero_ leaves; the fake kernel of PyTorch 2.11 loses the strides."""
    return torch.full_like(x, 0)


@define("decomposition", "aten::max_unpool2d")
def max_unpool2d(x: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """The result is channels_last like its input: PyTorch's fake kernel makes it contiguous."""
    format = torch._prims_common.suggest_memory_format(x)
    if format == torch.contiguous_format:
        return NotImplemented  # type: ignore[no-any-return]
    found: Tensor = torch.ops.aten.max_unpool2d(x.contiguous(), indices.contiguous(), output_size)
    return found.contiguous(memory_format=format)


@define("decomposition", "aten::nonzero_static")
def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """Each element that counts writes its number into its rank's slot, and the last slot takes the others.

    Without it the op is an ordinary one between kernels, and PyTorch's fake kernel has the strides of a transpose.
    """
    if size < 0:
        return NotImplemented  # type: ignore[no-any-return]
    if not x.dim() or not x.numel():
        return torch.full((size, x.dim()), fill_value, dtype=torch.int64, device=x.device)
    counts = (x != 0).flatten()
    rank = counts.cumsum(0) - 1
    slot = torch.where(counts & (rank < size), rank, size)
    elements = torch.arange(x.numel(), device=x.device)
    slots = torch.full((size + 1,), x.numel(), dtype=torch.int64, device=x.device).scatter(0, slot, elements)[:size]
    columns, rest = [], slots
    for extent in reversed(x.shape):
        columns.append(rest % extent)
        rest = rest.div(extent, rounding_mode="floor")
    return torch.where((slots == x.numel())[:, None], fill_value, torch.stack(columns[::-1], -1))


define("decomposition", "aten::_thnn_fused_lstm_cell")(recurrent.lstm_cell)
define("decomposition", "aten::_thnn_fused_lstm_cell_backward_impl")(recurrent.lstm_cell_backward)
define("decomposition", "aten::_thnn_fused_gru_cell")(recurrent.gru_cell)
define("decomposition", "aten::_thnn_fused_gru_cell_backward")(recurrent.gru_cell_backward)
define("decomposition", "aten::_transformer_encoder_layer_fwd")(transformer.encoder_layer)
define("decomposition", "aten::_native_multi_head_attention")(transformer.multi_head_attention)

#: Of our own: what PyTorch has no decomposition for, or one that differs from the device's eager result.
OWN: Mapping[str, Callable[..., Any]] = Defined("decomposition")


def by_overload(functions: Mapping[str, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The functions by PyTorch's overload, as its tracers take them."""
    found = {}
    for name, function in functions.items():
        namespace, _, rest = name.partition("::")
        op, _, overload = rest.partition(".")
        found[getattr(getattr(getattr(torch.ops, namespace), op), overload or "default")] = function
    return found


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Overload → the function that stands for it: ours, and PyTorch's for ops that have no lowering here.

    In-place and out= forms are left alone: PyTorch makes them functional first, and the functional op may be lowered.
    """
    from torch._decomp import core_aten_decompositions

    from bringup.graph.graph_ops import GRAPH_LOWERINGS
    from bringup.graph.lowered import op_name
    from bringup.lowering import ops

    ops.load()
    table = by_overload(OWN)
    for overload, function in core_aten_decompositions().items():
        if not isinstance(overload, torch._ops.OpOverload) or overload._schema.is_mutable:
            continue
        name = op_name(overload)
        if name not in LOWERINGS and name not in GRAPH_LOWERINGS:
            table.setdefault(overload, function)
    if theirs := table.pop(torch.ops.aten.lstm.input, None):
        table[torch.ops.aten.lstm.input] = partial(lstm, theirs)
    return table
