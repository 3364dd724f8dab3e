"""Elements that a mask picks: their places are where the running count of the mask grows, found by bisection."""

from __future__ import annotations

from bringup.ir.dtypes import boolean, int64
from bringup.ir.expr import AsIndex, Binary, Expr, IndexValue, Load, Where, const
from bringup.ir.index import Index
from bringup.lowering.builder import convert
from bringup.lowering.call import Call, Tensor
from bringup.lowering.elementwise import same_shape
from bringup.lowering.ops.movement import dense
from bringup.lowering.ops.scans import Running, scan
from bringup.lowering.ops.searching import bisected
from bringup.lowering.registry import lowering


@lowering("bringup::nonzero_", outputs=lambda *_: ())
def nonzero(call: Call, self: Tensor, running: Tensor, tensor: Tensor) -> None:
    """Row i of ``self``: the indices of the i-th truth of a tensor, whose flat running count is given."""
    if self.numel == 0:
        return
    k = call.kernel("nonzero")
    out, counts = k.write(self, (self.shape[0], tensor.ndim)), k.read(running)
    i = k.grid(self.shape[0])
    sizes = [IndexValue(k.size(extent)) for extent in tensor.shape]
    rest: Expr = k.let(bisected(k, counts, (), running.shape[0], IndexValue(i) + 1, False, None))
    for d in reversed(range(1, tensor.ndim)):
        above = k.let(Binary("floordiv", rest, sizes[d]))
        k.store(out, (i, d), rest - above * sizes[d])
        rest = above
    k.store(out, (i, 0), rest)
    k.launch()


@lowering("aten::masked_scatter")
def masked_scatter(call: Call, self: Tensor, mask: Tensor, source: Tensor) -> None:
    """The elements of the source, one after the other, where the mask holds."""
    if mask.dtype is not boolean:
        raise RuntimeError(f"masked_scatter only supports boolean masks, but got mask with dtype {mask.dtype}")
    out = call.outs[0]
    chosen = dense(call, mask if same_shape(mask, out) else mask.expand(out.shape))
    running = call.temporary(int64, out.shape)
    flat = running.view((out.numel,), (1,))
    scan(call.part("cumsum", [flat]), chosen.view((out.numel,), (1,)), 0, Running(int64, "add", [None]))
    values = dense(call, source).view((source.numel,), (1,))

    k = call.kernel("masked_scatter")
    i = tuple(k.grid(extent) for extent in out.shape)
    counts, picks = k.read(running), k.read(chosen, out.shape)
    old, new, y = (
        k.read(self if same_shape(self, out) else self.expand(out.shape), out.shape),
        k.read(values),
        k.write(out),
    )
    holds = k.let(convert(picks.at(*i), boolean))
    place: Index = AsIndex(counts.at(*i) - 1, k.size(source.numel), "check")
    value = Load(new.name, (place,), new.dtype, holds, const(0, new.dtype))
    k.store(y, i, Where(holds, value, old.at(*i)))
    k.launch()
