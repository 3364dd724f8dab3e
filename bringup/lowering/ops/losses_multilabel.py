"""multilabel_margin_loss, forward and backward: every target class against every class that is none.

The targets of a row are its classes before the first -1.
"""

from __future__ import annotations

from typing import Any

from bringup.ir.dtypes import DType, boolean, int64
from bringup.ir.expr import AsIndex, Binary, Cast, Expr, IndexValue, Load, Where, binary, const
from bringup.ir.index import AxisVar
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, Tensor
from bringup.lowering.ops.indexing import at_least_1d
from bringup.lowering.ops.losses import MEAN, NONE, like_argument, spread_over, summed
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike


def _rows(tensor: Tensor) -> Tensor:
    """One row may come without its dimension."""
    row = at_least_1d(tensor)
    return row if row.ndim == 2 else row.view([1, *row.shape], [0, *row.strides])


class _Labels:
    """A row at a grid point: its scores, its targets, and how many there are."""

    def __init__(self, k: KernelBuilder, x: Tensor, target: Tensor, row: AxisVar, wide: DType) -> None:
        self.k, self.row, self.wide = k, row, wide
        self.shape = x.shape
        self.scores, self.targets = k.read(x), k.read(target, x.shape)
        nowhere = IndexValue(k.size(x.shape[1]))
        self.count = k.reduce(x.shape[1], lambda j: Where(self.target(j) < 0, IndexValue(j), nowhere), "min", nowhere)

    def target(self, j: AxisVar) -> Expr:
        """Entry j of the list of targets."""
        return convert(self.targets[self.row, j], int64)

    def score(self, j: AxisVar) -> Expr:
        return convert(self.scores[self.row, j], self.wide)

    def is_entry(self, j: AxisVar) -> Expr:
        """True where the list of targets has not ended."""
        return IndexValue(j) < self.count

    def target_score(self, j: AxisVar) -> Expr:
        """The score of target j; 0 after the end."""
        place = AsIndex(self.target(j), self.k.size(self.shape[1]), "check")
        return convert(Load(self.scores.name, (self.row, place), self.scores.dtype, self.is_entry(j)), self.wide)

    def number(self, count: IntLike) -> Expr:
        return Cast(IndexValue(self.k.size(count)), self.wide)


@lowering("aten::multilabel_margin_loss_forward")
def multilabel_margin_loss(call: Call, self: Tensor, target: Tensor, reduction: int) -> None:
    """Sum over targets t and other classes j of max(0, 1 - x[t] + x[j]), over the number of classes."""
    out, is_target = call.outs
    x, wide = _rows(self), opmath(self.dtype)
    rows, classes = x.shape

    k = call.kernel()
    n, c = k.grid(rows), k.grid(classes)
    labels = _Labels(k, x, _rows(target), n, wide)
    hit = k.reduce(classes, lambda j: labels.is_entry(j) & Binary("eq", labels.target(j), IndexValue(c)), "or")
    k.store(k.write(_rows(is_target), x.shape), (n, c), hit)
    k.launch()

    losses = out if reduction == NONE and self.ndim == 2 else call.temporary(wide, [rows])
    k = call.kernel()
    n = k.grid(rows)
    labels = _Labels(k, x, _rows(target), n, wide)
    taken = k.read(_rows(is_target), x.shape)

    def term(t: AxisVar, j: AxisVar) -> Expr:
        counts = labels.is_entry(t) & ~convert(taken[n, j], boolean)
        over = binary("max", 1.0 - labels.target_score(t) + labels.score(j), 0)
        return Where(counts, over, const(0, wide))

    total = k.reduce([classes, classes], term)
    k.store(k.write(losses, [rows]), (n,), total / labels.number(classes))
    k.launch()
    if losses is not out:
        summed(call, losses, None, out, None, reduction == MEAN)


@lowering("aten::multilabel_margin_loss_backward", outputs=like_argument(1))
def multilabel_margin_loss_backward(
    call: Call, grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> None:
    """A class that is not a target goes down by each target it violates; a target goes up by each class."""
    x, wide = _rows(self), opmath(self.dtype)
    rows, classes = x.shape
    k = call.kernel()
    n, c = k.grid(rows), k.grid(classes)
    labels = _Labels(k, x, _rows(target), n, wide)
    taken = k.read(_rows(is_target), x.shape)
    own = k.let(labels.score(c))
    one, none = const(1, wide), const(0, wide)

    def violates(counts: Expr, over: Expr) -> Expr:
        return Where(counts & (over > 0.0), one, none)

    def as_other(t: Any) -> Expr:
        return violates(labels.is_entry(t), 1.0 - labels.target_score(t) + own)

    def as_target(j: Any) -> Expr:
        return violates(~convert(taken[n, j], boolean), 1.0 - own + labels.score(j))

    def entries(t: Any) -> Expr:
        return Where(labels.is_entry(t) & Binary("eq", labels.target(t), IndexValue(c)), one, none)

    down, up, times = (k.reduce(classes, term) for term in (as_other, as_target, entries))
    g = convert(k.read(spread_over(grad_output, [rows]), [rows])[n], wide)
    count = rows * classes if reduction == MEAN else classes
    value = Where(convert(taken[n, c], boolean), -(up * times), down)
    k.store(k.write(_rows(call.outs[0]), x.shape), (n, c), value * g / labels.number(count))
    k.launch()
