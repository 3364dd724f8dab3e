"""The cells of nn.LSTM and nn.GRU as one kernel each; recurrent.py has the same formulas as ops, rounded alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bringup.ir.expr import Expr
from bringup.lowering.builder import convert
from bringup.lowering.call import Call, NoKernel, Tensor
from bringup.lowering.formulas import sigmoid, tanh
from bringup.lowering.ops.random_numbers import rounded
from bringup.lowering.ops.sums import sum_of
from bringup.lowering.registry import lowering, new_output
from bringup.lowering.scalar_types import opmath

#: A value at (block, element of the state) of a row.
Read = Callable[[int], Expr]


def _blocks(tensor: Tensor, count: int, rows: Sequence[Any], hidden: Any) -> Tensor:
    """Blocks of the hidden size side by side as a dimension of their own; rows are (n,), or () for a bias."""
    fits = tensor.ndim == len(rows) + 1 and all(own == n for own, n in zip(tensor.shape, rows))
    if not fits or tensor.shape[-1] != hidden * count or tensor.strides[-1] != 1:
        raise NoKernel(f"a cell takes {count} blocks of the hidden size side by side")
    return tensor.view((*rows, count, hidden), (*tensor.strides[:-1], hidden, 1))


def _cell(
    call: Call,
    state: Tensor,
    inputs: Sequence[tuple[Tensor | None, int]],
    outs: Sequence[tuple[Tensor, int]],
    formula: Callable[..., Sequence[Expr]],
) -> None:
    """Launches a formula of every element of the state: tensors come as functions of a block, or None where they are
    missing; it returns what is stored, block after block. Every value is rounded as the tensor of an op would be."""
    if state.ndim != 2:
        raise NoKernel("a state is a matrix")
    count, hidden = state.shape
    dtype = state.dtype
    if any(tensor is not None and tensor.dtype is not dtype for tensor, _ in inputs):
        raise NoKernel("a cell takes tensors of one type")
    wide = opmath(dtype)
    k = call.kernel()
    i, j = k.grid(count), k.grid(hidden)

    def reading(tensor: Tensor | None, blocks: int) -> Read | None:
        if tensor is None:
            return None
        matrix = tensor.ndim == 2
        buffer = k.read(_blocks(tensor, blocks, (count,) if matrix else (), hidden))
        return lambda n: convert(buffer[(i, n, j) if matrix else (n, j)], wide)

    given = [reading(*one) for one in inputs]
    values = iter(formula(lambda value: k.let(rounded(value, dtype)), *given))
    for tensor, blocks in outs:
        buffer = k.write(_blocks(tensor, blocks, (count,), hidden))
        for n in range(blocks):
            k.store(buffer, (i, n, j), next(values))
    k.launch()


Round = Callable[[Expr], Expr]


def _biased(r: Round, gates: Read, bias: Read | None, n: int) -> Expr:
    return gates(n) if bias is None else r(gates(n) + bias(n))


def _lstm_outputs(input_gates: Any, hidden_gates: Any, cx: Any, *_: Any) -> list[Any]:
    state = new_output(cx[2], cx[3])
    return [state, state, new_output(cx[2], (cx[3][0], cx[3][1] * 4))]


@lowering("aten::_thnn_fused_lstm_cell", outputs=_lstm_outputs)
def lstm_cell(
    call: Call, input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Any, hidden_bias: Any
) -> None:
    """The next hidden and cell state, and the gates, which the gradients need."""

    def formula(r: Round, from_input: Read, from_hidden: Read, c: Read, bias: Any, more: Any) -> Sequence[Expr]:
        gates = [r(_biased(r, from_input, bias, n) + _biased(r, from_hidden, more, n)) for n in range(4)]
        taken, forget, shown = (r(sigmoid(gates[n])) for n in (0, 1, 3))
        cell = r(tanh(gates[2]))
        cy = r(r(forget * c(0)) + r(taken * cell))
        return r(shown * r(tanh(cy))), cy, taken, forget, cell, shown

    inputs = [(input_gates, 4), (hidden_gates, 4), (cx, 1), (input_bias, 4), (hidden_bias, 4)]
    _cell(call, cx, inputs, list(zip(call.outs, (1, 1, 4))), formula)


def _lstm_gradients(grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, workspace: Any, has_bias: bool) -> list[Any]:
    gates, wide = new_output(cx[2], workspace[3]), workspace[3][1:]
    return [gates, new_output(cx[2], cx[3]), new_output(cx[2], wide) if has_bias else None]


@lowering("aten::_thnn_fused_lstm_cell_backward_impl", outputs=_lstm_gradients)
def lstm_cell_backward(
    call: Call, grad_hy: Any, grad_cy: Any, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> None:
    """The gradients of the gates, of the cell state and of the bias."""

    def formula(r: Round, gh: Read, gc: Any, c: Read, new: Read, gates: Read) -> Sequence[Expr]:
        taken, forget, cell, shown = (gates(n) for n in range(4))
        t = r(tanh(new(0)))
        dh = gh(0)
        dc = r(r(dh * shown) * r(1.0 - r(t * t)))
        if gc is not None:
            dc = r(dc + gc(0))
        return (
            r(r(r(dc * cell) * taken) * r(1.0 - taken)),
            r(r(r(dc * c(0)) * forget) * r(1.0 - forget)),
            r(r(dc * taken) * r(1.0 - r(cell * cell))),
            r(r(r(dh * t) * shown) * r(1.0 - shown)),
            r(dc * forget),
        )

    if grad_hy is None:
        raise NoKernel("without a gradient of the hidden state")
    inputs = [(grad_hy, 1), (grad_cy, 1), (cx, 1), (cy, 1), (workspace, 4)]
    _cell(call, cx, inputs, list(zip(call.outs[:2], (4, 1))), formula)
    if has_bias:
        sum_of(call.part("aten::sum.dim_IntList", call.outs[2:]), call.outs[0], [0], False)


def _gru_outputs(input_gates: Any, hidden_gates: Any, hx: Any, *_: Any) -> list[Any]:
    return [new_output(hx[2], hx[3]), new_output(hx[2], (hx[3][0], hx[3][1] * 5))]


@lowering("aten::_thnn_fused_gru_cell", outputs=_gru_outputs)
def gru_cell(
    call: Call, input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Any, hidden_bias: Any
) -> None:
    """The next hidden state, and what the gradients need."""

    def formula(r: Round, from_input: Read, from_hidden: Read, h: Read, bias: Any, more: Any) -> Sequence[Expr]:
        given = [_biased(r, from_input, bias, n) for n in range(3)]
        hidden = [_biased(r, from_hidden, more, n) for n in range(3)]
        reset, update = (r(sigmoid(r(given[n] + hidden[n]))) for n in (0, 1))
        fresh = r(tanh(r(given[2] + r(reset * hidden[2]))))
        return r(fresh + r(update * r(h(0) - fresh))), reset, update, fresh, h(0), hidden[2]

    inputs = [(input_gates, 3), (hidden_gates, 3), (hx, 1), (input_bias, 3), (hidden_bias, 3)]
    _cell(call, hx, inputs, list(zip(call.outs, (1, 5))), formula)


def _gru_gradients(grad_hy: Any, workspace: Any, has_bias: bool) -> list[Any]:
    code, (rows, hidden) = grad_hy[2], grad_hy[3]
    gates, bias = new_output(code, (rows, hidden * 3)), new_output(code, (hidden * 3,)) if has_bias else None
    return [gates, gates, new_output(code, (rows, hidden)), bias, bias]


@lowering("aten::_thnn_fused_gru_cell_backward", outputs=_gru_gradients)
def gru_cell_backward(call: Call, grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> None:
    """The gradients of both sides' gates, of the hidden state and of the biases."""

    def formula(r: Round, g: Read, saved: Read) -> Sequence[Expr]:
        reset, update, fresh, h, hidden = (saved(n) for n in range(5))
        d_fresh = r(r(g(0) * r(1.0 - update)) * r(1.0 - r(fresh * fresh)))
        d_update = r(r(r(g(0) * r(h - fresh)) * update) * r(1.0 - update))
        d_reset = r(r(r(d_fresh * hidden) * reset) * r(1.0 - reset))
        return d_reset, d_update, d_fresh, d_reset, d_update, r(d_fresh * reset), r(g(0) * update)

    _cell(call, grad_hy, [(grad_hy, 1), (workspace, 5)], list(zip(call.outs[:3], (3, 3, 1))), formula)
    for gates, bias in zip(call.outs[:2], call.outs[3:]) if has_bias else ():
        sum_of(call.part("aten::sum.dim_IntList", [bias]), gates, [0], False)
