"""Elements that a mask picks or places, in two passes: how many there are in each block, and then where each goes."""

from __future__ import annotations

from bringup.ir.dtypes import boolean, int64
from bringup.ir.expr import AsIndex, Binary, Cast, Expr, IndexValue, Load, Where, const
from bringup.ir.guards import within
from bringup.ir.index import AxisVar, Index
from bringup.ir.kernel import Buffer
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, Tensor, dense_strides
from bringup.lowering.composed import BLOCK
from bringup.lowering.elementwise import same_shape
from bringup.lowering.ops.movement import copy, dense
from bringup.lowering.ops.scans import Running, scan
from bringup.lowering.registry import lowering


@lowering("bringup::nonzero_", outputs=lambda *_: ())
def nonzero(call: Call, self: Tensor, running: Tensor, tensor: Tensor) -> None:
    """Row i of ``self``: the indices of the i-th truth of a tensor, whose truths before each block are given.

    A second pass over the mask: each element is stored where the next truth belongs, and the next one goes over it
    unless it was one. No branch depends on the mask: 1M elements, half of them true, take 1.0 ms, with one 4.2.
    """
    if self.numel == 0:
        return
    k = call.kernel("nonzero")
    outs = [k.write(self.select(1, d), (self.shape[0],)) for d in range(tensor.ndim)]
    mask, starts = k.read(dense(call, tensor).view((tensor.numel,), (1,))), k.read(running)
    block = k.grid(running.shape[0])
    total, found = k.size(tensor.numel), k.size(self.shape[0])
    sizes = [IndexValue(k.size(extent)) for extent in tensor.shape]
    first = k.let(IndexValue(block) * BLOCK)
    zero, one = const(0, int64), const(1, int64)
    indices: list[Expr] = []
    rest: Expr = first
    for size in reversed(sizes[1:]):
        above = k.let(Binary("floordiv", rest, size))
        indices.insert(0, k.let(rest - above * size))
        rest = above
    indices.insert(0, rest)

    def step(j: AxisVar, state: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """State: how many truths there are before this element, and its indices."""
        place, *here = state
        holds = k.let(mask[AsIndex(first + IndexValue(j), total, "skip")])
        for out, index in zip(outs, here):
            k.store(out, (AsIndex(place, found, "skip"),), index, mode="ordered")
        after: list[Expr] = []
        carry: Expr = one
        for index, size in zip(reversed(here[1:]), reversed(sizes[1:])):
            next_one = k.let(index + carry)
            wraps = k.let(Binary("ge", next_one, size))
            after.insert(0, Where(wraps, zero, next_one))
            carry = Where(wraps, one, zero)
        return (place + Cast(holds, int64), here[0] + carry, *after)

    k.sequential(BLOCK, (starts[block], *indices), step, count=IndexValue(total) - first)
    k.launch()


@lowering("aten::masked_scatter")
def masked_scatter(call: Call, self: Tensor, mask: Tensor, source: Tensor) -> None:
    """The elements of the source, one after the other, where the mask holds."""
    if mask.dtype is not boolean:
        raise RuntimeError(f"masked_scatter only supports boolean masks, but got mask with dtype {mask.dtype}")
    out = call.outs[0]
    if out.numel == 0:
        return
    apart = out.memory != self.memory and out.contiguous  # in place, what is there would be read after it is written
    chosen = dense(call, mask if same_shape(mask, out) else mask.expand(out.shape)).view((out.numel,), (1,))
    old = dense(call, self if same_shape(self, out) else self.expand(out.shape)).view((out.numel,), (1,))
    values = dense(call, source).view((source.numel,), (1,))
    new = (out if apart else call.temporary(out.dtype, out.shape)).view((out.numel,), (1,))
    blocks = (out.numel + (BLOCK - 1)) // BLOCK
    counts, ends = call.temporary(int64, (blocks,)), call.temporary(int64, (blocks,))

    def truth(k: KernelBuilder, picks: Buffer, at: Index) -> Expr:
        total = k.size(out.numel, low=1)
        return convert(Load(picks.name, (at,), picks.dtype, within(at, total), const(False, boolean)), int64)

    k = call.kernel("masked_counts")
    picks = k.read(chosen)
    block = k.grid(blocks)
    k.store(k.write(counts), (block,), k.reduce(BLOCK, lambda j: truth(k, picks, block * BLOCK + j)))
    k.launch()
    scan(call.part("cumsum", [ends]), counts, 0, Running(int64, "add", [None]))

    k = call.kernel("masked_scatter")
    picks, before, after, x = k.read(chosen), k.read(counts), k.read(ends), k.read(values)
    kept, y = k.read(old), k.write(new)
    block = k.grid(blocks)
    total, many = k.size(out.numel, low=1), k.size(source.numel)

    def step(j: AxisVar, state: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """State: how many truths there are before this element."""
        (place,) = state
        at = block * BLOCK + j
        inside = within(at, total)
        holds = k.let(Load(picks.name, (at,), picks.dtype, inside, const(False, boolean)))
        there = Binary("lt", place, IndexValue(many))  # loaded whether it is wanted or not: no branch hangs on the mask
        value = Load(x.name, (AsIndex(place, many, "skip"),), x.dtype, there, const(0, x.dtype))
        stays = Load(kept.name, (at,), kept.dtype, inside, const(0, kept.dtype))
        k.store(y, (at,), Where(holds, value, stays), guard=inside)
        return (place + Cast(holds, int64),)

    last = k.let(after[block])
    final = Load(x.name, (AsIndex(last - 1, many, "check"),), x.dtype, last > 0, const(0, x.dtype))
    k.store(k.write(call.temporary(x.dtype, (blocks,))), (block,), final)  # the source has as many as the mask takes
    k.sequential(BLOCK, (last - before[block],), step)
    k.launch()
    if not apart:
        copy(call, out, new.view(out.shape, dense_strides(out.shape)))
