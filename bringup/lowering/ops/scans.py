"""Running sums, products, extrema and logsumexp along a dimension.

Long lines are cut into pieces, as reductions are: the states of the pieces, the states before each piece, the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bringup.ir.dtypes import DType, float32, float64, int64
from bringup.ir.expr import Binary, Expr, IndexValue, Where, binary, const, unary
from bringup.ir.expr import Number as Literal
from bringup.ir.index import AxisVar, Index
from bringup.ir.kernel import Buffer
from bringup.lowering.builder import CombineLike, KernelBuilder, convert, identity
from bringup.lowering.call import Call, Tensor
from bringup.lowering.loops import in_memory_order, merged
from bringup.lowering.reduction import checked_dim, lines
from bringup.lowering.registry import Lowering, lowering
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike

States = tuple[Expr, ...]
#: Lines of this length are cut into pieces.
LONG, PIECE = 1 << 16, 1 << 13


@dataclass(frozen=True)
class Running:
    """A scan: the type of the values, how states combine (left before right), and the state before the first."""

    wide: DType
    combine: CombineLike
    inits: Sequence[Literal | None]
    #: The state has the position of its value, too.
    positions: bool = False

    def state(self, x: Expr, position: Index) -> States:
        """The state of one element."""
        value = convert(x, self.wide)
        return (value, IndexValue(position)) if self.positions else (value,)

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """The types of the state."""
        return (self.wide, int64) if self.positions else (self.wide,)


def carried(dtype: DType) -> DType:
    """The type in which long sums run: float32 ones in float64, as ATen's CPU kernels do; halves in float32."""
    return float64 if dtype is float32 else opmath(dtype)


def scan(call: Call, x: Tensor, dim: int, running: Running) -> None:
    """Launches a scan of x along a dimension; the outputs are the parts of the state."""
    dim = dim % x.ndim if x.ndim else 0
    if x.ndim and x.shape[dim] >= LONG:
        _scan_pieces(call, x, dim, running)
        return
    k = call.kernel()
    i, extent, (source,), outs = lines(k, dim, [x], call.outs)
    _scan_line(k, extent, i, source, outs, running, running.inits, lambda j: j)


def _scan_line(
    k: KernelBuilder,
    extent: IntLike,
    i: Sequence[AxisVar],
    source: Buffer,
    outs: Sequence[Buffer],
    running: Running,
    before: Sequence[Expr | Literal | None],
    position: Callable[[AxisVar], Index],
) -> None:
    """Ends a kernel with the scan of one line for each grid point, from the states before it."""

    def store(j: AxisVar, states: States) -> None:
        for out, state in zip(outs, states):
            k.store(out, (*i, j), state)

    k.scan(extent, lambda j: running.state(source.at(*i, j), position(j)), running.combine, before, store)
    k.launch()


def _scan_pieces(call: Call, x: Tensor, dim: int, running: Running) -> None:
    tensors = (x, *call.outs)
    others = [(x.shape[d], tuple(t.strides[d] for t in tensors)) for d in range(x.ndim) if d != dim]
    rows = merged(in_memory_order(others))
    shape = [extent for extent, _ in rows]
    extent = x.shape[dim]
    pieces = extent // PIECE
    done = pieces * PIECE
    cut, tail = [], []
    for n, t in enumerate(tensors):
        step, steps = t.strides[dim], [strides[n] for _, strides in rows]
        cut.append(t.view([pieces, *shape, PIECE], [step * PIECE, *steps, step]))
        tail.append(t.view([*shape, extent - done], [*steps, step], step * done))
    parts = [call.temporary(dtype, [pieces, *shape]) for dtype in running.dtypes]
    before = [call.temporary(dtype, [pieces + 1, *shape]) for dtype in running.dtypes]

    k = call.kernel()
    b, *i = (k.grid(e) for e in (pieces, *shape))
    source = k.read(cut[0])
    # A state with a position depends on the order of its elements.
    folded = k.reduce_many(
        PIECE,
        lambda j: running.state(source.at(b, *i, j), b * PIECE + j),
        running.combine,
        running.inits,
        lanes=1 if running.positions else 32,
    )
    for memory, state in zip(parts, folded):
        k.store(k.write(memory), (b, *i), state)
    k.launch()

    k = call.kernel()
    i = [k.grid(e) for e in shape]
    read, write = [k.read(memory) for memory in parts], [k.write(memory.narrow(0, 1, pieces)) for memory in before]
    for memory, init in zip(before, running.inits):
        start = identity(running.combine, memory.dtype) if init is None and isinstance(running.combine, str) else init
        assert start is not None
        k.store(k.write(memory.select(0, 0)), i, const(start, memory.dtype))

    def keep(b: AxisVar, states: States) -> None:
        for buffer, state in zip(write, states):
            k.store(buffer, (b, *i), state)

    k.scan(pieces, lambda b: tuple(r.at(b, *i) for r in read), running.combine, running.inits, keep)
    k.launch()

    k = call.kernel()
    b, *i = (k.grid(e) for e in (pieces, *shape))
    known = [k.read(memory.narrow(0, 0, pieces)).at(b, *i) for memory in before]
    buffers = k.read(cut[0]), [k.write(out) for out in cut[1:]]
    _scan_line(k, PIECE, (b, *i), *buffers, running, known, lambda j: b * PIECE + j)

    k = call.kernel()
    i = [k.grid(e) for e in shape]
    known = [k.read(memory.select(0, pieces)).at(*i) for memory in before]
    buffers = k.read(tail[0]), [k.write(out) for out in tail[1:]]
    first = k.size(done)
    _scan_line(k, extent - done, i, *buffers, running, known, lambda j: first + j)


@lowering("aten::cumsum")
def cumsum(call: Call, self: Tensor, dim: int, dtype: int | None) -> None:
    """Running sum."""
    scan(call, self, dim, Running(carried(call.outs[0].dtype), "add", [None]))


@lowering("aten::cumprod")
def cumprod(call: Call, self: Tensor, dim: int, dtype: int | None) -> None:
    """Running product."""
    scan(call, self, dim, Running(carried(call.outs[0].dtype), "mul", [None]))


def _running_extreme(op: str) -> Lowering:
    def combine(left: States, right: States) -> States:
        (a, at_a), (b, at_b) = left, right
        take: Expr = Binary("ge" if op == "max" else "le", b, a)  # of equal elements the last
        if a.dtype.is_float:
            take = unary("isnan", b) | (take & ~unary("isnan", a))
        return Where(take, b, a), Where(take, at_b, at_a)

    def lower(call: Call, self: Tensor, dim: int) -> None:
        inits = [identity(op, self.dtype), 0]
        scan(call, self, checked_dim(dim, self.ndim), Running(self.dtype, combine, inits, positions=True))

    return lower


lowering("aten::cummax")(_running_extreme("max"))
lowering("aten::cummin")(_running_extreme("min"))


def log_add_exp(left: States, right: States) -> States:
    """log(exp(a) + exp(b)); equal infinities stay what they are."""
    (a,), (b,) = left, right
    low, high = binary("min", a, b), binary("max", a, b)
    plain = Binary("ne", low, high) | unary("isfinite", low)
    return (Where(plain, unary("log1p", unary("exp", low - high)) + high, a),)


@lowering("aten::logcumsumexp")
def logcumsumexp(call: Call, self: Tensor, dim: int) -> None:
    """Running logsumexp."""
    scan(call, self, dim, Running(carried(call.outs[0].dtype), log_add_exp, [float("-inf")]))
