"""all and any, along any dimensions."""

from __future__ import annotations

from typing import Any

from bringup.lowering.call import Call, Tensor
from bringup.lowering.ops.sums import folding, truth
from bringup.lowering.registry import Lowering, lowering


def _over_dims(op: str) -> Lowering:
    def lower(call: Call, self: Tensor, dim: Any = None, keepdim: bool = False) -> None:
        # The result of uint8 is uint8, with values 0 and 1.
        folding(call, self, dim, keepdim, truth, op)

    return lower


lowering("aten::all", "aten::all.dim", "aten::all.dims")(_over_dims("and"))
lowering("aten::any", "aten::any.dim", "aten::any.dims")(_over_dims("or"))
