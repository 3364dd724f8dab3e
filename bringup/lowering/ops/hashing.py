"""hash_tensor: the exclusive or of all elements' bits, as float64 or as 64-bit integers."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.ir.dtypes import float64, uint64
from bringup.ir.expr import Bits, Expr
from bringup.lowering.builder import convert
from bringup.lowering.call import Call, NoKernel, Tensor
from bringup.lowering.ops.folding import Elements, Reduction, fold
from bringup.lowering.reduction import normalized_dims
from bringup.lowering.registry import lowering


def bits_of(x: Expr) -> Expr:
    """64 bits that tell values of a type apart."""
    return Bits(convert(x, float64), uint64) if x.dtype.is_float else convert(x, uint64)


@lowering("aten::hash_tensor")
def hash_tensor(call: Call, self: Tensor, dim: Sequence[int], keepdim: bool, mode: int) -> None:
    """The one mode there is: exclusive or."""
    if mode != 0:
        raise NoKernel(f"hash_tensor has no mode {mode}")

    def part(piece: Elements) -> tuple[Expr, ...]:
        return (piece.reduce(lambda *j: bits_of(piece(*j)), "xor"),)

    fold(call, [self], normalized_dims(dim, self.ndim), keepdim, Reduction(part, "xor"))
