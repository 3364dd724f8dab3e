"""The gradients of attention: the probabilities are computed again, block by block, once for the queries' gradient and
once for the keys' and values'. Every element of a gradient belongs to one grid point: no atomics, the same every time.

With P the probabilities, D what dropout multiplies them with, and delta the sum of grad × out of a query:
dV = (P D)ᵀ grad,  dS = P (D (grad × Vᵀ) - delta),  dQ = scale × dS × K,  dK = scale × dSᵀ × Q.
The gradient of a mask is dS, summed over what the mask was broadcast along: the one case that keeps a matrix of scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from bringup.ir.expr import Expr, IndexValue, Load, unary
from bringup.ir.index import Index, as_index
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, Number, Tensor
from bringup.lowering.ops.attention import Described, New, like
from bringup.lowering.ops.attention_tiles import ROWS, Heads, Scores, Tile, blocks_of, transposed, unmasked
from bringup.lowering.ops.draws import kept_key
from bringup.lowering.ops.folding import Reduction, fold
from bringup.lowering.registry import lowering

#: (query, key) → what dropout multiplies a probability with; None without dropout.
_Kept: TypeAlias = "Callable[[Index, Index], Expr | None]"


def outputs(grad: Described, query: Described, key: Described, value: Described, *rest: Any) -> list[New | None]:
    """The gradients of query, key, value, and of the mask where it is wanted."""
    mask, wanted = rest[0], rest[-1]
    return [*(like(tensor, tensor[3][-1]) for tensor in (query, key, value)), _like_mask(mask) if wanted else None]


def _like_mask(mask: Described) -> New:
    """A new tensor in the memory order of a mask, as empty_like makes it."""
    _, _, code, sizes, steps, _ = mask
    order = sorted(range(len(sizes)), key=lambda d: (steps[d], -d))
    if any(step == 0 and size > 1 for step, size in zip(steps, sizes)):
        order = list(reversed(range(len(sizes))))
    strides, step = [1] * len(sizes), 1
    for d in order:
        strides[d] = step
        step *= sizes[d]
    return ("new", code, sizes, tuple(strides))


@lowering("bringup::attention_backward", outputs=outputs)
def attention_backward(
    call: Call,
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    drawn: Tensor,
    dropout: Number,
    causal: bool,
    scale: Number,
    mask_gradient: bool,
) -> None:
    """The gradients of query, key and value, and of the mask where it is wanted."""
    heads = Heads.of(query, key, value, mask, dropout, causal, scale)
    backward = _Backward(call, heads, grad, out, logsumexp, drawn if dropout > 0 else None)
    scores = None
    if mask_gradient and mask is not None:
        scores = call.temporary(heads.wide, (query.shape[0], query.shape[1], heads.queries, heads.keys))
    backward.query_gradient(call.outs[0], scores)
    backward.key_and_value_gradients(call.outs[1], call.outs[2])
    if scores is not None:
        _sum_to(call, call.outs[3], scores)


def _sum_to(call: Call, out: Tensor, scores: Tensor) -> None:
    """Sums a matrix of scores over the dimensions in which a mask has one element."""
    ahead = scores.ndim - out.ndim
    full = out.view([1] * ahead + list(out.shape), [0] * ahead + list(out.strides))
    dims = [d for d in range(scores.ndim) if full.shape[d] == 1]
    total = Reduction(lambda piece: (piece.reduce(lambda *j: piece(*j)),), "add")
    fold(call, [scores], dims, True, total, [full])


class _Backward:
    """What both kernels read."""

    def __init__(
        self, call: Call, heads: Heads, grad: Tensor, out: Tensor, logsumexp: Tensor, drawn: Tensor | None
    ) -> None:
        self.call, self.heads, self.drawn = call, heads, drawn
        self.grad, self.sums = heads.per_query(grad, heads.width), heads.per_query(logsumexp)
        self.deltas = self._deltas(heads.per_query(out, heads.width))

    def _deltas(self, out: Tensor) -> Tensor:
        """The sum of grad × out of each query."""
        heads, k = self.heads, self.call.kernel("attention_delta")
        deltas = self.call.temporary(heads.wide, (*heads.outer, heads.queries))
        at = [*(k.grid(extent) for extent in heads.outer), k.grid(heads.queries)]
        x, g, y = k.read(out), k.read(self.grad), k.write(deltas)
        total = k.reduce(heads.width, lambda e: convert(x.at(*at, e), heads.wide) * convert(g.at(*at, e), heads.wide))
        k.store(y, at, total)
        k.launch()
        return deltas

    def _kept(self, k: KernelBuilder, scores: Scores) -> _Kept:
        """What dropout multiplies a probability with, as the forward pass drew it; None without dropout."""
        if self.drawn is None:
            return lambda query, key: None
        seed, offset = kept_key(k, self.drawn)
        return lambda query, key: scores.kept(seed, offset, query, key)

    def query_gradient(self, out: Tensor, kept_scores: Tensor | None) -> None:
        """dQ: 8 queries against all keys; dS as well where it is kept."""
        call, heads = self.call, self.heads
        wide = heads.wide
        keys, values = (transposed(call, x, heads.block, wide) for x in (heads.key, heads.value))
        k = call.kernel("attention_grad_query")
        tile = Tile.over(k, heads.outer, heads.queries, heads)
        shared = (*tile.outer[:2], as_index(0))
        kt, vt, rows = k.read(keys), k.read(values), k.read(heads.key)
        sums, deltas = k.read(self.sums), k.read(self.deltas)
        y = k.write(heads.per_query(out, heads.depth))
        z = None if kept_scores is None else k.write(heads.per_query(kept_scores, heads.keys))
        scores = Scores.of(k, heads, tile.outer)
        kept = self._kept(k, scores)
        q = tile.held(k.read(heads.query), tile.outer, heads.depth)
        g = tile.held(k.read(self.grad), tile.outer, heads.width)
        result = tile.filled((ROWS, heads.depth), 0)
        p, d = k.local(wide, (ROWS, heads.block)), k.local(wide, (ROWS, heads.block))

        with k.loop(blocks_of(heads.keys, heads.block), "sequential") as n:
            first = n * heads.block
            tile.products(
                q,
                lambda e, j: kt.at(*shared, n, e, j),
                p,
                lambda r, total, j: scores.at(total, tile.row(r), first + j),
            )
            tile.products(g, lambda e, j: vt.at(*shared, n, e, j), d, lambda r, total, j: total)
            with k.loop(ROWS) as r:
                row = tile.row(r)
                inside = IndexValue(row) < IndexValue(scores.queries)
                shift, delta = (k.let(Load(x.name, (*tile.outer, row), x.dtype, inside)) for x in (sums, deltas))
                with k.loop(heads.block) as j:
                    share = unary("exp", p[r, j] - unmasked(shift))
                    factor = kept(row, first + j)
                    k.store(d, (r, j), share * ((d[r, j] if factor is None else d[r, j] * factor) - delta))
                    if z is not None:
                        real = inside & (IndexValue(first + j) < IndexValue(scores.keys))
                        k.store(z, (*tile.outer, row, first + j), d[r, j], guard=real)
            tile.accumulate(result, d, tile.columns(rows, shared, first, scores.keys))
        tile.deliver(y, tile.outer, lambda r, e: result[r, e] * scores.scale, heads.depth)
        k.launch()

    def key_and_value_gradients(self, out_key: Tensor, out_value: Tensor) -> None:
        """dK and dV: 8 keys against all queries of all heads that share them."""
        call, heads = self.call, self.heads
        wide = heads.wide
        queries, grads = (transposed(call, x, heads.block, wide) for x in (heads.query, self.grad))
        k = call.kernel("attention_grad_key_value")
        tile = Tile.over(k, heads.outer[:2], heads.keys, heads)
        shared = (*tile.outer, as_index(0))
        qt, gt = k.read(queries), k.read(grads)
        q, g = k.read(heads.query), k.read(self.grad)
        sums, deltas = k.read(self.sums), k.read(self.deltas)
        y_key, y_value = k.write(heads.per_key(out_key, heads.depth)), k.write(heads.per_key(out_value, heads.width))
        keys = tile.held(k.read(heads.key), shared, heads.depth)
        values = tile.held(k.read(heads.value), shared, heads.width)
        d_key, d_value = tile.filled((ROWS, heads.depth), 0), tile.filled((ROWS, heads.width), 0)
        p, d = k.local(wide, (ROWS, heads.block)), k.local(wide, (ROWS, heads.block))
        mask = Scores.of(k, heads, shared).mask

        with k.loop(heads.outer[2], "sequential") as group:
            at: tuple[Index, ...] = (*tile.outer, group)
            scores = Scores.of(k, heads, at, mask)
            kept = self._kept(k, scores)

            with k.loop(blocks_of(heads.queries, heads.block), "sequential") as n:
                first = n * heads.block
                tile.products(
                    keys,
                    lambda e, i: qt.at(*at, n, e, i),
                    p,
                    lambda r, total, i: scores.at(total, first + i, tile.row(r)),
                )
                tile.products(values, lambda e, i: gt.at(*at, n, e, i), d, lambda r, total, i: total)
                with k.loop(ROWS) as r, k.loop(heads.block) as i:
                    inside = IndexValue(first + i) < IndexValue(scores.queries)
                    shift, delta = (Load(x.name, (*at, first + i), x.dtype, inside) for x in (sums, deltas))
                    share = k.let(unary("exp", p[r, i] - unmasked(shift)))
                    factor = kept(first + i, tile.row(r))
                    named = None if factor is None else k.let(factor)
                    grad = d[r, i] if named is None else d[r, i] * named
                    k.store(d, (r, i), share * (grad - delta))
                    k.store(p, (r, i), share if named is None else share * named)
                tile.accumulate(d_value, p, tile.columns(g, at, first, scores.queries))
                tile.accumulate(d_key, d, tile.columns(q, at, first, scores.queries))
        scale = k.number(heads.scale, wide)
        tile.deliver(y_key, shared, lambda r, e: d_key[r, e] * scale, heads.depth)
        tile.deliver(y_value, shared, lambda r, e: d_value[r, e], heads.width)
        k.launch()
