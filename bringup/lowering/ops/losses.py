"""Losses over classes: nll_loss and the margin losses, forward and backward. (Elementwise losses: losses_pointwise.)

Every class loss is a number for each position, then its sum or mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bringup.ir.dtypes import DType, int64
from bringup.ir.expr import AsIndex, Binary, Cast, Expr, IndexValue, Load, Where, binary, const
from bringup.ir.index import AxisVar
from bringup.ir.kernel import Buffer
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.loops import in_memory_order, merged
from bringup.lowering.ops.folding import Elements, Reduction, fold
from bringup.lowering.ops.indexing import at_least_1d
from bringup.lowering.registry import lowering, new_output
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike, hint_of, product

States = tuple[Expr, ...]
NONE, MEAN = 0, 1


def summed(call: Call, losses: Tensor, weights: Tensor | None, out: Tensor, total: Tensor | None, mean: bool) -> None:
    """Launches out = sum of the losses (mean: over the sum of the weights, or over how many there are)."""
    inputs = [losses, *([weights] if weights is not None else [])]
    count = losses.numel

    def part(piece: Elements) -> States:
        return tuple(piece.reduce(lambda *j, n=n: piece.of(n, *j)) for n in range(len(inputs)))

    def finish(k: KernelBuilder, states: States) -> States:
        over = states[1] if weights is not None else Cast(IndexValue(k.size(count)), states[0].dtype)
        result = states[0] / over if mean else states[0]
        return (result,) if total is None else (result, states[1])

    outs = [out] if total is None else [out, total]
    fold(call, inputs, range(losses.ndim), False, Reduction(part, "add", (0,) * len(inputs), finish), outs)


class _Positions:
    """A kernel over the positions of a class loss: every dimension but that of the classes."""

    def __init__(self, call: Call, scores: Tensor, spread: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        """``spread`` have the shape of the scores, ``others`` that of the positions."""
        self.k = call.kernel()
        self.dim = 1 if scores.ndim > 1 else 0
        self.classes = scores.shape[self.dim]
        rest = [d for d in range(scores.ndim) if d != self.dim]
        wide = [t.permute([*rest, self.dim]) for t in spread]
        rows = [*(t.strides[:-1] for t in wide), *(t.strides for t in others)]
        loops = merged(in_memory_order([(scores.shape[d], tuple(r[n] for r in rows)) for n, d in enumerate(rest)]))
        shape = [extent for extent, _ in loops]
        self.extents = shape
        steps = [[strides[n] for _, strides in loops] for n in range(len(rows))]
        self.spread = [t.view([*shape, self.classes], [*s, t.strides[-1]]) for t, s in zip(wide, steps)]
        self.others = [t.view(shape, s) for t, s in zip(others, steps[len(wide) :])]

    def grid(self) -> tuple[AxisVar, ...]:
        """The positions."""
        return tuple(self.k.grid(extent) for extent in self.extents)


def spread_over(number: Tensor, shape: Sequence[IntLike]) -> Tensor:
    """A tensor of the positions, or a 0-dim one at every position."""
    return number.view(shape, [0] * len(shape)) if not number.ndim else number


def _positions_of(scores: Tensor) -> list[IntLike]:
    return [extent for d, extent in enumerate(scores.shape) if d != (1 if scores.ndim > 1 else 0)]


def _flat_target(target: Tensor, scores: Tensor) -> Tensor:
    """The target of one position may be 0-dim or of one element."""
    return target if scores.ndim > 1 else target.view([], [])


def _class_weight(
    k: KernelBuilder, weight: Tensor | None, place: Any, classes: IntLike, wide: DType, guard: Expr | None
) -> Expr:
    if weight is None:
        return const(1, wide)
    buffer = k.read(weight, [classes])
    return convert(Load(buffer.name, (place,), buffer.dtype, guard), wide)


@lowering("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll_loss(
    call: Call, self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> None:
    """-w[t] x[t] at each position, 0 where the target is ignored; the mean divides by the sum of the weights."""
    out, total = call.outs
    wide = opmath(self.dtype)
    shape = _positions_of(self)
    losses = out if reduction == NONE and self.ndim > 1 else call.temporary(wide, shape)
    weights = call.temporary(wide, shape)
    at = _Positions(call, self, [self], [_flat_target(target, self), losses, weights])
    k, i = at.k, at.grid()
    x, t = k.read(at.spread[0]), k.let(k.read(at.others[0]).at(*i))
    counts = Binary("ne", t, const(ignore_index, t.dtype))
    place = AsIndex(convert(t, int64), k.size(at.classes), "check")
    score = convert(Load(x.name, (*i, place), x.dtype, counts), wide)
    factor = k.let(_class_weight(k, weight, place, at.classes, wide, counts))
    factor_or_none = Where(counts, factor, const(0, wide))
    k.store(k.write(at.others[1]), i, Where(counts, -(score * factor), const(0, wide)))
    k.store(k.write(at.others[2]), i, factor_or_none)
    k.launch()
    if losses is out:
        elementwise(call, [total], [], lambda: const(0, wide), [])
        return
    summed(call, losses, weights, out, total, reduction == MEAN)


@lowering("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_loss_backward(
    call: Call,
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> None:
    """-w[t] g at the target's class, 0 at the others: every element is written, so that nothing has to be cleared."""
    (dx,) = call.outs
    wide = opmath(self.dtype)
    shape = _positions_of(self)
    others = [_flat_target(target, self), spread_over(grad_output, shape)]
    at = _Positions(call, self, [dx], others)
    k = at.k
    # The classes go where their memory lies: inside, or around the last loop of positions.
    inside = not at.extents or hint_of(at.spread[0].strides[-1]) == 1
    i = [k.grid(extent) for extent in at.extents[: None if inside else -1]]
    c = k.grid(at.classes)
    i += [k.grid(extent) for extent in ([] if inside else at.extents[-1:])]
    t = convert(k.read(at.others[0]).at(*i), int64)
    here = Binary("eq", t, IndexValue(c)) & Binary("ne", t, const(ignore_index, int64))
    g = convert(k.read(at.others[1]).at(*i), wide)
    if reduction == MEAN:
        g = g / convert(k.read(total_weight).at(), wide)
    value = -(g * _class_weight(k, weight, c, at.classes, wide, None))
    k.store(k.write(at.spread[0]), (*i, c), Where(here, value, const(0, wide)))
    k.launch()


# ---- multi_margin_loss ----


def like_argument(position: int) -> Any:
    """The outputs of an op without a meta kernel whose result is like one argument, contiguous."""

    def outputs(*arguments: Any) -> list[Any]:
        _, _, code, sizes, *_ = arguments[position]
        return [new_output(code, sizes)]

    return outputs


class _Margins:
    """What both directions of multi_margin_loss share: the violation of each class at a position."""

    def __init__(self, at: _Positions, i: Sequence[AxisVar], x: Buffer, t: Expr, wide: DType) -> None:
        self.at, self.i, self.x, self.t, self.wide = at, tuple(i), x, t, wide
        self.place = AsIndex(t, at.k.size(at.classes), "check")
        self.own = at.k.let(convert(x.at(*i, self.place), wide))

    def excess(self, j: AxisVar, margin: Expr) -> Expr:
        """margin - x[t] + x[j]; 0 at the target itself."""
        over = margin - self.own + convert(self.x.at(*self.i, j), self.wide)
        return Where(Binary("eq", self.t, IndexValue(j)), const(0, self.wide), over)


def _margins(
    call: Call, x: Tensor, spread: Sequence[Tensor], target: Tensor, others: Sequence[Tensor]
) -> tuple[_Positions, _Margins]:
    at = _Positions(call, x, [x, *spread], [_flat_target(target, x), *others])
    i = at.grid()
    t = at.k.let(convert(at.k.read(at.others[0]).at(*i), int64))
    return at, _Margins(at, i, at.k.read(at.spread[0]), t, opmath(x.dtype))


@lowering("aten::multi_margin_loss")
def multi_margin_loss(
    call: Call, self: Tensor, target: Tensor, p: Number, margin: Number, weight: Tensor | None, reduction: int
) -> None:
    """w[t] sum over other classes of max(0, margin - x[t] + x[j])^p, over the number of classes."""
    (out,) = call.outs
    self = at_least_1d(self)
    wide = opmath(self.dtype)
    losses = out if out.ndim == self.ndim - 1 and reduction == NONE else call.temporary(wide, _positions_of(self))
    at, rows = _margins(call, self, [], target, [losses])
    k, squared = at.k, p.equals(2)
    edge = k.number(margin, wide)

    def term(j: AxisVar) -> Expr:
        over = binary("max", rows.excess(j, edge), 0)
        return over * over if squared else over

    total = k.reduce(at.classes, term)
    factor = _class_weight(k, weight, rows.place, at.classes, wide, None)
    k.store(k.write(at.others[1]), rows.i, total * factor / Cast(IndexValue(k.size(at.classes)), wide))
    k.launch()
    if losses is not out:
        summed(call, losses, None, out, None, reduction == MEAN)


@lowering("aten::multi_margin_loss_backward", outputs=like_argument(1))
def multi_margin_loss_backward(
    call: Call,
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    p: Number,
    margin: Number,
    weight: Tensor | None,
    reduction: int,
) -> None:
    """Each violation pulls its class down and the target's class up."""
    self, dx = at_least_1d(self), at_least_1d(call.outs[0])
    wide, shape = opmath(self.dtype), _positions_of(self)
    at, rows = _margins(call, self, [dx], target, [spread_over(grad_output, shape)])
    k, squared = at.k, p.equals(2)
    edge = k.number(margin, wide)
    count = at.classes * product(shape) if reduction == MEAN else at.classes
    g = convert(k.read(at.others[1]).at(*rows.i), wide) / Cast(IndexValue(k.size(count)), wide)
    g = k.let(g * _class_weight(k, weight, rows.place, at.classes, wide, None))

    def pull(j: AxisVar) -> Expr:
        over = rows.excess(j, edge)
        return Where(over > 0.0, g * (over + over) if squared else g, const(0, wide))

    total = k.reduce(at.classes, pull)
    out = k.write(at.spread[1])
    with k.loop(at.classes) as j:
        k.store(out, (*rows.i, j), Where(Binary("eq", rows.t, IndexValue(j)), -total, pull(j)))
    k.launch()
