"""Attention without the score matrix: 8 queries walk over blocks of keys with a running softmax (attention_tiles.py).

The backward pass (attention_backward.py) computes the probabilities again from the logarithm of the sums that the
forward pass keeps, and draws the same dropout again from the key that it keeps.
"""

from __future__ import annotations

import math
from typing import Any

from bringup.ir.dtypes import int64
from bringup.ir.expr import Binary, Expr, IndexValue, Where, binary, const, unary
from bringup.ir.index import AxisVar, as_index
from bringup.lowering.call import Call, Number, Tensor
from bringup.lowering.ops.attention_tiles import NEVER, ROWS, Heads, Scores, Tile, blocks_of, transposed, unmasked
from bringup.lowering.ops.draws import keep_key
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import BY_CODE, CODE_OF, opmath

Described = tuple[str, int, int, tuple[int, ...], tuple[int, ...], int]
New = tuple[str, int, tuple[int, ...], tuple[int, ...]]


def like(tensor: Described, features: int) -> New:
    """A new tensor whose dimensions lie in memory in the order of a given one's, the features innermost."""
    _, _, code, sizes, steps, _ = tensor
    shape = (*sizes[:-1], features)
    strides = [1] * len(shape)
    step = features
    for d in sorted(range(len(shape) - 1), key=lambda d: (steps[d], -d)):
        strides[d] = step
        step *= shape[d]
    return ("new", code, shape, tuple(strides))


def outputs(
    query: Described, key: Described, value: Described, mask: object, dropout: tuple[Any, ...], *_: object
) -> list[New]:
    """The result, the logarithm of the sums, and the dropout's key (nothing where none is drawn)."""
    rows = query[3][:-1]
    sums = CODE_OF[opmath(BY_CODE[query[2]])]
    words = 2 if dropout[3] > 0 else 0
    return [
        like(query, value[3][-1]),
        ("new", sums, rows, dense(rows)),
        ("new", CODE_OF[int64], (words,), (1,)),
    ]


def dense(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))


@lowering("bringup::attention", outputs=outputs)
def attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: Number,
    causal: bool,
    scale: Number,
) -> None:
    """softmax(scale × query × keyᵀ + mask) × value; also log(sum(e^score)) of each query, and the dropout's key."""
    heads = Heads.of(query, key, value, mask, dropout, causal, scale)
    dropping = dropout > 0
    if dropping:
        keep_key(call, call.outs[2], "attention_key")
    wide = heads.wide
    keys = transposed(call, heads.key, heads.block, wide)
    k = call.kernel("attention")
    tile = Tile.over(k, heads.outer, heads.queries, heads)
    shared = (*tile.outer[:2], as_index(0))
    kt, v = k.read(keys), k.read(heads.value)
    y, sums = k.write(heads.per_query(call.outs[0], heads.width)), k.write(heads.per_query(call.outs[1]))
    scores = Scores.of(k, heads, tile.outer)
    q = tile.held(k.read(heads.query), tile.outer, heads.depth)
    peaks, totals, fades = tile.filled((ROWS,), NEVER), tile.filled((ROWS,), 0), k.local(wide, (ROWS,))
    result, p = tile.filled((ROWS, heads.width), 0), k.local(wide, (ROWS, heads.block))
    seed, offset = k.philox_key() if dropping else (None, None)

    with k.loop(blocks_of(heads.keys, heads.block), "sequential") as n:
        first = n * heads.block
        tile.products(
            q, lambda e, j: kt.at(*shared, n, e, j), p, lambda r, total, j: scores.at(total, tile.row(r), first + j)
        )
        with k.loop(ROWS) as r:
            peak = k.reduce(heads.block, lambda j: p[r, j], "max")
            higher = k.let(binary("max", peaks[r], peak))
            shift = k.let(unmasked(higher))
            fade = k.let(unary("exp", peaks[r] - shift))
            with k.loop(heads.block) as j:
                k.store(p, (r, j), unary("exp", p[r, j] - shift))
            total = k.reduce(heads.block, lambda j: p[r, j])
            k.store(totals, (r,), totals[r] * fade + total)
            k.store(peaks, (r,), higher)
            k.store(fades, (r,), fade)
            if seed is not None and offset is not None:
                with k.loop(heads.block) as j:
                    k.store(p, (r, j), p[r, j] * scores.kept(seed, offset, tile.row(r), first + j))

        values = tile.columns(v, shared, first, scores.keys)
        tile.accumulate(result, p, values, lambda r, value: value * fades[r])

    def normalized(r: AxisVar, e: AxisVar) -> Expr:
        empty = Binary("eq", totals[r], const(0, wide))  # a row that is masked all along
        return Where(empty, const(0, wide), result[r, e] / totals[r])

    tile.deliver(y, tile.outer, normalized, heads.width)
    with k.loop(ROWS) as r:
        inside = IndexValue(tile.row(r)) < IndexValue(tile.rows)
        k.store(sums, (*tile.outer, tile.row(r)), unmasked(peaks[r]) + unary("log", totals[r]), guard=inside)
    k.launch()
