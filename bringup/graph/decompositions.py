"""The decomposition table: which ops of a traced graph are taken apart before they are lowered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bringup.lowering import composed
from bringup.lowering.ops import transformer


def _with_bias(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The cell of nn.LSTM, as the core computes it."""
    gates = _with_bias(input_gates, input_bias) + _with_bias(hidden_gates, hidden_bias)
    before = gates.chunk(4, 1)
    taken, forget, cell, shown = before[0].sigmoid(), before[1].sigmoid(), before[2].tanh(), before[3].sigmoid()
    cy = forget * cx + taken * cell
    return shown * cy.tanh(), cy, torch.cat([taken, forget, cell, shown], 1)


def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Its gradients."""
    taken, forget, cell, shown = workspace.chunk(4, 1)
    tanh_cy = cy.tanh()
    dh = torch.zeros_like(cx) if grad_hy is None else grad_hy
    dc = dh * shown * (1 - tanh_cy * tanh_cy)
    if grad_cy is not None:
        dc = dc + grad_cy
    parts = [
        dc * cell * taken * (1 - taken),
        dc * cx * forget * (1 - forget),
        dc * taken * (1 - cell * cell),
        dh * tanh_cy * shown * (1 - shown),
    ]
    gates = torch.cat(parts, 1)
    return gates, dc * forget, gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The cell of nn.GRU, as the core computes it."""
    from_input = _with_bias(input_gates, input_bias).chunk(3, 1)
    from_hidden = _with_bias(hidden_gates, hidden_bias).chunk(3, 1)
    reset, update = (from_input[0] + from_hidden[0]).sigmoid(), (from_input[1] + from_hidden[1]).sigmoid()
    fresh = (from_input[2] + reset * from_hidden[2]).tanh()
    return fresh + update * (hx - fresh), torch.cat([reset, update, fresh, hx, from_hidden[2]], 1)


def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Its gradients."""
    reset, update, fresh, hx, hidden = workspace.chunk(5, 1)
    d_fresh = grad_hy * (1 - update) * (1 - fresh * fresh)
    d_update = grad_hy * (hx - fresh) * update * (1 - update)
    d_reset = d_fresh * hidden * reset * (1 - reset)
    grad_input = torch.cat([d_reset, d_update, d_fresh], 1)
    grad_hidden = torch.cat([d_reset, d_update, d_fresh * reset], 1)
    biases = (grad_input.sum(0), grad_hidden.sum(0)) if has_bias else (None, None)
    return grad_input, grad_hidden, grad_hy * update, *biases


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


def embedding_bag_backward(*arguments: Any, **named: Any) -> Tensor:
    """The gradient of the table, as eager composes it; a sparse one is left to eager PyTorch."""
    if _embedding_bag_arguments.bind(*arguments, **named).arguments["sparse"]:
        return NotImplemented  # type: ignore[no-any-return]
    return composed.embedding_bag_backward(*arguments, **named)


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


def zero(x: Tensor) -> Tensor:
    """What zero_ leaves; the fake kernel of PyTorch 2.11 loses the strides."""
    return torch.full_like(x, 0)


#: Of our own: what PyTorch has no decomposition for, or one that differs from the device's eager result.
OWN: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._thnn_fused_lstm_cell.default: lstm_cell,
    torch.ops.aten._thnn_fused_lstm_cell_backward_impl.default: lstm_cell_backward,
    torch.ops.aten._thnn_fused_gru_cell.default: gru_cell,
    torch.ops.aten._thnn_fused_gru_cell_backward.default: gru_cell_backward,
    torch.ops.aten.mkldnn_rnn_layer.default: onednn_lstm_layer,
    torch.ops.aten._embedding_bag_backward.default: embedding_bag_backward,
    torch.ops.aten.linalg_vector_norm.default: vector_norm,
    torch.ops.aten._transformer_encoder_layer_fwd.default: transformer.encoder_layer,
    torch.ops.aten._native_multi_head_attention.default: transformer.multi_head_attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: cpu_attention,
    torch.ops.aten._trilinear.default: trilinear,
    torch.ops.aten.index_put.default: index_put,
    torch.ops.aten.zero.default: zero,
}


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Overload → the function that stands for it: ours, and PyTorch's for ops that have no lowering here.

    In-place and out= forms are left alone: PyTorch makes them functional first, and the functional op may be lowered.
    """
    from torch._decomp import core_aten_decompositions

    from bringup.graph.graph_ops import GRAPH_LOWERINGS
    from bringup.graph.lowered import op_name
    from bringup.lowering import ops
    from bringup.lowering.registry import LOWERINGS

    ops.load()
    table = dict(OWN)
    for overload, function in core_aten_decompositions().items():
        if not isinstance(overload, torch._ops.OpOverload) or overload._schema.is_mutable:
            continue
        name = op_name(overload)
        if name not in LOWERINGS and name not in GRAPH_LOWERINGS:
            table.setdefault(overload, function)
    if theirs := table.pop(torch.ops.aten.lstm.input, None):
        table[torch.ops.aten.lstm.input] = partial(lstm, theirs)
    return table
