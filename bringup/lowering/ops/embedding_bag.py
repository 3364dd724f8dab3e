"""Embedding bags: rows of a table summed, averaged or compared per bag, in the order of the words; and renormed rows.

The bag of a word is found by bisection of the offsets; columns are parallel, words are a sequential loop, so that
every element of the result belongs to one grid point.
"""

from __future__ import annotations

from collections.abc import Callable

from bringup.ir.dtypes import int64
from bringup.ir.expr import AsIndex, Binary, Expr, IndexValue, Where, binary, const, unary
from bringup.ir.index import AxisVar
from bringup.ir.kernel import Buffer
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, NoKernel, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.ops.indexing import place
from bringup.lowering.ops.movement import copy, dense
from bringup.lowering.ops.scatter import filled, occurrences, scatter_into, start_from
from bringup.lowering.ops.searching import bisected
from bringup.lowering.ops.statistics import norm_parts
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike

SUM, MEAN, MAX = range(3)


def _filled(call: Call, tensor: Tensor, number: int) -> None:
    elementwise(call, [tensor], [], lambda: const(number, tensor.dtype), [], "fill")


def _real(words: Buffer, p: AxisVar, padding: int) -> Expr | None:
    """True for a word that counts; None if all do."""
    return Binary("ne", convert(words[p], int64), const(padding, int64)) if padding >= 0 else None


def _per_word(k: KernelBuilder, words: Tensor, width: IntLike, body: Callable[[AxisVar, AxisVar], None]) -> None:
    """Runs body(column, word) for all columns at once and the words in order."""
    j = k.grid(width)
    with k.loop(words.shape[0], "sequential") as p:
        body(j, p)
    k.launch()


def _bag_of_each(call: Call, indices: Tensor, offsets: Tensor, bags: IntLike, bag_of: Tensor) -> Tensor:
    k = call.kernel("bag_of_word")
    p = k.grid(indices.shape[0])
    starts = k.read(offsets.narrow(0, 0, bags), [bags])
    first = bisected(k, starts, (), bags, convert(IndexValue(p), offsets.dtype), True, None)
    k.store(k.write(bag_of, indices.shape), (p,), first - 1)
    k.launch()
    return bag_of


def _bags(call: Call, indices: Tensor, offsets: Tensor, bags: IntLike, padding: int) -> tuple[Tensor, Tensor]:
    """(the bag of each word, how many words of each bag count)."""
    _, bag_of, sizes, _ = call.outs
    _bag_of_each(call, indices, offsets, bags, bag_of)
    _filled(call, sizes, 0)
    if bag_of.numel != 0:
        scatter_into(call, sizes, 0, bag_of, _counted(call, indices, sizes, padding), "add")
    return bag_of, sizes


def _counted(call: Call, indices: Tensor, sizes: Tensor, padding: int) -> Tensor:
    """1 for each word that counts."""
    if padding < 0:
        return filled(call, 1, sizes).view(indices.shape, [0])
    ones = call.temporary(sizes.dtype, indices.shape)
    elementwise(
        call,
        [ones],
        [indices],
        lambda word: convert(Binary("ne", convert(word, int64), const(padding, int64)), sizes.dtype),
        [None],
        "counts",
    )
    return ones


@lowering("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(
    call: Call,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    include_last_offset: bool,
    padding_idx: int,
) -> None:
    """sum, mean or max of the rows that the words of a bag name; an empty bag is 0."""
    out = call.outs[0]
    bags, width = out.shape
    bag_of, sizes = _bags(call, indices, offsets, bags, padding_idx)
    wide = opmath(out.dtype)
    total = out if wide is out.dtype else call.temporary(wide, out.shape)
    _filled(call, total, 0)
    largest = call.outs[3]
    if mode == MAX:
        _filled(call, largest, -1)
    if indices.numel != 0:
        k = call.kernel()
        words, owners, table = k.read(indices), k.read(bag_of, indices.shape), k.read(weight, [weight.shape[0], width])
        factors = k.read(per_sample_weights, indices.shape) if per_sample_weights is not None else None
        target = k.update(total, [bags, width])
        at = k.update(largest, [bags, width]) if mode == MAX else None

        def take(j: AxisVar, p: AxisVar) -> None:
            row, bag = place(k, words, [p], weight.shape[0]), place(k, owners, [p], bags)
            counts = _real(words, p, padding_idx)
            value = k.let(convert(table[row, j], wide))
            if factors is not None:
                value = k.let(value * convert(factors[p], wide))
            if at is None:
                k.store(target, (bag, j), value, combine="add", guard=counts)
                return
            better = (at[bag, j] < 0) | (value > target[bag, j])
            better = k.let(better if counts is None else better & counts)
            k.store(target, (bag, j), value, guard=better)
            k.store(at, (bag, j), words[p], guard=better)

        _per_word(k, indices, width, take)
    if mode == MAX:
        elementwise(call, [largest], [largest], lambda at: binary("max", at, const(0, at.dtype)), [None], "none")
    if mode != MEAN:
        if total is not out:
            copy(call, out, total)
        return
    many = sizes.view([bags, width], [1, 0])
    elementwise(
        call,
        [out],
        [total, many],
        lambda sum, n: sum / binary("max", n, const(1, n.dtype)),
        [wide, wide],
        "mean",
    )


@lowering("aten::_embedding_bag_dense_backward")
def embedding_bag_backward(
    call: Call,
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int,
) -> None:
    """Each row collects the gradients of the bags it is in; of a maximum, where it was the largest."""
    (out,) = call.outs
    rows, width = out.shape
    bags = grad.shape[0]
    wide = opmath(out.dtype)
    total = out if wide is out.dtype else call.temporary(wide, out.shape)
    _filled(call, total, 0)
    frequency = occurrences(call, indices, rows) if scale_grad_by_freq and indices.numel != 0 else None
    k = call.kernel()
    target, given = k.update(total), k.read(grad, [bags, width])
    sizes = k.read(bag_size.narrow(0, 0, bags), [bags])
    often = k.read(frequency) if frequency is not None else None
    if mode == MAX:
        winners = k.read(maximum_indices, [bags, width])

        def give(j: AxisVar, b: AxisVar) -> None:
            row = AsIndex(convert(winners[b, j], int64), k.size(rows), "check")
            k.store(target, (row, j), convert(given[b, j], wide), combine="add", guard=sizes[b] > 0)

        _per_word(k, grad, width, give)
    elif indices.numel != 0:
        words, owners = k.read(indices), k.read(offset2bag, indices.shape)
        factors = k.read(per_sample_weights, indices.shape) if per_sample_weights is not None else None

        def share(j: AxisVar, p: AxisVar) -> None:
            row, bag = place(k, words, [p], rows), place(k, owners, [p], bags)
            value: Expr = convert(given[bag, j], wide)
            if mode == MEAN:
                value = value / convert(binary("max", sizes[bag], const(1, sizes.dtype)), wide)
            if factors is not None:
                value = value * convert(factors[p], wide)
            if often is not None:
                value = value / convert(often[row], wide)
            k.store(target, (row, j), value, combine="add", guard=_real(words, p, padding_idx))

        _per_word(k, indices, width, share)
    if total is not out:
        copy(call, out, total)


@lowering("aten::_embedding_bag_per_sample_weights_backward")
def per_sample_weights_backward(
    call: Call,
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int,
) -> None:
    """The product of each word's row with the gradient of its bag."""
    (out,) = call.outs
    bags, width = grad.shape
    wide = opmath(out.dtype)
    if offset2bag.numel == 0 and indices.numel != 0:  # the CPU's forward leaves it empty, to be found here
        offset2bag = _bag_of_each(call, indices, offsets, bags, call.temporary(int64, indices.shape))
    k = call.kernel()
    p = k.grid(indices.shape[0])
    words, owners = k.read(indices), k.read(offset2bag, indices.shape)
    table, given = k.read(weight, [weight.shape[0], width]), k.read(grad)
    row, bag = place(k, words, [p], weight.shape[0]), place(k, owners, [p], bags)
    total: Expr = k.reduce(width, lambda j: convert(table[row, j], wide) * convert(given[bag, j], wide))
    counts = _real(words, p, padding_idx)
    k.store(k.write(out, indices.shape), (p,), total if counts is None else Where(counts, total, const(0, wide)))
    k.launch()


@lowering("aten::embedding_renorm")
def embedding_renorm(call: Call, self: Tensor, indices: Tensor, max_norm: Number, norm_type: Number) -> None:
    """The rows that the words name, made no longer than a limit: all are read before one is written."""
    if not indices.dtype.is_integer:
        raise NoKernel("the CPU says what is wrong with these indices")
    out = start_from(call, self)
    call.pointwise = True
    if indices.numel == 0:
        return
    count, width = indices.numel, self.shape[1]
    words = dense(call, indices).view((count,), (1,))
    wide = opmath(self.dtype)
    shorter = call.temporary(wide, (count, width))
    of, op, root = norm_parts(norm_type)
    k = call.kernel()
    p = k.grid(count)
    table, scaled = k.read(self), k.write(shorter)
    row = place(k, k.read(words), [p], self.shape[0])
    total = k.reduce(
        width, lambda j: of(k, unary("abs", convert(table[row, j], wide))), op, 0.0 if op == "max" else None
    )
    norm, limit = k.let(root(k, total)), k.number(max_norm, wide)
    scale = k.let(Where(norm > limit, limit / (norm + 1e-7), const(1.0, wide)))
    with k.loop(width) as j:
        k.store(scaled, (p, j), convert(table[row, j], wide) * scale)
    k.launch()

    k = call.kernel("rows")
    target, source, at = k.update(out, [self.shape[0], width]), k.read(shorter), k.read(words)
    _per_word(k, words, width, lambda j, p: k.store(target, (place(k, at, [p], self.shape[0]), j), source[p, j]))
