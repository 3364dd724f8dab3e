"""Reductions as states: elements make a state, states merge, the last one makes the results.

fold(call, [x], dims, keepdim, Reduction(part=lambda piece: (piece.reduce(lambda *j: piece(*j)),), merge="add"))

Where rows are long, a first kernel makes the states of pieces of the rows and a second one merges them: all cores take
part, and sums lose less. The pieces follow from the sizes alone, so results do not depend on the number of cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bringup.ir.dtypes import DType
from bringup.ir.expr import Binary, Cast, Expr, IndexValue, Name, const
from bringup.ir.expr import Number as Literal
from bringup.ir.index import AxisVar, Index, IndexLike, as_index
from bringup.ir.kernel import Buffer
from bringup.lowering.builder import CombineLike, KernelBuilder, Values, convert, identity
from bringup.lowering.call import Call, Tensor, dense_strides
from bringup.lowering.elementwise import elementwise
from bringup.lowering.loops import LoopDim, in_memory_order, merged
from bringup.lowering.reduction import lines
from bringup.lowering.symbolic import IntLike, hint_of, product, single

#: Rows of this many elements are cut into pieces: along a contiguous axis (32 partial sums, 64 KiB of float32 a piece),
#: and along others (8 partial sums: shorter pieces, or a float32 sum of 40,000 rows loses 20 times as much as ATen's).
LONG, PIECE = 1 << 16, 1 << 14
LONG_ACROSS, PIECE_ACROSS = 1 << 13, 1 << 10


@dataclass(frozen=True)
class Elements:
    """Elements to be folded: ``piece(*j)`` is one of the first input, ``piece.of(n, *j)`` one of input n."""

    k: KernelBuilder
    inputs: tuple[Buffer, ...]
    outer: tuple[AxisVar, ...]
    extents: tuple[IntLike, ...]
    #: Strides in logical order, and the logical position of the first element: for ops that ask for positions.
    steps: tuple[IntLike, ...]
    first: Index
    #: How many elements there are.
    count: IntLike
    lanes: int

    def __call__(self, *j: IndexLike) -> Expr:
        """An element of the first input."""
        return self.inputs[0].at(*self.outer, *j)

    def of(self, n: int, *j: IndexLike) -> Expr:
        """An element of input n."""
        return self.inputs[n].at(*self.outer, *j)

    def position(self, *j: AxisVar) -> Expr:
        """The logical number of an element among those that are reduced together."""
        return IndexValue(sum((axis * self.k.size(step) for axis, step in zip(j, self.steps)), self.first))

    def number(self, dtype: DType) -> Expr:
        """How many elements there are, as a value."""
        return Cast(IndexValue(self.k.size(self.count)), dtype)

    def reduce(
        self, body: Callable[..., Values], combine: CombineLike = "add", init: Expr | Literal | None = None
    ) -> Name:
        """One value folded over the elements."""
        return self.k.reduce(self.extents, body, combine, init, self.lanes)


@dataclass(frozen=True)
class Reduction:
    """A reduction: the state of a piece, how two states merge, the state of no elements, and the results.

    ``inits`` may be left out where ``merge`` is the name of an op; ``finish`` where the states are the results.
    """

    part: Callable[[Elements], tuple[Expr, ...]]
    merge: CombineLike
    inits: Sequence[Literal | None] | None = None
    finish: Callable[[KernelBuilder, tuple[Expr, ...]], tuple[Expr, ...]] = lambda k, states: states
    #: The part asks for positions.
    positions: bool = False


def fold(
    call: Call,
    inputs: Sequence[Tensor],
    dims: Sequence[int],
    keepdim: bool,
    definition: Reduction,
    outs: Sequence[Tensor] | None = None,
) -> None:
    """Launches a reduction of inputs of one shape over some dimensions into ``outs`` (those of the call)."""
    results = call.outs if outs is None else outs
    x = inputs[0]
    keep = [d for d in range(x.ndim) if d not in dims]
    views = [o.permute(keep) if keepdim else o for o in results]
    kept = merged(
        in_memory_order(
            [
                (x.shape[d], (*(t.strides[d] for t in inputs), *(v.strides[n] for v in views)))
                for n, d in enumerate(keep)
            ]
        )
    )
    count = len(inputs)
    outer: list[LoopDim] = [(extent, strides[:count]) for extent, strides in kept]
    targets = [v.view([e for e, _ in kept], [s[count + n] for _, s in kept]) for n, v in enumerate(views)]
    folded = _folded(inputs, dims, definition.positions)
    if product(extent for extent, _ in folded) >= (LONG if folded[-1][1][0] == 1 else LONG_ACROSS):
        _fold_pieces(call, inputs, outer, folded, targets, definition)
        return
    k = call.kernel()
    axes = tuple(k.grid(extent) for extent, _ in outer)
    buffers = [k.write(target) for target in targets]
    states = definition.part(_piece(k, inputs, axes, outer, folded))
    _finish(k, axes, buffers, definition, states)


def _folded(inputs: Sequence[Tensor], dims: Sequence[int], positions: bool) -> list[LoopDim]:
    """The loops over what is reduced; the last stride of each is the one in logical order (0 if not asked for)."""
    x = inputs[0]
    logical = dense_strides([x.shape[d] for d in dims]) if positions else [0] * len(dims)
    loops = merged(
        in_memory_order(
            [(x.shape[d], (*(t.strides[d] for t in inputs), step)) for d, step in zip(dims, logical)],
        )
    )
    if not loops:
        return [(1, (*(1 for _ in inputs), 0))]
    # Lanes follow the innermost axis: a short one would leave most of them idle.
    innermost = max(range(len(loops)), key=lambda n: (hint_of(loops[n][0]) >= 32, n))
    loops.append(loops.pop(innermost))
    return loops


def _piece(
    k: KernelBuilder,
    inputs: Sequence[Tensor],
    axes: tuple[AxisVar, ...],
    outer: Sequence[LoopDim],
    folded: Sequence[LoopDim],
    first: Index | None = None,
    offset: Sequence[IntLike] | None = None,
) -> Elements:
    loops = [*outer, *folded]
    shape = [extent for extent, _ in loops]
    moved = offset or [0] * len(inputs)
    sources = tuple(k.read(t.view(shape, [s[n] for _, s in loops], moved[n])) for n, t in enumerate(inputs))
    extents = tuple(extent for extent, _ in folded)
    steps = tuple(strides[-1] for _, strides in folded)
    lanes = lanes_along(folded[-1][1][0], product(extents))
    return Elements(k, sources, axes, extents, steps, first or as_index(0), product(extents), lanes)


def lanes_along(stride: IntLike, extent: IntLike) -> int:
    """How many partial results a fold along an axis keeps: vectors of them where the axis is contiguous; a few where
    the vectors lie across, one for each element (32 vectors would not fit the registers), as of a single element."""
    if single(extent):
        return 1
    return 32 if stride == 1 else 8


def _finish(
    k: KernelBuilder,
    axes: Sequence[AxisVar],
    buffers: Sequence[Buffer],
    definition: Reduction,
    states: tuple[Expr, ...],
) -> None:
    for buffer, value in zip(buffers, definition.finish(k, states)):
        k.store(buffer, axes, value)
    k.launch()


def _fold_pieces(
    call: Call,
    inputs: Sequence[Tensor],
    outer: list[LoopDim],
    folded: list[LoopDim],
    targets: Sequence[Tensor],
    definition: Reduction,
) -> None:
    """Pieces of the outermost folded loop, then their states, then what the pieces leave over."""
    (extent, strides), inner = folded[0], folded[1:]
    size = _piece_size(extent, strides[0], inner)
    pieces = extent // size
    # What is kept stays innermost: where it lies side by side in memory, vectors run along it.
    block: LoopDim = (pieces, tuple(stride * size for stride in strides))
    k = call.kernel()
    axes = tuple(k.grid(e) for e, _ in [block, *outer])
    cut = [*([(size, strides)] if size != 1 else []), *inner]
    piece = _piece(k, inputs, axes, [block, *outer], cut, first=axes[0] * k.size(block[1][-1]))
    states = definition.part(piece)
    scratch = [call.temporary(state.dtype, [pieces, *(e for e, _ in outer)]) for state in states]
    for memory, state in zip(scratch, states):
        k.store(k.write(memory), axes, state)
    k.launch()

    k = call.kernel()
    rows = tuple(k.grid(e) for e, _ in outer)
    buffers = [k.write(target) for target in targets]
    parts = [k.read(memory) for memory in scratch]
    inits = _inits(definition, [part.dtype for part in parts])
    merge = definition.merge
    together: tuple[Expr, ...] = k.reduce_many(pieces, lambda b: tuple(p.at(b, *rows) for p in parts), merge, inits)
    if size != 1:
        done = pieces * size
        rest: list[LoopDim] = [(extent - done, strides), *inner]
        first = k.size(strides[-1] * done)
        tail = _piece(k, inputs, rows, outer, rest, first, [stride * done for stride in strides[:-1]])
        together = _merged(k, merge, together, definition.part(tail))
    _finish(k, rows, buffers, definition, together)


def _piece_size(extent: IntLike, stride: IntLike, inner: Sequence[LoopDim]) -> int:
    """Steps of the outermost folded loop that make a piece."""
    if not inner:
        return PIECE if stride == 1 else PIECE_ACROSS
    below = product(e for e, _ in inner)
    return next((size for size in (1024, 128, 16) if below * size <= 2 * PIECE and extent >= 2 * size), 1)


def _inits(definition: Reduction, dtypes: Sequence[DType]) -> list[Expr | Literal | None]:
    if definition.inits is not None:
        return list(definition.inits)
    assert isinstance(definition.merge, str), "a merge function needs the state of no elements"
    return [const(identity(definition.merge, dtype), dtype) for dtype in dtypes]


def _merged(k: KernelBuilder, merge: CombineLike, left: tuple[Expr, ...], right: tuple[Expr, ...]) -> tuple[Expr, ...]:
    if isinstance(merge, str):
        return tuple(Binary(merge, a, b) for a, b in zip(left, right))
    return merge(tuple(k.let(a) for a in left), tuple(k.let(b) for b in right))


def by_line(
    call: Call,
    inputs: Sequence[Tensor],
    dim: int,
    wide: DType,
    definition: Reduction,
    formula: Callable[[tuple[Expr, ...], tuple[Expr, ...]], Expr],
) -> None:
    """Launches ``out[…, j] = formula(values at j, states of the line)``: softmax and the like.

    The values are the inputs' in the wide type, in which the states are, too. Long lines are cut.
    """
    assert definition.inits is not None
    x = inputs[0]
    dim = dim % x.ndim if x.ndim else 0
    if x.ndim and x.shape[dim] >= LONG:
        shape = [1 if d == dim else extent for d, extent in enumerate(x.shape)]
        states = [call.temporary(wide, shape) for _ in definition.inits]
        fold(call, inputs, [dim], True, definition, states)
        count = len(inputs)
        elementwise(call, call.outs, [*inputs, *states], lambda *v: formula(v[:count], v[count:]), wide)
        return
    k = call.kernel()
    i, extent, sources, (y,) = lines(k, dim, inputs, call.outs)
    lanes = lanes_along(x.strides[dim], extent) if x.ndim else 1
    known = definition.part(Elements(k, tuple(sources), i, (extent,), (0,), as_index(0), extent, lanes))
    named = tuple(value if isinstance(value, Name) else k.let(value) for value in known)
    with k.loop(extent) as j:
        k.store(y, (*i, j), formula(tuple(convert(source.at(*i, j), wide) for source in sources), named))
    k.launch()
