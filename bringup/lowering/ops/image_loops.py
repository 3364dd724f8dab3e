"""Loops over images [… , space]: grids in memory order, padded elements, positions inside a plane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from bringup.ir.expr import AsIndex, Expr, Load
from bringup.ir.index import AxisVar, Index, IndexLike, Int
from bringup.ir.kernel import Buffer
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, Tensor, dense_strides
from bringup.lowering.elementwise import elementwise
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike, hint_of


def each(numbers: Sequence[int], dims: int) -> tuple[int, ...]:
    """One number per dimension; a single one stands for all. They shape the kernel: one that a graph leaves open is
    pinned down.

    >>> each([3], 2)
    (3, 3)
    """
    pinned = tuple(map(int, numbers))
    return pinned * dims if len(pinned) == 1 else pinned


def grid_by_memory(k: KernelBuilder, out: Tensor) -> tuple[AxisVar, ...]:
    """Grid axes over a tensor, the innermost in memory innermost. No guards: any order means the same."""
    order = sorted(range(out.ndim), key=lambda d: -abs(hint_of(out.strides[d])))
    axes = {d: k.grid(out.shape[d]) for d in order}
    return tuple(axes[d] for d in range(out.ndim))


def every(conditions: Sequence[Expr]) -> Expr | None:
    """All conditions at once; None of none.

    >>> every([]) is None
    True
    """
    joint: Expr | None = None
    for condition in conditions:
        joint = condition if joint is None else joint & condition
    return joint


def element(buffer: Buffer, place: Sequence[IndexLike], guards: Sequence[Expr] = (), other: Expr | None = None) -> Load:
    """An element where all guards hold, elsewhere ``other`` or 0."""
    load = buffer.at(*place)
    return load if not guards else Load(load.buffer, load.indices, load.type, every(guards), other)


def position(place: Sequence[Index], extents: Sequence[Index]) -> Index:
    """The position in a dense plane, as pooling indices count.

    >>> position([Int(1), Int(2)], [Int(4), Int(5)])
    Int(value=7)
    """
    total: Index = Int(0)
    for at, extent in zip(place, extents):
        total = total * extent + at
    return total


def place_of(value: Expr, extents: Sequence[Index]) -> list[Index]:
    """The place in a plane of a position that is data, checked; the inverse of ``position``."""
    count: Index = Int(1)
    for extent in extents:
        count = count * extent
    flat: Index = AsIndex(value, count)
    place: list[Index] = []
    for extent in reversed(extents[1:]):
        place.insert(0, flat % extent)
        flat = flat // extent
    return [flat, *place]


#: What a position of the source adds to the output: places inside the plane, and values. A generator may yield from
#: inside loops of its own.
Terms = Callable[[KernelBuilder, Sequence[AxisVar], Sequence[AxisVar]], Iterable[tuple[Sequence[Index], Expr]]]


def scatter_planes(call: Call, out: Tensor, dims: int, positions: Sequence[IntLike], terms: Terms) -> None:
    """Sums ``terms(kernel, plane, position)`` into planes of 0: planes run in parallel, the positions of one in order.

    So places may depend on data and meet, and the sums are the same on every run. Halves are summed up in float32.
    """
    lead = out.ndim - dims
    total = out if opmath(out.dtype) is out.dtype else call.temporary(opmath(out.dtype), out.shape)
    k = call.kernel()
    plane = tuple(k.grid(extent) for extent in out.shape[:lead])
    y = k.update(total)
    with ExitStack() as loops:
        place = [loops.enter_context(k.loop(extent)) for extent in out.shape[lead:]]
        k.store(y, (*plane, *place), 0)
    with ExitStack() as loops:
        u = [loops.enter_context(k.loop(extent, "sequential")) for extent in positions]
        for target, value in terms(k, plane, u):
            k.store(y, (*plane, *target), value, combine="add")
    k.launch()
    if total is not out:
        elementwise(call, [out], [total], lambda value: value, opmath(out.dtype))


def scatter_gradients(call: Call, grad: Tensor, indices: Tensor, dims: int) -> None:
    """Each gradient goes to the element of its plane whose position an index has: the largest of its window.

    Gathering them instead (each element asks all windows that may hold it) took 6.1 ms in ResNet-18, this takes 0.07.
    """
    (out,) = call.outs
    lead = out.ndim - dims
    shape = (*out.shape[:lead], *grad.shape[lead:])
    count: IntLike = 1
    for extent in out.shape[lead:]:
        count = count * extent
    flat = (*out.shape[:lead], count)
    whole = out.contiguous  # then a position needs no division

    def terms(k: KernelBuilder, plane: Sequence[AxisVar], u: Sequence[AxisVar]) -> list[tuple[Sequence[Index], Expr]]:
        given, places = k.read(grad, shape), k.read(indices, shape)
        extents = [k.size(extent, low=1) for extent in ([count] if whole else out.shape[lead:])]
        return [(place_of(places.at(*plane, *u), extents), convert(given.at(*plane, *u), opmath(out.dtype)))]

    target = out.view(flat, dense_strides(flat)) if whole else out
    scatter_planes(call, target, 1 if whole else dims, grad.shape[lead:], terms)
