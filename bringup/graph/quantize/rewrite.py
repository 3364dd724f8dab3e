"""Quantize-dequantize graphs to integer ops: dequantize → convolution (→ relu …) → quantize is one op on int8.

Whoever made the graph: only ``quantized_decomposed`` ops and what stands between them count. From each quantize the
way back goes through what integers can do as well (views, max pools, clamps) to the op that computes. If its operands
are quantized, too, it is replaced; everything else stays as it is, in floats.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Graph, Node

from bringup.graph.passes import Facts, fake_mode
from bringup.graph.quantize.parameters import (
    MOVES,
    Bounds,
    Parameters,
    argument,
    bounds_of,
    dtype_of,
    op_of,
    per_tensor,
    transposes,
)
from bringup.lowering.ops.quantized_reference import LONGEST_SUM, add_factors, multiplier_and_shift

_aten = torch.ops.aten


def use_integer_ops(graph: Graph, facts: Facts | None = None) -> None:
    """Between dequantize and quantize, ops compute with integers."""
    import bringup.graph.quantize.ops  # noqa: F401

    _Rewriting(graph, facts.fixed if facts else {}).run()


@dataclass(frozen=True)
class _Operand:
    """Integers of the graph and what they mean."""

    integers: Node
    parameters: Parameters


@dataclass(frozen=True)
class _Weight:
    """An int8 weight without zero points, [channels, …], and its scales: a vector, or one number for all."""

    integers: Node
    scales: Node | float


class _Rewriting:
    def __init__(self, graph: Graph, known: Mapping[str, Tensor]) -> None:
        self._graph, self._known = graph, known
        self._mode = fake_mode(graph)
        self._from: Node | None = None

    def run(self) -> None:
        """Every quantize, in the order of the graph."""
        self._merge_equal()
        for node in list(self._graph.nodes):
            wanted = per_tensor(node, "quantize_per_tensor")
            if wanted is None:
                continue
            with self._graph.inserting_before(node):
                made = self._quantized(node, wanted)
            if made is not None:
                node.replace_all_uses_with(made)
        self._graph.eliminate_dead_code()

    def _merge_equal(self) -> None:
        """Quantizers write one quantize for every user of a tensor: equal ones become one."""
        seen: dict[Any, Node] = {}
        for node in list(self._graph.nodes):
            if op_of(node).startswith(("quantized_decomposed::quantize", "quantized_decomposed::dequantize")):
                first = seen.setdefault((node.target, node.args, tuple(sorted(node.kwargs.items()))), node)
                if first is not node:
                    node.replace_all_uses_with(first)
                    self._graph.erase_node(node)

    # ---- new nodes ----

    def _emit(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        node = self._graph.call_function(target, args, kwargs)
        given, named = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        with self._mode:
            node.meta["val"] = target(*given, **named)
        if self._from is not None and "stack_trace" in self._from.meta:
            node.meta["stack_trace"] = self._from.meta["stack_trace"]
        return node

    def _full(self, like: Node, length: int, value: int) -> Node:
        device = like.meta["val"].device
        return self._emit(_aten.full.default, [length], value, dtype=torch.int32, device=device)

    def _replayed(self, value: Node, moves: Sequence[Node], zero: int) -> Node:
        """The same moves of integers; the last comes first. Padding is the zero point."""
        for move in reversed(moves):
            rest = (*move.args[1:2], zero) if op_of(move) == "aten::constant_pad_nd" else move.args[1:]
            value = self._emit(move.target, value, *rest, **move.kwargs)
        return value

    def _clamped(self, value: Node, low: int, high: int, own: Parameters) -> Node:
        if (low, high) == own.everything:
            return value
        return self._emit(_aten.clamp.default, value, low, high)

    # ---- the way back ----

    def _back(self, node: Any, only_ours: bool) -> tuple[Any, list[Node], list[Bounds]]:
        """(what computes, the moves behind it, the clamps behind it), the last first.

        ``only_ours``: nothing else may use what is passed, or it would be computed twice.
        """
        moves: list[Node] = []
        bounds: list[Bounds] = []
        while isinstance(node, Node):
            op = op_of(node)
            if only_ours and len(node.users) > 1:
                break
            clamps = bounds_of(node)
            if clamps is not None:
                bounds.append(clamps)
            elif op == "getitem" and node.args[1] == 0 and op_of(node.args[0]) in MOVES:
                pool = node.args[0]
                assert isinstance(pool, Node)
                if len(pool.users) > 1:
                    break
                moves += [node, pool]
                node = pool
            elif op in MOVES and "with_indices" not in op:
                if op == "aten::constant_pad_nd" and argument(node, 2, "value", 0) != 0:
                    break
                moves.append(node)
            else:
                break
            node = node.args[0]
        return node, moves, bounds

    def _operand(self, node: Any) -> _Operand | None:
        """What an argument of a computing op is in integers."""
        source, moves, bounds = self._back(node, only_ours=False)
        own = per_tensor(source, "dequantize_per_tensor")
        # Any other bound than 0 need not be a number that an integer stands for.
        if own is None or any(clamps != (0.0, None) for clamps in bounds):
            return None
        low, high = own.everything
        value = self._clamped(source.args[0], own.zero if bounds else low, high, own)
        return _Operand(self._replayed(value, moves, own.zero), own)

    def _weight(self, node: Any, transposed: bool) -> _Weight | None:
        """A weight as [channels, …]; ``transposed``: the graph wants it as [depth, channels]."""
        while transposes(node):
            transposed, node = not transposed, node.args[0]
        if dtype_of(node) is not torch.float32 or not node.args or dtype_of(node.args[0]) is not torch.int8:
            return None
        integers = node.args[0]
        if op_of(node) == "quantized_decomposed::dequantize_per_channel":
            scales, zeros = argument(node, 1, "scales"), argument(node, 2, "zero_points")
            shown, channels = integers.meta["val"], 1 if transposed else 0
            along = argument(node, 3, "axis") % shown.ndim == channels
            one_each = along and scales.meta["val"].shape == shown.shape[channels : channels + 1]
            if not one_each or dtype_of(scales) not in (torch.float32, torch.float64) or not self._all_zero(zeros):
                return None
            return _Weight(self._channels_first(integers, transposed), scales)
        own = per_tensor(node, "dequantize_per_tensor")
        if own is None or own.zero != 0:
            return None
        return _Weight(self._channels_first(integers, transposed), own.scale)

    def _channels_first(self, integers: Node, transposed: bool) -> Node:
        return self._emit(_aten.permute.default, integers, [1, 0]) if transposed else integers

    def _all_zero(self, zeros: Any) -> bool:
        """True if zero points are known to be 0: none at all, or constants of the graph."""
        if zeros is None:
            return True
        value = self._known.get(zeros.name)
        if zeros.op == "get_attr":
            value = operator.attrgetter(str(zeros.target))(self._graph.owning_module)
        if value is None or isinstance(value, torch._subclasses.FakeTensor):
            return False
        return not bool(value.any())

    # ---- the ops that compute ----

    def _quantized(self, node: Node, wanted: Parameters) -> Node | None:
        """The integers of a quantize by integer ops; None if they cannot give them."""
        core, moves, bounds = self._back(node.args[0], only_ours=True)
        low, high = wanted.clamped(bounds)
        wanted = replace(wanted, low=low, high=high)
        padded = any(op_of(move) == "aten::constant_pad_nd" for move in moves)
        if not isinstance(core, Node) or (padded and not low <= wanted.zero <= high):
            return None
        self._from = core
        if per_tensor(core, "dequantize_per_tensor") is not None:
            operand = self._operand(core)
            assert operand is not None
            made: Node | None = self._requantized(operand, wanted)
        else:
            computing, arguments = _COMPUTING.get(op_of(core), (None, 0))
            fits = computing is not None and len(core.users) == 1 and len(core.args) >= arguments
            made = computing(self, core, wanted) if computing is not None and fits else None
        return None if made is None else self._replayed(made, moves, wanted.zero)

    def _requantized(self, operand: _Operand, wanted: Parameters) -> Node:
        """Integers that are quantized already: the same ones, or at another scale."""
        own = operand.parameters
        if (own.scale, own.zero, own.dtype) == (wanted.scale, wanted.zero, wanted.dtype):
            return self._clamped(operand.integers, wanted.low, wanted.high, own)
        return self._scaled(operand.integers, -own.zero, own.scale / wanted.scale, wanted)

    def _scaled(self, value: Node, offset: int, factor: float, wanted: Parameters) -> Node:
        return self._emit(
            torch.ops.bringup.requantize.default, value, offset, *multiplier_and_shift(factor), *wanted.result
        )

    def _layer(self, x: _Operand, weight: _Weight, bias: Node | None, wanted: Parameters) -> tuple[Node, ...] | None:
        """(bias, multipliers, shifts) of a layer."""
        ops, own = torch.ops.bringup, x.parameters
        shown = weight.integers.meta["val"]
        channels = shown.shape[0]
        if not all(isinstance(n, int) for n in shown.shape) or shown.numel() > channels * LONGEST_SUM:
            return None
        if isinstance(weight.scales, Node):
            vector = weight.scales
            factors = self._emit(ops.quantized_factors.default, vector, own.scale, wanted.scale)
            pair = [self._emit(operator.getitem, factors, n) for n in range(2)]
        else:
            numbers = multiplier_and_shift(weight.scales * own.scale / wanted.scale)
            pair = [self._full(weight.integers, channels, number) for number in numbers]
            device = shown.device
            vector = self._emit(_aten.full.default, [channels], weight.scales, dtype=torch.float64, device=device)
        start = self._emit(ops.quantized_bias.default, weight.integers, bias, vector, own.scale, own.signed_zero)
        return start, pair[0], pair[1]

    def convolution(self, core: Node, wanted: Parameters) -> Node | None:
        x, w, bias, stride, padding, dilation, transposed, _, groups = core.args
        numbers = (*stride, *padding, *dilation, groups)  # type: ignore[misc]
        if transposed or not all(isinstance(number, int) for number in numbers):
            return None
        layer = self._operands_of_layer(x, w, bias, wanted, transposed=False)
        if layer is None:
            return None
        operand, weight, vectors = layer
        window = (list(stride), list(padding), list(dilation), groups)  # type: ignore[arg-type]
        given = (operand.integers, weight.integers, *vectors, operand.parameters.zero)
        return self._emit(torch.ops.bringup.quantized_convolution.default, *given, *wanted.result, *window)

    def _operands_of_layer(
        self, x: Any, w: Any, bias: Any, wanted: Parameters, transposed: bool
    ) -> tuple[_Operand, _Weight, tuple[Node, ...]] | None:
        operand, weight = self._operand(x), self._weight(w, transposed)
        if operand is None or weight is None or (bias is not None and not self._is_vector(bias, weight)):
            return None
        vectors = self._layer(operand, weight, bias, wanted)
        return None if vectors is None else (operand, weight, vectors)

    def _is_vector(self, bias: Node, weight: _Weight) -> bool:
        shape = bias.meta["val"].shape
        return len(shape) == 1 and shape[0] == weight.integers.meta["val"].shape[0]

    def _linear(self, x: Any, w: Any, bias: Any, wanted: Parameters) -> Node | None:
        layer = self._operands_of_layer(x, w, bias, wanted, transposed=True)
        if layer is None:
            return None
        operand, weight, vectors = layer
        given = (operand.integers, weight.integers, *vectors)
        return self._emit(torch.ops.bringup.quantized_linear.default, *given, *wanted.result)

    def addmm(self, core: Node, wanted: Parameters) -> Node | None:
        if core.kwargs.get("beta", 1) != 1 or core.kwargs.get("alpha", 1) != 1:
            return None
        bias, x, w = core.args
        return self._linear(x, w, bias, wanted)

    def mm(self, core: Node, wanted: Parameters) -> Node | None:
        x, w = core.args
        return self._linear(x, w, None, wanted)

    def add(self, core: Node, wanted: Parameters) -> Node | None:
        a, b = core.args
        first, second = self._operand(a), self._operand(b)
        if core.kwargs.get("alpha", 1) != 1 or first is None or second is None:
            return None
        one, other = first.parameters, second.parameters
        if max(one.scale, other.scale) >= wanted.scale * 2.0**20:
            return None
        factors = add_factors(one.scale, other.scale, wanted.scale)
        given = (first.integers, second.integers, one.zero, other.zero, *factors)
        return self._emit(torch.ops.bringup.quantized_add.default, *given, *wanted.result)

    def cat(self, core: Node, wanted: Parameters) -> Node | None:
        parts: Any = core.args[0]
        made = []
        for part in parts:
            operand = self._operand(part)
            if operand is None:
                return None
            made.append(self._requantized(operand, wanted))
        return self._emit(_aten.cat.default, made, *core.args[1:], **core.kwargs)

    # ---- means: sums of integers, and the division is part of the factor ----

    def mean(self, core: Node, wanted: Parameters) -> Node | None:
        shape, dims = core.args[0].meta["val"].shape, argument(core, 1, "dim")  # type: ignore[union-attr]
        if not dims or core.kwargs.get("dtype") not in (None, torch.float32):
            return None
        count = math.prod(shape[d] for d in dims)
        return self._mean(core.args[0], dims, bool(argument(core, 2, "keepdim", False)), count, wanted)

    def _mean(self, x: Any, dims: Any, keep: bool, count: Any, wanted: Parameters) -> Node | None:
        operand = self._operand(x)
        if operand is None or not isinstance(count, int) or not 0 < count <= LONGEST_SUM:
            return None
        own = operand.parameters
        total = self._emit(_aten.sum.dim_IntList, operand.integers, list(dims), keep, dtype=torch.int32)
        return self._scaled(total, -own.zero * count, own.scale / (wanted.scale * count), wanted)

    def adaptive_mean(self, core: Node, wanted: Parameters) -> Node | None:
        if list(argument(core, 1, "output_size")) != [1, 1]:
            return None
        shape = core.args[0].meta["val"].shape  # type: ignore[union-attr]
        return self._mean(core.args[0], [-2, -1], True, shape[-2] * shape[-1], wanted)

    def average_pool(self, core: Node, wanted: Parameters) -> Node | None:
        """A depthwise convolution with ones, divided by the window's size: so all windows must count as full."""
        x: Any = core.args[0]
        names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
        given = [argument(core, n + 1, name) for n, name in enumerate(names)]
        window = _pair(given[0])
        stride, padding = _pair(given[1] or given[0]), _pair(given[2] or 0)
        included = given[4] is None or given[4] or padding == [0, 0]
        shape = x.meta["val"].shape
        known = all(isinstance(n, int) for n in (*window, *stride, *padding, shape[-3])) and len(shape) == 4
        operand = self._operand(x)
        if given[3] or given[5] is not None or not included or not known or operand is None:
            return None
        own, count, channels = operand.parameters, math.prod(window), shape[1]
        device = x.meta["val"].device
        ones = self._emit(_aten.full.default, [channels, 1, *window], 1, dtype=torch.int8, device=device)
        numbers = (-own.signed_zero * count, *multiplier_and_shift(own.scale / (wanted.scale * count)))
        vectors = [self._full(x, channels, number) for number in numbers]
        return self._emit(
            torch.ops.bringup.quantized_convolution.default,
            *(operand.integers, ones, *vectors, own.zero, *wanted.result, stride, padding, [1, 1], channels),
        )


#: (rewriting, node, parameters of the result) → the node that gives it in integers; and how many arguments a node must
#: have by position.
_Computing: TypeAlias = Callable[[_Rewriting, Node, Parameters], "Node | None"]
_COMPUTING: dict[str, tuple[_Computing, int]] = {
    "aten::convolution": (_Rewriting.convolution, 9),
    "aten::addmm": (_Rewriting.addmm, 3),
    "aten::mm": (_Rewriting.mm, 2),
    "aten::add.Tensor": (_Rewriting.add, 2),
    "aten::cat": (_Rewriting.cat, 1),
    "aten::mean.dim": (_Rewriting.mean, 1),
    "aten::_adaptive_avg_pool2d": (_Rewriting.adaptive_mean, 1),
    "aten::avg_pool2d": (_Rewriting.average_pool, 1),
}


def _pair(numbers: Any) -> list[int]:
    return [numbers] * 2 if isinstance(numbers, int) else list(numbers) * (2 // len(numbers))
