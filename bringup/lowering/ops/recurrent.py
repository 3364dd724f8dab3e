"""The cells of nn.LSTM and nn.GRU, which PyTorch asks every accelerator for: made of other ops, as in graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from bringup.lowering.composed import composed_everywhere


def _with_bias(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def _blocks(gates: Tensor, count: int, op: str) -> tuple[Tensor, ...]:
    """Blocks of the hidden size side by side: what torch.lstm and torch.gru pass."""
    if gates.ndim != 2 or gates.shape[1] % count or gates.shape[1] == 0:
        raise RuntimeError(f"{op}: expected a matrix of {count} blocks side by side, got {list(gates.shape)}")
    return gates.chunk(count, 1)


@composed_everywhere("aten::_thnn_fused_lstm_cell")
def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the next hidden and cell state, and what the gradients need."""
    gates = _with_bias(input_gates, input_bias) + _with_bias(hidden_gates, hidden_bias)
    before = _blocks(gates, 4, "_thnn_fused_lstm_cell")
    taken, forget, cell, shown = before[0].sigmoid(), before[1].sigmoid(), before[2].tanh(), before[3].sigmoid()
    cy = forget * cx + taken * cell
    return shown * cy.tanh(), cy, torch.cat([taken, forget, cell, shown], 1)


@composed_everywhere("aten::_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Its gradients."""
    taken, forget, cell, shown = _blocks(workspace, 4, "_thnn_fused_lstm_cell_backward_impl")
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


@composed_everywhere("aten::_thnn_fused_gru_cell")
def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes the next hidden state, and what the gradients need."""
    from_input = _blocks(_with_bias(input_gates, input_bias), 3, "_thnn_fused_gru_cell")
    from_hidden = _blocks(_with_bias(hidden_gates, hidden_bias), 3, "_thnn_fused_gru_cell")
    reset, update = (from_input[0] + from_hidden[0]).sigmoid(), (from_input[1] + from_hidden[1]).sigmoid()
    fresh = (from_input[2] + reset * from_hidden[2]).tanh()
    return fresh + update * (hx - fresh), torch.cat([reset, update, fresh, hx, from_hidden[2]], 1)


@composed_everywhere("aten::_thnn_fused_gru_cell_backward")
def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Its gradients."""
    reset, update, fresh, hx, hidden = _blocks(workspace, 5, "_thnn_fused_gru_cell_backward")
    d_fresh = grad_hy * (1 - update) * (1 - fresh * fresh)
    d_update = grad_hy * (hx - fresh) * update * (1 - update)
    d_reset = d_fresh * hidden * reset * (1 - reset)
    grad_input = torch.cat([d_reset, d_update, d_fresh], 1)
    grad_hidden = torch.cat([d_reset, d_update, d_fresh * reset], 1)
    biases = (grad_input.sum(0), grad_hidden.sum(0)) if has_bias else (None, None)
    return grad_input, grad_hidden, grad_hy * update, *biases
