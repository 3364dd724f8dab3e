"""The loops of reductions: kept dimensions on the grid, reduced ones folded, in memory order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bringup.ir.expr import Expr
from bringup.ir.index import AxisVar, Index, IndexLike
from bringup.ir.kernel import Buffer
from bringup.lowering.builder import KernelBuilder
from bringup.lowering.call import Tensor
from bringup.lowering.loops import in_memory_order, merged
from bringup.lowering.symbolic import IntLike, hint_of, product, single


def normalized_dims(dims: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """The dimensions to reduce, counted from 0, in order; None or empty means all.

    >>> normalized_dims([-1], 3), normalized_dims(None, 2)
    ((2,), (0, 1))
    """
    if dims is None or dims == [] or dims == () or not ndim:
        return tuple(range(ndim))
    given = [dims] if isinstance(dims, int) else dims
    return tuple(sorted({d % ndim for d in given}))


def checked_dim(dim: int, ndim: int) -> int:
    """A dimension counted from 0, for ops whose meta kernel does not check it; a scalar has one dimension.

    >>> checked_dim(-1, 3)
    2
    """
    extent = max(ndim, 1)
    if not -extent <= dim < extent:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-extent}, {extent - 1}], but got {dim})"
        )
    return dim % extent


@dataclass(frozen=True)
class Rows:
    """A tensor as rows to be reduced: grid axes over what is kept, extents of what is folded.

    ``at(*j)`` are the indices of an element of the input, ``place`` those of the output.
    """

    x: Buffer
    kept: tuple[AxisVar, ...]
    folded: tuple[IntLike, ...]
    #: How many elements one result is made of.
    count: IntLike

    def __call__(self, *j: IndexLike) -> Expr:
        """The element of this row at a position of the folded axes."""
        return self.x.at(*self.kept, *j)


def rows(
    k: KernelBuilder, x: Tensor, dims: Sequence[int], outs: Sequence[Tensor], keepdim: bool
) -> tuple[Rows, list[Buffer]]:
    """Opens the grid of a reduction: the rows of x, and the outputs as buffers that ``kept`` indexes.

    Outputs have x's kept dimensions (and 1s for the folded ones with ``keepdim``).
    """
    keep = [d for d in range(x.ndim) if d not in dims]
    views = [o.permute(keep) if keepdim else o for o in outs]
    kept_dims = [(x.shape[d], (x.strides[d], *(v.strides[n] for v in views))) for n, d in enumerate(keep)]
    kept = merged(in_memory_order([dim for dim in kept_dims if not single(dim[0])]))
    folded = folded_loops(x, dims)
    axes = tuple(k.grid(extent) for extent, _ in kept)
    shape = [extent for extent, _ in kept]
    source = x.view([*shape, *(e for e, _ in folded)], [*(s[0] for _, s in kept), *(s for _, s in folded)])
    buffers = [k.write(v.view(shape, [s[n + 1] for _, s in kept])) for n, v in enumerate(views)]
    count = product(x.shape[d] for d in dims)
    return Rows(k.read(source), axes, tuple(e for e, _ in folded), count), buffers


def lines(
    k: KernelBuilder, dim: int, inputs: Sequence[Tensor], outs: Sequence[Tensor]
) -> tuple[tuple[AxisVar, ...], IntLike, list[Buffer], list[Buffer]]:
    """Opens a grid over all dimensions but one, for ops that read and write along it (softmax, cumsum, norms).

    All tensors have the same shape. Gives the grid's axes, the extent of the line, and input and output buffers that
    ``(*axes, j)`` indexes. A 0-dim tensor is a line of 1.
    """
    tensors = [t if t.ndim else t.view((1,), (1,)) for t in (*inputs, *outs)]
    others = [d for d in range(tensors[0].ndim) if d != dim]
    dims = [(tensors[0].shape[d], tuple(t.strides[d] for t in tensors)) for d in others]
    loops = merged(in_memory_order([one for one in dims if not single(one[0])]))
    axes = tuple(k.grid(extent) for extent, _ in loops)
    extent = tensors[0].shape[dim]
    shape = [*(e for e, _ in loops), extent]
    views = [t.view(shape, [*(s[n] for _, s in loops), t.strides[dim]]) for n, t in enumerate(tensors)]
    return axes, extent, [k.read(v) for v in views[: len(inputs)]], [k.write(v) for v in views[len(inputs) :]]


def folded_loops(x: Tensor, dims: Sequence[int]) -> list[tuple[IntLike, IntLike]]:
    """The folded dimensions of x, merged, the longest contiguous one innermost; at least one loop."""
    dims_of_x = [(x.shape[d], (x.strides[d],)) for d in dims]
    loops = merged(in_memory_order([dim for dim in dims_of_x if not single(dim[0])]))
    if not loops:
        return [(1, 1)]
    if len(loops) > 1:
        # Lanes follow the innermost axis: a short one would leave most of them idle.
        innermost = max(range(len(loops)), key=lambda n: (hint_of(loops[n][0]) >= 32, n))
        loops.append(loops.pop(innermost))
    return [(extent, strides[0]) for extent, strides in loops]


def linear(folded: Sequence[IntLike], j: Sequence[Index], k: KernelBuilder) -> Index:
    """The position among all folded elements, as argmax wants it (only for axes in logical order)."""
    total: Index = j[0]
    for extent, axis in zip(folded[1:], j[1:]):
        total = total * k.size(extent) + axis
    return total
