"""Reading by index: gather, index_select, index, take, and their relatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from bringup.ir.dtypes import boolean, int32, int64
from bringup.ir.expr import AsIndex, Expr, IndexValue, binary
from bringup.ir.index import AxisVar, Index
from bringup.ir.kernel import Buffer
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, NoKernel, Tensor
from bringup.lowering.reduction import checked_dim
from bringup.lowering.registry import lowering, new_output
from bringup.lowering.scalar_types import BY_CODE
from bringup.lowering.symbolic import IntLike

_T = TypeVar("_T")


def at_least_1d(tensor: Tensor) -> Tensor:
    """A 0-dim tensor as a line of 1."""
    return tensor if tensor.ndim else tensor.view((1,), (1,))


def place(k: KernelBuilder, index: Buffer, at: Sequence[Index], extent: IntLike, wrap: bool = False) -> AsIndex:
    """An element of an index tensor as a position that is checked."""
    value = convert(index.at(*at), int64)
    return AsIndex(value, k.size(extent), "wrap" if wrap else "check")


@lowering("aten::gather")
def gather(call: Call, self: Tensor, dim: int, index: Tensor, sparse_grad: bool) -> None:
    """y[i, j] = x[index[i, j], j]."""
    call.apart = True
    x, index, y = (at_least_1d(t) for t in (self, index, call.outs[0]))
    dim %= x.ndim
    k = call.kernel()
    i = [k.grid(extent) for extent in index.shape]
    # In the other dimensions the index may be smaller than x: the loops stay inside what it names.
    source = k.read(x, [x.shape[d] if d == dim else index.shape[d] for d in range(x.ndim)])
    position = place(k, k.read(index), i, x.shape[dim])
    k.store(k.write(y, index.shape), i, source.at(*(position if d == dim else i[d] for d in range(x.ndim))))
    k.launch()


@lowering("aten::index_select")
def index_select(call: Call, self: Tensor, dim: int, index: Tensor) -> None:
    """y[i, j] = x[index[i], j]."""
    if index.ndim > 1:  # the meta kernel takes it
        raise IndexError("index_select(): Index is supposed to be a vector")
    if index.dtype not in (int32, int64):
        raise RuntimeError("index_select(): Expected dtype int32 or int64 for index")
    call.apart = True
    x, index, y = (at_least_1d(t) for t in (self, index, call.outs[0]))
    dim = checked_dim(dim, self.ndim)
    k = call.kernel()
    shape = [index.shape[0] if d == dim else x.shape[d] for d in range(x.ndim)]
    i = [k.grid(extent) for extent in shape]
    position = place(k, k.read(index), [i[dim]], x.shape[dim])
    source = k.read(x).at(*(position if d == dim else i[d] for d in range(x.ndim)))
    k.store(k.write(y, shape), i, source)
    k.launch()


def _embedding_outputs(weight: Any, indices: Any, *_: Any) -> list[Any]:
    """As the CPU does; PyTorch's meta kernel is Python, and its complaints are AssertionErrors."""
    if len(weight[3]) != 2:
        raise RuntimeError("'weight' must be 2-D")
    if BY_CODE.get(indices[2]) not in (int32, int64):
        found = BY_CODE[indices[2]].name if indices[2] in BY_CODE else f"scalar type {indices[2]}"
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; "
            f"but got {found} instead (while checking arguments for embedding)"
        )
    return [new_output(weight[2], (*indices[3], weight[3][1]))]


@lowering("aten::embedding", outputs=_embedding_outputs)
def embedding(
    call: Call, weight: Tensor, indices: Tensor, padding_idx: int, scale_grad_by_freq: bool, sparse: bool
) -> None:
    """Rows of a table."""
    k = call.kernel()
    i = [k.grid(extent) for extent in indices.shape]
    j = k.grid(weight.shape[1])
    row = place(k, k.read(indices), i, weight.shape[0])
    k.store(k.write(call.outs[0], (*indices.shape, weight.shape[1])), (*i, j), k.read(weight)[row, j])
    k.launch()


@lowering("aten::take")
def take(call: Call, self: Tensor, index: Tensor) -> None:
    """Elements of the flattened tensor."""
    call.apart = True
    k = call.kernel()
    i = [k.grid(extent) for extent in index.shape]
    position = place(k, k.read(index), i, self.numel, wrap=True)
    if self.contiguous:
        value = k.read(self.view((self.numel,), (1,))).at(position)
    else:  # in values, not indices: that a dynamic size is not 0 is not proved
        rest: Expr = k.let(IndexValue(position))
        places: list[Index] = []
        for size in (k.size(extent) for extent in reversed(self.shape)):
            places.insert(0, AsIndex(binary("remainder", rest, IndexValue(size)), size))
            rest = binary("floordiv", rest, IndexValue(size))
        value = k.read(self).at(*places)
    k.store(k.write(call.outs[0], index.shape), i, value)
    k.launch()


class IndexedDims:
    """``x[indices]`` taken apart: the loops over the broadcast indices and over the dimensions that are kept whole."""

    def __init__(self, x: Tensor, indices: Sequence[Tensor | None]) -> None:
        given = [index for index in indices if index is not None]
        if not given:
            raise NoKernel("no index says what to take")
        if any(index.dtype is boolean or index.dtype.name == "uint8" for index in given):
            raise NoKernel("a mask as an index has as many elements as it says: see nonzero")
        self.dims = [d for d, index in enumerate(indices) if index is not None]
        self.kept = [d for d in range(x.ndim) if d not in self.dims]
        self.shape = broadcast_shape([index.shape for index in given])
        self.indices = [index.expand(self.shape) for index in given]
        adjacent = self.dims == list(range(self.dims[0], self.dims[0] + len(self.dims)))
        #: Where the indices' dimensions stand in the result.
        self.front = self.dims[0] if adjacent else 0

    def result_order(self, at: Sequence[_T], kept: Sequence[_T]) -> tuple[_T, ...]:
        """What belongs to both kinds of loops, in the order of the result's dimensions."""
        return (*kept[: self.front], *at, *kept[self.front :])

    def positions(
        self, k: KernelBuilder, x: Tensor, at: Sequence[AxisVar], kept: Sequence[AxisVar]
    ) -> tuple[Index, ...]:
        """The indices of x; negative ones count from the end."""
        places: dict[int, Index] = dict(zip(self.kept, kept))
        for d, index in zip(self.dims, self.indices):
            places[d] = place(k, k.read(index), at, x.shape[d], wrap=True)
        return tuple(places[d] for d in range(x.ndim))


def broadcast_shape(shapes: Sequence[tuple[IntLike, ...]]) -> tuple[IntLike, ...]:
    """The common shape; guards say which tensor gives each dimension.

    >>> broadcast_shape([(3, 1), (1, 4), (4,)])
    (3, 4)
    """
    ndim = max(len(shape) for shape in shapes)
    result: list[IntLike] = []
    for d in range(ndim):
        extents = [shape[d - ndim + len(shape)] for shape in shapes if d - ndim + len(shape) >= 0]
        result.append(next((extent for extent in extents if extent != 1), 1))
    return tuple(result)


@lowering("aten::index.Tensor")
def index(call: Call, self: Tensor, indices: Sequence[Tensor | None]) -> None:
    """Advanced indexing with integers."""
    call.apart = True
    plan = IndexedDims(self, indices)
    k = call.kernel()
    shape = plan.result_order(plan.shape, [self.shape[d] for d in plan.kept])
    i = [k.grid(extent) for extent in shape]
    front, count = plan.front, len(plan.shape)
    at, kept = i[front : front + count], [*i[:front], *i[front + count :]]
    target = k.write(call.outs[0], shape)
    k.store(target, i, k.read(self).at(*plan.positions(k, self, at, kept)))
    k.launch()
