"""What a graph says of a quantized tensor: its scale, zero point and range, and which ops leave them as they are."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from bringup.graph.lowered import op_name

_RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255)}

#: What a clamp leaves: from, to.
Bounds: TypeAlias = "tuple[float | None, float | None]"

#: Ops that move or choose elements: they give the same on integers as on the numbers that these stand for.
MOVES = frozenset(
    {
        *("aten::view", "aten::reshape", "aten::_unsafe_view", "aten::permute", "aten::t", "aten::transpose.int"),
        *("aten::unsqueeze", "aten::squeeze", "aten::squeeze.dim", "aten::squeeze.dims", "aten::expand"),
        *("aten::slice.Tensor", "aten::select.int", "aten::clone", "aten::alias", "aten::flatten.using_ints"),
        *("aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices", "aten::constant_pad_nd"),
    }
)


@dataclass(frozen=True)
class Parameters:
    """number = (integer - zero) × scale, for integers from low to high."""

    scale: float
    zero: int
    low: int
    high: int
    dtype: torch.dtype

    def integer(self, number: float) -> int:
        """The integer of a number, as quantize_per_tensor finds it."""
        scaled = torch.tensor(number, dtype=torch.float32) * (1.0 / self.scale)
        return int((torch.round(scaled) + self.zero).clamp(self.low, self.high))

    def clamped(self, bounds: Sequence[Bounds]) -> tuple[int, int]:
        """The smallest and largest integer that are left after some clamps, given the last first."""
        low, high = self.low, self.high
        for least, most in reversed(bounds):
            if least is not None:
                low, high = max(low, self.integer(least)), max(high, self.integer(least))
            if most is not None:
                low, high = min(low, self.integer(most)), min(high, self.integer(most))
        return low, high

    @property
    def everything(self) -> tuple[int, int]:
        """All integers of the type: what a tensor may hold, whatever its quantizer promised."""
        return _RANGES[self.dtype]

    @property
    def result(self) -> tuple[int, int, int, torch.dtype]:
        """The arguments of an integer op that gives such a tensor."""
        return self.zero, self.low, self.high, self.dtype

    @property
    def signed_zero(self) -> int:
        """The zero point where an unsigned type counts from -128."""
        return self.zero - 128 if self.dtype is torch.uint8 else self.zero


def op_of(node: Any) -> str:
    """The overload of a node, such as "aten::view"; "" if it is none."""
    target = getattr(node, "target", None)
    if target is operator.getitem:
        return "getitem"
    if not isinstance(node, Node) or not isinstance(target, torch._ops.OpOverload):
        return ""
    return op_name(target)


def argument(node: Node, place: int, name: str, default: Any = None) -> Any:
    """An argument of a node by its place or name."""
    return node.args[place] if place < len(node.args) else node.kwargs.get(name, default)


def dtype_of(node: Any) -> torch.dtype | None:
    """The type of a node's traced tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


def per_tensor(node: Any, op: str) -> Parameters | None:
    """The parameters of a ``quantize_per_tensor`` or ``dequantize_per_tensor`` between 8-bit integers and float32;
    None for any other node. Numbers that are not sensible parameters are left to the float path, too."""
    if op_of(node) != f"quantized_decomposed::{op}" or not node.args:
        return None
    scale, zero, low, high = (
        argument(node, n, name) for n, name in enumerate(("scale", "zero_point", "quant_min", "quant_max"), 1)
    )
    kind: Any = argument(node, 5, "dtype")
    if kind not in _RANGES or not isinstance(zero, int) or not isinstance(scale, float):
        return None
    least, most = _RANGES[kind]
    if not 1e-30 < scale < 1e30 or not least <= zero <= most or not least <= low <= high <= most:
        return None
    integers, floats = (node, node.args[0]) if op == "quantize_per_tensor" else (node.args[0], node)
    if dtype_of(integers) != kind or dtype_of(floats) is not torch.float32:
        return None
    return Parameters(scale, zero, low, high, kind)


def bounds_of(node: Node) -> Bounds | None:
    """Between what an op clamps: (0, None) for relu; None for any other op, or where a bound is not a plain number."""
    op = op_of(node)
    if op == "aten::relu":
        return 0.0, None
    if op == "aten::hardtanh":
        low, high = argument(node, 1, "min_val", -1.0), argument(node, 2, "max_val", 1.0)
    elif op in ("aten::clamp", "aten::clamp_min", "aten::clamp_max"):
        low = None if op == "aten::clamp_max" else argument(node, 1, "min")
        high = argument(node, 1, "max") if op == "aten::clamp_max" else argument(node, 2, "max")
    else:
        return None
    known = all(bound is None or (isinstance(bound, (int, float)) and bound == bound) for bound in (low, high))
    return (low, high) if known and (low is None or high is None or low <= high) else None


def transposes(node: Any) -> bool:
    """True for the transpose of a matrix."""
    op = op_of(node)
    if op not in ("aten::t", "aten::permute", "aten::transpose.int") or node.meta["val"].ndim != 2:
        return False
    if op == "aten::permute":
        return [dim % 2 for dim in node.args[1]] == [1, 0]
    return op == "aten::t" or node.args[1] % 2 != node.args[2] % 2
