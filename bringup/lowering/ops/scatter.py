"""Writing by index: scatter, index_add, index_put, embedding backward.

Elements that meet are combined in the order of the index, always: dimensions that the index does not decide are
parallel, the decided one is a sequential loop, so every destination belongs to one grid point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from bringup.ir.dtypes import DType, int64
from bringup.ir.expr import AsIndex, Binary, Expr, Where, const
from bringup.ir.index import AxisVar, Index
from bringup.lowering.builder import KernelBuilder, convert, identity
from bringup.lowering.call import Call, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.ops.indexing import IndexedDims, at_least_1d, place
from bringup.lowering.ops.movement import copy, dense
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike, hint_of

_COMBINES = {"add": "add", "sum": "add", "multiply": "mul", "prod": "mul", "amax": "max", "amin": "min"}


def start_from(call: Call, self: Tensor) -> Tensor:
    """The result, filled with what it starts from."""
    out = call.outs[0]
    call.apart = out.memory == self.memory  # in place: an index or source that overlaps it is refused
    if not call.apart:
        copy(call, out, self)
    return out


class _Destinations:
    """A kernel whose grid points own a line of the result each, so that what meets in a place is combined in order.

    ``extents``: how far the other dimensions go, all of the result or only as far as the index.
    """

    def __init__(self, call: Call, out: Tensor, dim: int, index: Tensor, extents: Sequence[IntLike]) -> None:
        self.k, self.dim, self.out = call.kernel(), dim % out.ndim, out
        self.grid: dict[int, Index] = {d: self.k.grid(extents[d]) for d in range(out.ndim) if d != self.dim}
        self.target = self.k.update(out, [out.shape[d] if d == self.dim else extents[d] for d in range(out.ndim)])
        self.positions = self.k.read(index)

    def at(self, along: Index) -> list[Index]:
        """The place of this grid point, with an index along the dimension that is written by index."""
        return [along if d == self.dim else self.grid[d] for d in range(self.out.ndim)]

    def send(
        self,
        count: IntLike,
        index_at: Callable[[AxisVar], list[Index]],
        value: Callable[[list[Index]], Expr],
        combine: str | None,
    ) -> None:
        """Stores value(j) where the index says, for each j in turn, and launches."""
        with self.k.loop(count, "sequential") as j:
            position = place(self.k, self.positions, index_at(j), self.out.shape[self.dim])
            self.k.store(self.target, self.at(position), value(self.at(j)), combine=combine)
        self.k.launch()


def scatter_into(
    call: Call,
    out: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor | Number,
    combine: str | None,
) -> None:
    """out[index[i, j], j] = source[i, j], or combined with it, in the order of i."""
    out, index = at_least_1d(out), at_least_1d(index)
    if index.numel == 0:
        return
    to = _Destinations(call, out, dim, index, index.shape)
    to.send(index.shape[to.dim], to.at, _value(to.k, out, source, index.shape), combine)


def _value(
    k: KernelBuilder, out: Tensor, source: Tensor | Number, shape: Sequence[IntLike]
) -> Callable[[list[Index]], Expr]:
    """What a place gets: an element of the source, or the number."""
    if isinstance(source, Number):
        number = k.number(source, out.dtype)
        return lambda here: number
    values = k.read(at_least_1d(source), shape)
    return lambda here: values.at(*here)


@lowering("aten::scatter.src", "aten::scatter.value", "aten::scatter.reduce", "aten::scatter.value_reduce")
def scatter(
    call: Call, self: Tensor, dim: int, index: Tensor, source: Tensor | Number, reduce: str | None = None
) -> None:
    """The last of several values stays, or all are added or multiplied, as in the old form."""
    combine = None if reduce is None else _COMBINES[reduce]
    scatter_into(call, start_from(call, self), dim, index, source, combine)


@lowering("aten::scatter_add")
def scatter_add(call: Call, self: Tensor, dim: int, index: Tensor, src: Tensor) -> None:
    """Sums of what the index sends to the same place; halves add up in float32, as on the CPU."""
    wide = opmath(self.dtype)
    out = start_from(call, self)
    if wide is out.dtype or index.numel == 0:
        scatter_into(call, out, dim, index, src, "add")
        return
    total = call.temporary(wide, out.shape)
    copy(call, total, out)
    scatter_into(call, total, dim, index, src, "add")
    copy(call, out, total)


def neutral(out: Tensor, reduce: str) -> bool | int | float:
    """What a reduction starts from where the old value does not count."""
    return identity("add" if reduce == "mean" else _COMBINES[reduce], out.dtype)


@lowering("aten::scatter_reduce.two")
def scatter_reduce(
    call: Call, self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool
) -> None:
    """sum, prod, mean, amax, amin of what the index sends to the same place."""
    out = start_from(call, self)
    indexed_reduce(
        call, out, reduce, include_self, lambda to, value, op: scatter_into(call, to, dim, index, value or src, op)
    )


def indexed_reduce(
    call: Call,
    out: Tensor,
    reduce: str,
    include_self: bool,
    send: Callable[[Tensor, Tensor | None, str | None], None],
) -> None:
    """The steps around a reduction by index: reset what is hit, combine, divide for the mean.

    ``send(target, value, combine)`` scatters a value (None: the source itself).
    """
    if not include_self:
        send(out, filled(call, neutral(out, reduce), out), None)
    if reduce == "mean":
        counts = call.temporary(int64, out.shape)
        start = 1 if include_self else 0
        elementwise(call, [counts], [], lambda: const(start, int64), [], "count")
        send(counts, filled(call, 1, counts), "add")
    send(out, None, "add" if reduce == "mean" else _COMBINES[reduce])
    if reduce == "mean":
        op = "div" if out.dtype.is_float else "floordiv"
        elementwise(
            call,
            [out],
            [out, counts],
            lambda x, n: Binary(op, x, Where(n > 0, convert(n, x.dtype), const(1, x.dtype))),
            [None, None],
            "mean",
        )


def filled(call: Call, number: bool | int | float, like: Tensor) -> Tensor:
    """One number as a tensor that broadcasts: a temporary of a single element."""
    one = call.temporary(like.dtype, ())
    elementwise(call, [one], [], lambda: const(number, like.dtype), [], "fill")
    return one.view([1] * like.ndim, [0] * like.ndim)


def _slices_into(
    call: Call,
    out: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor | Number,
    combine: str | None,
    alpha: Number | None = None,
) -> None:
    """out[index[j], …] = source[j, …] × alpha, or combined with it: whole slices, in the order of j."""
    out, index = at_least_1d(out), at_least_1d(index)
    if index.numel == 0:
        return
    to = _Destinations(call, out, dim, index, out.shape)
    shape = [index.shape[0] if d == to.dim else out.shape[d] for d in range(out.ndim)]
    element = _value(to.k, out, source, shape)

    def value(here: list[Index]) -> Expr:
        x = element(here)
        return x if alpha is None or alpha.equals(1) else x * to.k.number(alpha, x.dtype)

    to.send(index.shape[0], lambda j: [j], value, combine)


@lowering("aten::index_add")
def index_add(call: Call, self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Number) -> None:
    """Slices added to the slices that the index names."""
    _slices_into(call, start_from(call, self), dim, index, source, "add", alpha)


@lowering("aten::index_copy")
def index_copy(call: Call, self: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    """Slices put in the places that the index names."""
    _slices_into(call, start_from(call, self), dim, index, source, None)


@lowering("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor")
def index_fill(call: Call, self: Tensor, dim: int, index: Tensor, value: Number | Tensor) -> None:
    """One number in the slices that the index names."""
    if index.dtype is not int64:  # the meta kernel takes it
        raise IndexError("index_fill_(): Expected dtype int64 for index.")
    if index.ndim > 1:
        raise RuntimeError("Index has to be a vector/scalar")
    out = start_from(call, self)
    if isinstance(value, Tensor):
        value = value.view([1] * max(out.ndim, 1), [0] * max(out.ndim, 1))
    _slices_into(call, out, dim, index, value, None)


@lowering("aten::index_reduce")
def index_reduce(
    call: Call, self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool
) -> None:
    """prod, mean, amax, amin of the slices that the index sends to the same place."""

    def send(target: Tensor, value: Tensor | None, combine: str | None) -> None:
        _slices_into(call, target, dim, index, source if value is None else value, combine)

    indexed_reduce(call, start_from(call, self), reduce, include_self, send)


def _broadcast(values: Tensor, shape: Sequence[IntLike]) -> Tensor:
    """The values at every place; PyTorch's meta kernel does not ask whether they fit."""
    fits = values.ndim <= len(shape)
    for mine, wanted in zip(reversed(values.shape), reversed(shape)):
        fits = fits and (mine == wanted or mine == 1)
    if not fits:
        given, result = ([hint_of(extent) for extent in extents] for extents in (values.shape, shape))
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {given} cannot be broadcast to indexing result of shape {result}"
        )
    return values.expand(shape)


@lowering("aten::_index_put_impl", "aten::index_put")
def index_put(
    call: Call,
    self: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor | Number,
    accumulate: bool,
    unsafe: bool = False,
) -> None:
    """x[indices] = values, or += with duplicates counted: the kept dimensions are parallel."""
    if values.dtype is not self.dtype:  # the meta kernel does not ask
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, "
            f"got {self.dtype} for the destination and {values.dtype} for the source."
        )
    plan = IndexedDims(self, indices)
    out = start_from(call, self)
    k = call.kernel()
    kept = [k.grid(out.shape[d]) for d in plan.kept]
    shape = plan.result_order(plan.shape, [out.shape[d] for d in plan.kept])
    target = k.update(out)
    if isinstance(values, Tensor):
        values = _broadcast(values, shape)
    value = _value(k, out, values, shape)
    positions = [(k.read(index), d) for d, index in zip(plan.dims, plan.indices)]
    with ExitStack() as loops:
        at = [loops.enter_context(k.loop(extent, "sequential")) for extent in plan.shape]
        places: dict[int, Index] = dict(zip(plan.kept, kept))
        for buffer, d in positions:
            places[d] = place(k, buffer, at, out.shape[d], wrap=True)
        here: list[Index] = list(plan.result_order(at, kept))
        k.store(target, [places[d] for d in range(out.ndim)], value(here), combine="add" if accumulate else None)
    k.launch()


@lowering("aten::put")
def put(call: Call, self: Tensor, index: Tensor, source: Tensor, accumulate: bool) -> None:
    """Elements of the flattened tensor, in order."""
    if index.dtype is not int64:
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {index.dtype}")
    if source.dtype is not self.dtype:
        raise RuntimeError(
            "put_(): self and source expected to have the same dtype, "
            f"but got self.dtype = {self.dtype} and source.dtype = {source.dtype}"
        )
    if source.numel != index.numel:
        raise IndexError("put_(): Expected source and index to have the same number of elements")
    out = start_from(call, self)
    if index.numel == 0:
        return
    index, source, line = dense(call, index), dense(call, source), dense(call, out)
    k = call.kernel()
    count = index.numel
    target = k.update(line.view((out.numel,), (1,)))
    positions, values = k.read(index.view((count,), (1,))), k.read(source.view((count,), (1,)))
    with k.loop(count, "sequential") as j:
        position = AsIndex(convert(positions[j], int64), k.size(out.numel), "wrap")
        k.store(target, [position], values[j], combine="add" if accumulate else None)
    k.launch()
    if line is not out:
        copy(call, out, line)


def occurrences(call: Call, words: Tensor, rows: IntLike) -> Tensor:
    """How often each row of a table is named."""
    counts = call.temporary(int64, (rows,))
    elementwise(call, [counts], [], lambda: const(0, int64), [], "zero")
    scatter_into(call, counts, 0, words, filled(call, 1, counts), "add")
    return counts


@lowering("aten::embedding_dense_backward")
def embedding_dense_backward(
    call: Call, grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> None:
    """Rows of gradients summed per word; halves add up in float32, in the order of the words."""
    out = call.outs[0]
    wide: DType = opmath(out.dtype)
    count, width = indices.numel, out.shape[1]
    total = out if wide is out.dtype or count == 0 else call.temporary(wide, out.shape)
    elementwise(call, [total], [], lambda: const(0, total.dtype), [], "zero")
    if count == 0:
        return
    words = dense(call, indices).view((count,), (1,))
    grads = dense(call, grad_output).view((count, width), (width, 1))
    frequency = occurrences(call, words, out.shape[0]) if scale_grad_by_freq else None
    k = call.kernel("embedding_backward")
    j = k.grid(width)
    target, rows, x = k.update(total), k.read(words), k.read(grads)
    counts = k.read(frequency) if frequency is not None else None
    with k.loop(count, "sequential") as p:
        row = place(k, rows, [p], out.shape[0])
        value = convert(x[p, j], wide)
        if counts is not None:
            value = value / convert(counts[row], wide)
        real = Binary("ne", convert(rows[p], int64), const(padding_idx, int64)) if padding_idx >= 0 else None
        k.store(target, [row, j], value, combine="add", guard=real)
    k.launch()
    if total is not out:
        copy(call, out, total)
