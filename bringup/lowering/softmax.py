"""Softmax and log_softmax, forward and backward: one row at a time."""

from __future__ import annotations

from bringup.ir.expr import unary
from bringup.lowering.builder import convert
from bringup.lowering.call import Call, Tensor
from bringup.lowering.reduction import lines
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath


@lowering("aten::_softmax")
def softmax(call: Call, self: Tensor, dim: int, half_to_float: bool) -> None:
    """e^(x - max) / sum."""
    dim = dim % self.ndim if self.ndim else 0
    wide = opmath(self.dtype)
    k = call.kernel()
    i, extent, (x,), (y,) = lines(k, dim, [self], call.outs)
    peak = k.let(convert(k.reduce(extent, lambda j: x.at(*i, j), "max"), wide))
    total = k.reduce(extent, lambda j: unary("exp", convert(x.at(*i, j), wide) - peak))
    with k.loop(extent) as j:
        k.store(y, (*i, j), unary("exp", convert(x.at(*i, j), wide) - peak) / total)
    k.launch()
