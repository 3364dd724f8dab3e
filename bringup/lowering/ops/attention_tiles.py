"""What attention kernels are made of: heads in groups, blocks of positions transposed, tiles of scores, dropout.

A grid point owns 8 rows (queries, or keys for their gradient) and walks over blocks of 64 columns. Its tile of scores
is 8 × 64 in scratch: eight sums side by side are what keeps fused multiply-adds busy, and columns that were transposed
beforehand lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bringup.ir.dtypes import DType, boolean, float64, uint64
from bringup.ir.expr import Binary, Cast, Expr, Fma, IndexValue, Load, Philox, Where, const
from bringup.ir.index import AxisVar, Index, IndexLike, as_index
from bringup.ir.kernel import Buffer, Local
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, Number, Tensor
from bringup.lowering.ops.draws import below
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike

#: Rows that one grid point owns, and columns of a block of scores: the smaller one where it covers all of them.
ROWS, BLOCKS = 8, (16, 64)
NEVER = float("-inf")


@dataclass(frozen=True)
class Heads:
    """A call's tensors as (batch, key heads, query heads that share one, positions, features), in the same sizes."""

    outer: tuple[IntLike, IntLike, IntLike]
    queries: IntLike
    keys: IntLike
    #: Features of queries and keys, and of values: part of the structure, as scratch has constant sizes.
    depth: int
    width: int
    block: int
    wide: DType
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: Number
    causal: bool
    scale: Number

    @staticmethod
    def of(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: Number, causal: bool, scale: Number
    ) -> Heads:
        """The heads of a call."""
        batch, heads, queries, depth = query.shape
        shared, keys, width = key.shape[1], key.shape[2], value.shape[3]
        groups = 1 if heads == shared else heads // shared
        bare = Heads(
            (batch, heads if groups == 1 else shared, groups), queries, keys, int(depth), int(width),
            BLOCKS[0] if queries <= BLOCKS[0] and keys <= BLOCKS[0] else BLOCKS[1],
            opmath(query.dtype), query, key, value, mask, dropout, causal, scale,
        )  # fmt: skip
        spread = None if mask is None else bare.per_query(mask.expand((batch, heads, queries, keys)), keys)
        return replace(
            bare,
            query=bare.per_query(query, bare.depth),
            key=bare.per_key(key, bare.depth),
            value=bare.per_key(value, bare.width),
            mask=spread,
        )

    def per_query(self, tensor: Tensor, *features: IntLike) -> Tensor:
        """(batch, heads, queries, …) with the heads in groups."""
        (step, stride, *steps), groups = tensor.strides, self.outer[2]
        return tensor.view((*self.outer, self.queries, *features), (step, stride * groups, stride, *steps))

    def per_key(self, tensor: Tensor, *features: IntLike) -> Tensor:
        """(batch, key heads, keys, …) with groups of one."""
        (step, stride, *steps) = tensor.strides
        return tensor.view((*self.outer[:2], 1, self.keys, *features), (step, stride, 0, *steps))


def blocks_of(extent: IntLike, size: int) -> IntLike:
    """How many blocks cover an extent."""
    return (extent + (size - 1)) // size


def transposed(call: Call, x: Tensor, block: int, dtype: DType) -> Tensor:
    """(…, positions, features) as (…, blocks, features, block): the positions of a block side by side, 0 behind."""
    *outer, positions, features = x.shape
    width = int(features)  # a number already
    blocks = blocks_of(positions, block)
    target = call.temporary(dtype, (*outer, blocks, width, block))
    k = call.kernel("attention_turn")
    at = [*(k.grid(extent) for extent in outer), k.grid(blocks)]
    source, result = k.read(x), k.write(target)
    with k.loop(width) as e, k.loop(block) as j:
        column = at[-1] * block + j
        inside = IndexValue(column) < IndexValue(k.size(positions))
        value = Load(source.name, (*at[:-1], column, e), source.dtype, inside)
        k.store(result, (*at, e, j), convert(value, dtype))
    k.launch()
    return target


@dataclass
class Tile:
    """One grid point: 8 rows against blocks of columns."""

    k: KernelBuilder
    outer: tuple[AxisVar, ...]
    first: Index
    rows: Index
    block: int
    wide: DType

    @staticmethod
    def over(k: KernelBuilder, outer: Sequence[IntLike], rows: IntLike, heads: Heads) -> Tile:
        """Opens the grid."""
        axes = tuple(k.grid(extent) for extent in outer)
        place = k.grid(blocks_of(rows, ROWS))
        return Tile(k, axes, place * ROWS, k.size(rows), heads.block, heads.wide)

    def row(self, r: IndexLike) -> Index:
        """A row of the tensors; behind the last one there may be some that do not count."""
        return self.first + as_index(r)

    def held(self, x: Buffer, at: Sequence[Index], width: int) -> Local:
        """The rows of a tensor in scratch, in the wide type; 0 behind the last row."""
        local = self.k.local(self.wide, (ROWS, width))
        with self.k.loop(ROWS) as r, self.k.loop(width) as e:
            inside = IndexValue(self.row(r)) < IndexValue(self.rows)
            value = Load(x.name, (*at, self.row(r), e), x.dtype, inside)
            self.k.store(local, (r, e), convert(value, self.wide))
        return local

    def filled(self, shape: tuple[int, ...], value: float) -> Local:
        """Scratch full of one number."""
        local = self.k.local(self.wide, shape)
        places: list[AxisVar] = []

        def nest() -> None:
            if len(places) == len(shape):
                self.k.store(local, places, const(value, self.wide))
                return
            with self.k.loop(shape[len(places)]) as axis:
                places.append(axis)
                nest()

        nest()
        return local

    def products(
        self,
        rows: Local,
        columns: Callable[[AxisVar, AxisVar], Expr],
        into: Local,
        finish: Callable[[int, Expr, AxisVar], Expr],
    ) -> None:
        """into[r, j] = finish(r, sum over e of rows[r, e] × columns(e, j), j): all rows at once."""
        k = self.k
        with k.loop(self.block) as j:

            def step(e: AxisVar, sums: tuple[Expr, ...]) -> list[Expr]:
                column = k.let(columns(e, j))
                return [Fma(rows[r, e], column, total) for r, total in enumerate(sums)]

            sums = k.sequential(rows.shape[1], [const(0, self.wide)] * ROWS, step)
            for r, total in enumerate(sums):
                k.store(into, (r, j), finish(r, total, j))

    def accumulate(
        self,
        into: Local,
        weights: Local,
        columns: Callable[[AxisVar, AxisVar], Expr],
        scaled: Callable[[int, Expr], Expr] = lambda r, value: value,
    ) -> None:
        """into[r, d] = scaled(r, into[r, d]) + sum over j of weights[r, j] × columns(j, d): all rows at once."""
        k = self.k
        with k.loop(into.shape[1]) as d:

            def step(j: AxisVar, sums: tuple[Expr, ...]) -> list[Expr]:
                column = k.let(columns(j, d))
                return [Fma(weights[r, j], column, total) for r, total in enumerate(sums)]

            sums = k.sequential(self.block, [scaled(r, into[r, d]) for r in range(ROWS)], step)
            for r, total in enumerate(sums):
                k.store(into, (r, d), total)

    def columns(
        self, x: Buffer, at: Sequence[Index], first: Index, extent: Index
    ) -> Callable[[AxisVar, AxisVar], Expr]:
        """The elements of a block of rows of a tensor, from ``first`` on; 0 behind the last row."""

        def element(j: AxisVar, e: AxisVar) -> Expr:
            inside = IndexValue(first + j) < IndexValue(extent)
            return convert(Load(x.name, (*at, first + j, e), x.dtype, inside), self.wide)

        return element

    def deliver(self, out: Buffer, at: Sequence[Index], value: Callable[[AxisVar, AxisVar], Expr], width: int) -> None:
        """out[…, row r, e] = value(r, e) for the rows that count."""
        with self.k.loop(ROWS) as r, self.k.loop(width) as e:
            inside = IndexValue(self.row(r)) < IndexValue(self.rows)
            self.k.store(out, (*at, self.row(r), e), value(r, e), guard=inside)


@dataclass(frozen=True)
class Scores:
    """Scores and dropout of a kernel, at a query and a key of the heads ``outer``."""

    k: KernelBuilder
    heads: Heads
    outer: tuple[Index, ...]
    queries: Index
    keys: Index
    scale: Expr
    mask: Buffer | None

    @staticmethod
    def of(k: KernelBuilder, heads: Heads, outer: Sequence[Index], given: Buffer | None = None) -> Scores:
        """Makes the arguments that scores need; a mask is taken where it is given already."""
        queries, keys = k.size(heads.queries), k.size(heads.keys)
        mask = given
        if heads.mask is not None and given is None:
            mask = k.read(heads.mask)
        return Scores(k, heads, tuple(outer), queries, keys, k.number(heads.scale, heads.wide), mask)

    def at(self, product: Expr, query: Index, key: Index) -> Expr:
        """A score: the scaled product and the mask; -inf behind the last query or key and where causality forbids."""
        value = product * self.scale
        inside = (IndexValue(query) < IndexValue(self.queries)) & (IndexValue(key) < IndexValue(self.keys))
        if self.mask is not None:
            given = Load(self.mask.name, (*self.outer, query, key), self.mask.dtype, inside)
            if given.dtype is boolean:
                inside = inside & given
            else:
                value = value + convert(given, value.dtype)
        if self.heads.causal:
            inside = inside & (IndexValue(key) <= IndexValue(query))
        return Where(inside, value, const(NEVER, value.dtype))

    def kept(self, seed: Expr, offset: Expr, query: Index, key: Index) -> Expr:
        """What a probability is multiplied with: 0, or 1 / (1 - p)."""
        heads, groups = (self.k.size(extent) for extent in self.heads.outer[1:])
        b, h, g = self.outer
        place = (((b * heads + h) * groups + g) * self.queries + query) * self.keys + key
        word = Philox(seed, offset, Cast(IndexValue(place), uint64), 32)
        keep = 1.0 - self.k.number(self.heads.dropout, float64)
        return Where(below(word, keep), convert(1.0 / keep, self.heads.wide), const(0, self.heads.wide))


def unmasked(peak: Expr) -> Expr:
    """What exponents are shifted by: the peak, or 0 for a row that is masked all along."""
    return Where(Binary("eq", peak, const(NEVER, peak.dtype)), const(0, peak.dtype), peak)
